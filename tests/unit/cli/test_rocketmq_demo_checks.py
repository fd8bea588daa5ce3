"""The checks at the end of RocketMQ's demo pass for a correct run and fail for each fault."""

from pathlib import Path

import msgspec

from cli.demo import checks, rocketmq_proof
from cli.demo.load import consumed_by_partition
from cli.demo.proof import Deed, DemoResult
from cli.demo.report import check_lines, timeline_lines
from cli.demo.rocketmq_proof import Share, Trap
from clients.answers import decode_response
from insight.view import entry_line
from records.codec import encode
from records.rocketmq_history import decode_entry, decode_snapshot
from state.messages import RECORD_VERSION
from state.rocketmq.history import EntryType, HistoryEntry
from state.rocketmq.responses import NotifyConsumerIdsChanged
from tests.harness.rocketmq_broker import Broker

CONNECTION = "consumer-1/e87b530a-731e-4de4-9d19-5f52220fcd86"


def entry(
    kind: EntryType, seq: int, cause: str = "requests-0-1", client_id: str | None = None
) -> HistoryEntry:
    return HistoryEntry(
        version=RECORD_VERSION,
        type=kind,
        group_id="g",
        incarnation="requests-0-0",
        seq=seq,
        at_ms=seq,
        reason=f"for {CONNECTION}",
        cause=cause,
        client_id=client_id,
    )


def notifications(*client_ids: str, request: str = "requests-0-1") -> list[NotifyConsumerIdsChanged]:
    return [
        NotifyConsumerIdsChanged(group_id="g", connection=f"{c}/1", client_id=c, request=request)
        for c in client_ids
    ]


def file_of(path: Path, *values: str, partition: int = 0) -> Path:
    lines = [
        msgspec.json.encode({"partition": partition, "offset": place, "value": value}) + b"\n"
        for place, value in enumerate(values)
    ]
    path.write_bytes(b"".join(lines) + b'{"cut short')
    return path


def test_every_broadcaster_has_to_have_every_record(tmp_path: Path) -> None:
    all_of_it, a_part = file_of(tmp_path / "b1", "r1", "r2"), file_of(tmp_path / "b2", "r1")
    assert rocketmq_proof.all_by_all({"r1", "r2"}, [all_of_it]).ok
    check = rocketmq_proof.all_by_all({"r1", "r2"}, [all_of_it, a_part])
    assert (check.ok, check.detail) == (False, "b1 missed 0, b2 missed 1")


def test_what_was_consumed_goes_by_partition(tmp_path: Path) -> None:
    files = [file_of(tmp_path / "a", "x", "y", partition=1), file_of(tmp_path / "b", "z", partition=1)]
    assert consumed_by_partition(files) == {1: 2}


def test_the_first_shares_are_four_and_three() -> None:
    good = Share({"consumer-1": "0-3", "consumer-2": "4-6"})
    assert rocketmq_proof.four_and_three([good, Share({"consumer-1": "0-6"})]).ok
    assert not rocketmq_proof.four_and_three([Share({"consumer-1": "0-6"}), good]).ok
    assert not rocketmq_proof.four_and_three([]).ok


def test_all_three_are_notified_by_the_heartbeat_that_registered_the_third() -> None:
    came = [entry(EntryType.CONSUMER_CONNECTED, 1, client_id="consumer-3")]
    names = ("consumer-1", "consumer-2", "consumer-3")
    assert rocketmq_proof.all_were_notified(came, notifications(*names)).ok
    assert not rocketmq_proof.all_were_notified(came, notifications(*names[:2])).ok
    assert not rocketmq_proof.all_were_notified(came, notifications(*names, request="requests-0-9")).ok


def test_a_scan_removes_only_the_killed_consumer_and_notifies_no_client() -> None:
    scan = "scan at 1000"
    gone = entry(EntryType.CONSUMER_REMOVED, 1, scan, "consumer-2")
    left = entry(EntryType.CONSUMER_REMOVED, 2, "requests-0-5", "consumer-3")
    assert rocketmq_proof.silence_was_found([gone, left]).ok
    assert not rocketmq_proof.silence_was_found([left]).ok
    assert not rocketmq_proof.silence_was_found([gone, entry(EntryType.CONSUMERS_NOTIFIED, 3, scan)]).ok


def test_the_trap_is_named_over_and_costs_a_backlog() -> None:
    named = entry(EntryType.DUPLICATE_CLIENT_ID, 1, client_id="consumer-1")
    over = entry(EntryType.DUPLICATE_CLIENT_ID_OVER, 2, client_id="consumer-1")
    trap = Trap(["c1", "c2"], 5, 50)
    assert rocketmq_proof.trap_was_named([named, over], trap).ok
    assert not rocketmq_proof.trap_was_named([named], trap).ok
    assert not rocketmq_proof.trap_was_named([named, over], None).ok
    assert rocketmq_proof.backlog_grew(trap).ok
    assert not rocketmq_proof.backlog_grew(Trap(["c1", "c2"], 50, 50)).ok


def test_why_has_to_name_the_trap_with_its_connections() -> None:
    broker = Broker()
    for at_ms, connection in ((1, "consumer-1/aa"), (2, "consumer-1/bb")):
        broker.now_ms = at_ms
        broker.heartbeat("consumer-1", connection)
    trap = Trap(["consumer-1/aa", "consumer-1/bb"], 5, 50)
    named = rocketmq_proof.why_names_the_trap(broker.history, trap)
    assert named.ok
    assert named.detail.endswith("DUPLICATE CLIENT ID: consumer-1 on consumer-1/aa and consumer-1/bb")
    assert not rocketmq_proof.why_names_the_trap(broker.history[:3], trap).ok
    assert not rocketmq_proof.why_names_the_trap(broker.history, Trap(["consumer-1/cc"], 5, 50)).ok
    assert not rocketmq_proof.why_names_the_trap(broker.history, None).ok
    assert not rocketmq_proof.why_names_the_trap([], trap).ok


def test_what_is_said_unasked_is_no_second_answer() -> None:
    values = [encode(message) for message in notifications("a", "b")]
    assert checks.read_answers(values).by_request == {}
    assert decode_response(values[0]) == notifications("a")[0]


def test_histories_of_both_protocols_are_read_side_by_side() -> None:
    history = checks.read_history([encode(entry(EntryType.GROUP_CREATED, 1)), b'{"type":"SomethingNew"}'])
    assert [e.type for e in history.of_rocketmq("g")] == [EntryType.GROUP_CREATED]
    assert history.of("g") == []
    assert checks.no_gaps(history).ok
    assert decode_entry(b'{"type":"Stable"}') is None
    assert decode_snapshot(b'{"group_id":"g"}') is None


def test_the_live_view_tells_an_entry_in_a_line() -> None:
    line = entry_line(entry(EntryType.CONSUMER_REMOVED, 1, client_id="A"))
    assert line.endswith(f"g  ConsumerRemoved [A]: for {CONNECTION}")


def test_the_timeline_tells_entries_without_generations() -> None:
    outcome = DemoResult(
        [], [entry(EntryType.CONSUMER_REMOVED, 1, client_id="A")], [Deed(0, "SIGKILL A")], {}
    )
    killed, removed = timeline_lines(outcome)
    assert killed.endswith("*** demo: SIGKILL A")
    assert removed.endswith("    ConsumerRemoved A: for consumer-1/e87b")
    assert not list(check_lines(outcome))
