"""The page of share groups of this coordinator and of others, their deliveries, and of streams groups."""

import pytest

from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.telemetry import GONE, Counted
from kafka_why.page.deliveries import CACHE_MS, DeliveriesCache
from kafka_why.page.findings import FindingKind
from kafka_why.page.group import GroupPage, group_page, rebalance_page
from kafka_why.page.members import view_members
from kafka_why.page.overview import Overview
from kafka_why.page.words import thousands
from kafka_why.why.deliveries.report import DeliveryReport
from kafka_why.why.history import History, HistoryUnavailable
from kafka_why.why.report import analyze
from tests.harness.histories import Recorder
from tests.harness.observed_log import REAL_OF_OTHERS, Watched, real_records, view_after
from tests.unit.kafka_why.page_facts import facts, fleet_of, view
from tests.unit.kafka_why.test_deliveries import counted, report, row, suspect
from tests.unit.kafka_why.test_page_access import answer, serving

BEGUN = ("topics orders=3", "at 10s", "share A e0", "at 11s", "init watcher partitions[orders 0]")
JOINED = ("at 12s", "share A e2", "at 15s", "share B e0")


def world(*commands: str) -> tuple[Recorder, GroupSnapshot]:
    recorder = Recorder()
    recorder.play(*BEGUN, *commands)
    return recorder, recorder.view()


def page(now_ms: int, *commands: str, with_history: bool = True) -> GroupPage:
    recorder, view = world(*commands)
    analysis = analyze(recorder.history) if with_history else None
    return group_page(facts(view), analysis, (0, now_ms), now_ms)


REAL = real_records(REAL_OF_OTHERS)
BEGIN_MS, END_MS = REAL[0].at_ms, REAL[-1].at_ms


def test_share_groups_are_listed_with_types_and_members() -> None:
    _, own = world(*JOINED)
    fleet = fleet_of(own, view_after("queue", 19), view_after("counts", 56))
    lines = {line.group_id: line for line in Overview(fleet).lines(END_MS)}
    assert {name: (line.protocol, line.state, line.members) for name, line in lines.items()} == {
        "g": ("share", "Stable", 2),
        "queue": ("share", "Stable", 2),
        "counts": ("streams", "Stable", 2),
    }
    assert [partitions for _, _, partitions in view_members(own).members()] == [1, 1], "both have orders-0"


@pytest.mark.parametrize("with_history", [True, False])
def test_share_page_shows_the_progress_of_partitions(with_history: bool) -> None:
    assert page(12_000, with_history=with_history).shares == [
        "3 partitions: 1 initialized, 2 initializing",
        "orders 1-2: initializing for 2.0 s (task requests-0-0)",
        "no member has orders 0",
    ]
    failing = page(13_000, *JOINED, "init watcher partitions[orders 1] error=15", with_history=with_history)
    assert failing.shares == [
        "3 partitions: 1 initialized, 2 initializing",
        "orders 1: initializing for 3.0 s, last error 15 COORDINATOR_NOT_AVAILABLE (task requests-0-0)",
        "orders 2: initializing for 3.0 s (task requests-0-0)",
    ]
    deleting = page(20_000, "share A -1", "at 14s", "delete admin", with_history=with_history)
    assert deleting.shares == [
        "3 partitions: 3 deleting",
        "orders 0-2: deleting the state for 6.0 s (task requests-0-3)",
    ]


def test_share_task_that_is_open_for_long_is_a_finding() -> None:
    assert page(69_999).findings == []
    (found,) = page(70_000).findings
    assert (found.kind, found.since_ms) == (FindingKind.NOT_INITIALIZED, 10_000)
    assert found.sentence == "The share coordinator has not initialized 2 partitions for 60.0 s: orders 1-2"
    (found,) = page(70_000, "init watcher error=16").findings
    assert ", with error 16 NOT_COORDINATOR: " in found.sentence


def test_share_page_lists_members_and_rebalances() -> None:
    now_ms = 16_000
    it = page(now_ms, *JOINED)
    assert [(member.name, member.holds, member.partitions) for member in it.members] == [
        ("A", "orders 0", 1),
        ("B", "orders 0", 1),
    ]
    assert [(r.sentence, r.waited, r.needless) for r in it.rebalances] == [
        ("member joined: B", "", None),
        ("share partitions were initialized", "", None),
        ("member joined: A", "", None),
    ]
    assert it.picture.lanes
    recorder, _ = world(*JOINED)
    of_second = rebalance_page("g", analyze(recorder.history), 12_000, now_ms)
    assert of_second is not None
    assert ("why", "1 partition ready 1.0 s after the request: orders 0") in of_second.lines
    assert [(move.name, move.gained) for move in of_second.moves] == [("A", "orders 0")]


@pytest.mark.parametrize(
    ("group_id", "records", "protocol", "holds"),
    [
        ("queue", 19, "share", ["orders 0 3", "orders 1-2"]),
        ("counts", 56, "streams", ["active 0 0-1, standby 0 2-3", "active 0 2-3, standby 0 0-1"]),
    ],
)
def test_observed_share_group_has_members_rebalances_and_a_picture(
    group_id: str, records: int, protocol: str, holds: list[str]
) -> None:
    analysis = analyze(Watched().take(REAL[:records]).of(group_id))
    page = group_page(facts(view_after(group_id, records)), analysis, (BEGIN_MS - 1, END_MS), END_MS)
    assert (page.protocol, page.state, page.generation) == (protocol, "Stable", 4)
    assert sorted(member.holds for member in page.members) == holds
    assert page.rebalances[0].sentence.startswith("member joined: ")
    assert page.rebalances[0].moved == 2
    assert page.findings == []
    assert page.picture.lanes


def test_page_of_a_streams_group_has_its_processes() -> None:
    page = group_page(facts(view_after("counts", 56)), None, (0, END_MS), END_MS)
    assert page.streams is not None
    assert [(one.members, one.active, one.standby) for one in page.streams.processes] == [
        (1, 2, 2),
        (1, 2, 2),
    ]
    with serving(fleet=fleet_of(view_after("counts", 56)), read=without) as listening:
        _, _, body = answer(listening, "/group?id=counts")
    assert "Processes</h2>" in body.decode()
    assert page.streams.processes[0].process_id in body.decode()


POISON = suspect(deliveries=5, releases=5, released_by=("<b>a</b>", "b"), is_last=True, outcome=GONE)


def read_deliveries(group_id: str, from_ms: int, to_ms: int) -> DeliveryReport | None:
    record = counted([row("<b>a</b>", accepted=1_500, released=3)], (POISON,))
    return report(group_id, [(to_ms, record)], from_ms, to_ms) if group_id == "queue" else None


def without(group_id: str, since_ms: int) -> History:
    raise HistoryUnavailable(f"group {group_id} is unknown")


def test_share_group_of_the_brokers_has_a_page_of_its_deliveries() -> None:
    with serving(read=without, deliveries=DeliveriesCache(read_deliveries)) as listening:
        status, _, body = answer(listening, "/group?id=queue")
        assert status == 200
        text = body.decode()
        assert "orders-0@4711: delivered 5 times (limit 5), released 5 times by " in text
        assert "1 record fails, and others pass: probably poison" in text
        assert f">{thousands(1_500)}</td>" in text
        assert "<b>a</b>" not in text, "a member chooses its id"
        assert answer(listening, "/group?id=another")[0] == 404


def test_only_the_page_of_a_share_group_shows_deliveries() -> None:
    fleet = fleet_of(view_after("queue", 19), view("other"))
    with serving(fleet=fleet, read=without, deliveries=DeliveriesCache(read_deliveries)) as listening:
        shared, other = (answer(listening, f"/group?id={name}")[2].decode() for name in ("queue", "other"))
    assert "orders-0@4711" in shared
    assert "Members</h2>" in shared
    assert "Deliveries" not in other


def test_delivery_report_is_cached_for_some_seconds() -> None:
    asked: list[str] = []

    def count(group_id: str, from_ms: int, to_ms: int) -> DeliveryReport | None:
        asked.append(group_id)
        return read_deliveries(group_id, from_ms, to_ms)

    kept = DeliveriesCache(count)
    for at_ms in (0, CACHE_MS - 1, CACHE_MS):
        assert kept.report("queue", (at_ms, at_ms + 10 * CACHE_MS)) is not None
    assert len(asked) == 2
    for number in range(100):
        kept.report(f"g{number}", (0, 1))
    assert len(kept._reports) <= 32


def test_delivery_rows_beyond_the_limit_are_counted() -> None:
    def many(group_id: str, from_ms: int, to_ms: int) -> DeliveryReport | None:
        rows = [row("a", number, accepted=1) for number in range(700)]
        return report(group_id, [(from_ms, counted(rows, others=Counted()))], from_ms, to_ms)

    found = DeliveriesCache(many).view("queue", (0, 1))
    assert found is not None
    assert (len(found.rows), found.rows_left_out) == (500, 201)
