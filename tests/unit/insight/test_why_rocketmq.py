"""How `why` reports on RocketMQ's groups: real histories, and special cases."""

import re
from datetime import UTC

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from assignors.rocketmq.api import MessageRequestMode
from insight.why.clock import Clock
from insight.why.rocketmq.model import ChangeKind, Report
from insight.why.rocketmq.report import report
from insight.why.rocketmq.text import MAX_CHANGES, report_text
from records.history import decode_any_entry
from records.truncation import encode_event
from state.config import CoordinatorConfig
from state.rocketmq.group import Group
from state.rocketmq.history import HistoryEntry
from state.rocketmq.requests import MessageModel, SetMessageRequestMode, SubscriptionGroupConfig
from state.timeline import Timeline
from tests.harness.examples import examples
from tests.harness.random_log import GROUPS
from tests.harness.rocketmq_broker import QUEUES, Broker, of
from tests.harness.rocketmq_log import realise
from tests.unit.state.rocketmq_story import BEGIN_MS, END_MS, night

SILENT = SubscriptionGroupConfig(notify_consumer_ids_changed_enable=False)


def text_of(history: list[HistoryEntry], now_ms: int = 1_000_000, since_ms: int | None = None) -> str:
    return report_text(report("G", history, now_ms, since_ms), Clock(UTC))


def kinds(history: list[HistoryEntry]) -> list[ChangeKind]:
    return [change.kind for change in report("G", history, 0).changes]


def block(text: str, number: int) -> str:
    """Return the block of one change."""
    (found,) = re.findall(rf"^#{number}  .*?(?=\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return str(found).rstrip()


class Clocked(Broker):
    """A broker that receives its requests one second apart."""

    def join(self, client_id: str, connection: str, *topics: str, **given: object) -> None:
        self.now_ms += 1_000
        self.heartbeat(client_id, connection, *topics, **given)  # type: ignore[arg-type]

    def leave(self, client_id: str, connection: str) -> None:
        self.now_ms += 1_000
        self.unregister(client_id, connection)


def test_a_client_id_that_two_have_is_named_first_with_connections_time_and_remedy() -> None:
    headline, remedy, *_ = report_text(report("g", night(), END_MS), Clock(UTC)).splitlines()
    trap = "worker-1 on c1 and c5 since 2026-11-21 03:04:00.000 UTC"
    assert headline == f"Group g of RocketMQ has a DUPLICATE CLIENT ID: {trap}"
    assert remedy.startswith("To do ")
    assert "give it a client id of its own" in remedy


def test_a_trap_is_told_from_its_beginning_to_its_end_with_everybody_in_it() -> None:
    broker = Clocked()
    for client_id, connection in (("A", "c1"), ("A", "c2"), ("A", "c3")):
        broker.join(client_id, connection)
    broker.leave("A", "c1")
    during = report("G", broker.history, broker.now_ms)
    assert [(t.connections, t.began, t.ended, t.to_ms) for t in during.traps] == [
        (["c1", "c2", "c3"], 2, None, None)
    ]
    broker.leave("A", "c2")
    after = report("G", broker.history, broker.now_ms)
    assert [(t.ended, t.to_ms) for t in after.traps] == [(5, 5_000)]
    text = report_text(after, Clock(UTC))
    assert text.startswith("Group G of RocketMQ has 1 client since 1970-01-01 00:00:05.000 UTC\n")
    assert "Duplicates  A on c1 and c2 and c3, for 3.0 s, from #2 to #5" in text
    assert "over   client id A is on one connection alone again" in block(text, 5)


def test_one_id_of_two_that_broadcast_is_harmless_and_no_alarm() -> None:
    broker = Clocked()
    for connection in ("c1", "c2"):
        broker.join("A", connection, model=MessageModel.BROADCASTING)
    text = text_of(broker.history)
    assert text.startswith("Group G of RocketMQ has 1 client since")
    assert "To do" not in text
    assert "to do" not in text
    assert block(text, 2).splitlines()[0].endswith("duplicate client id, harmless: A on c1 and c2")
    assert "told    none: the group broadcasts, or its notifications are switched off" in block(text, 2)


def test_a_scan_that_finds_several_is_one_change_and_tells_nobody() -> None:
    broker = Clocked()
    for number in (1, 2, 3):
        broker.join(f"worker-{number}", f"c{number}")
    broker.now_ms = 60_000
    broker.heartbeat("worker-3", "c3")
    broker.scan()
    found = report("G", broker.history, broker.now_ms)
    assert [(c.kind, c.notification) for c in found.changes[-1:]] == [(ChangeKind.EXPIRED, None)]
    last = block(report_text(found, Clock(UTC)), 4)
    assert "client expired: worker-1, worker-2" in last
    assert "why    worker-1: silent for 129000 ms, over 120000" in last
    assert "by     scan\n" in last
    assert "told   none: the other clients notice when their own timers fire" in last
    assert last.endswith("there  worker-3")


def test_leaving_says_how_and_the_last_one_leaves_nobody_to_be_told() -> None:
    broker = Clocked()
    broker.join("A", "c1")
    broker.join("B", "c2")
    broker.leave("A", "c1")
    broker.now_ms += 1
    broker.close("c2")
    text = text_of(broker.history)
    assert text.startswith("Group G of RocketMQ has no consumers since")
    assert "why    unregistered" in block(text, 3)
    assert "told   client A unregistered; connections told: 1" in block(text, 3)
    assert "why    its connection closed" in block(text, 4)
    assert "told   none: the group has no connections left" in block(text, 4)
    assert "Topics" not in text


def test_topics_connections_that_change_hands_and_needless_notifications() -> None:
    broker = Clocked()
    broker.join("A", "c1", "T")
    broker.join("A", "c1", "U")
    broker.join("B", "c1", "U")
    broker.leave("nobody", "c9")
    assert kinds(broker.history) == [
        ChangeKind.CONNECTED,
        ChangeKind.TOPICS,
        ChangeKind.REPLACED,
        ChangeKind.NOTIFIED,
    ]
    text = text_of(broker.history)
    assert "Topics   U" in text
    assert "why    heartbeat of client A: +U, -T" in block(text, 2)
    assert "told   none, although the client ids changed" in block(text, 3)
    assert "told   client nobody unregistered; connections told: 1" in block(text, 4)


def test_a_connection_that_takes_another_clients_id_is_a_trap_that_nobody_is_told_of() -> None:
    broker = Clocked()
    broker.join("A", "c1")
    broker.join("B", "c2")
    broker.join("A", "c2")
    change = report("G", broker.history, broker.now_ms).changes[-1]
    assert (change.kind, change.also) == (ChangeKind.DUPLICATE, [ChangeKind.REPLACED])
    last = block(text_of(broker.history), 3)
    assert "DUPLICATE CLIENT ID: A on c1 and c2" in last
    assert "told    none, although the client ids changed" in last


def test_notifications_can_be_switched_off() -> None:
    broker = Clocked()
    broker.join("A", "c1", config=SILENT)
    assert "none: the group broadcasts, or its notifications are switched off" in text_of(broker.history)
    assert "all connections were notified 0 times" in text_of(broker.history)


def test_locks_that_are_taken_over() -> None:
    broker = Clocked()
    broker.lock("A", *QUEUES[:2])
    broker.now_ms = 60_001
    broker.lock("B", *QUEUES[:1])
    text = text_of(broker.history)
    assert "#1  1970-01-01 00:01:00.001  locks taken over: B" in text
    assert "client A did not renew its locks within 60000 ms" in block(text, 1)


def test_topics_that_the_coordinator_deals_out() -> None:
    broker = Clocked()
    broker.join("A", "c1")
    broker.now_ms += 1
    mode = SetMessageRequestMode(
        **of("A"), topic="T", mode=MessageRequestMode.POP, pop_share_queue_num=2, group_config=SILENT
    )
    broker.set_mode(mode)
    text = text_of(broker.history)
    assert "but the coordinator assigns the queues of T to clients that query it: POP, shared with" in text
    assert kinds(broker.history)[-1] is ChangeKind.MODE


def test_a_history_that_begins_in_the_middle_says_so() -> None:
    history = night()
    begin = next(n for n, event in enumerate(history) if event.client_id == "worker-3")
    text = text_of(history[begin:], END_MS)
    assert f"the history begins at entry {history[begin].seq}" in text
    assert "at least" in text_of(history[begin : begin + 2], END_MS)
    assert not report("g", history[begin:], END_MS).complete


def test_entries_that_are_missing_are_named_and_those_that_came_twice_are_not() -> None:
    history = night()
    assert text_of([*history, *history[3:9]], END_MS) == text_of(history, END_MS)
    lost = [event for event in history if event.seq != 6]
    assert f"entries are missing: 6 of life {history[0].incarnation}" in text_of(lost, END_MS)
    assert not report("g", lost, END_MS).complete


def test_a_trap_whose_end_is_missing_ends_with_the_group() -> None:
    broker = Clocked()
    broker.join("A", "c1")
    broker.join("A", "c2")
    lost = list(broker.history)
    broker.leave("A", "c1")
    broker.leave("A", "c2")
    again = len(broker.history)
    broker.join("B", "c3")
    found = report("G", [*lost, *broker.history[again:]], 10_000)
    assert [(t.ended, t.to_ms) for t in found.traps] == [(3, 5_000)]
    assert "this report covers 2 lives" in report_text(found, Clock(UTC))


def test_an_entry_too_large_for_its_connections_still_names_the_trap() -> None:
    small = [decode_any_entry(encode_event(event, max_bytes=1)) for event in night()]
    history = [event for event in small if isinstance(event, HistoryEntry)]
    assert "DUPLICATE CLIENT ID: worker-1 on several connections" in text_of(history, END_MS)


def test_since_leaves_out_what_was_before() -> None:
    found = report("g", night(), END_MS, since_ms=BEGIN_MS + 205_000)
    assert [change.number for change in found.changes] == [6, 7]
    assert [(trap.began, trap.ended) for trap in found.traps] == [(5, 6), (7, None)]
    assert "Changes     2 since 2026-11-21 03:03:25.000" in report_text(found, Clock(UTC))


def test_of_many_changes_the_last_are_shown() -> None:
    broker = Clocked()
    for number in range(MAX_CHANGES + 5):
        broker.join(f"A{number}", f"c{number}")
    text = text_of(broker.history)
    assert "(5 earlier changes are not shown: see them with -o json)" in text
    assert text.count("\n#") == MAX_CHANGES


def test_a_group_of_producers_has_no_changes() -> None:
    broker = Broker()
    broker.heartbeat("A", "c1")
    whole = report("G", [event for event in broker.history if event.seq == 1], 0)
    assert (whole.changes, whole.consumers) == ([], [])
    assert "Group G of RocketMQ has no consumers since" in report_text(whole, Clock(UTC))


def test_json_has_everything_and_says_whose_it_is() -> None:
    whole = report("g", night(), END_MS)
    encoded = msgspec.json.encode(whole)
    assert msgspec.json.decode(encoded, type=Report) == whole
    assert msgspec.json.decode(encoded)["protocol"] == "RocketMQ"


def played(seed: int, length: int) -> list[tuple[str, list[HistoryEntry], object, int]]:
    """The histories of a random log's groups, the groups at their ends, and the time of the end."""
    rows = realise(seed, length)
    found: list[tuple[str, list[HistoryEntry], object, int]] = []
    for group_id in GROUPS:
        timeline = Timeline(group_id, None, CoordinatorConfig())
        for row in rows:
            if row.request.group_id == group_id:
                timeline.apply(row)
        said = [event for effects in timeline.drain_effects() for event in effects.history]
        if history := [event for event in said if isinstance(event, HistoryEntry)]:
            found.append((group_id, history, timeline.group, rows[-1].at_ms))
    return found


@given(st.integers(0, 2**32 - 1), st.integers(5, 150))
@examples(60)
def test_whatever_happened_it_ends_with_what_the_core_has(seed: int, length: int) -> None:
    for group_id, history, group, end_ms in played(seed, length):
        if isinstance(group, Group):
            found = report(group_id, history, end_ms)
            there = [(c.connection, c.client_id) for c in found.consumers]
            assert there == [(c, info.client_id) for c, info in group.channels.items()]
            on = {trap.client_id for trap in found.traps if trap.to_ms is None}
            assert on == group.duplicate_client_ids().keys()
            assert report_text(found, Clock(UTC)).startswith(f"Group {group_id} of RocketMQ has ")
