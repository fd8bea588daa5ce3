"""The lines of all groups: their order, what a reader selects, the shares of the last hour."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.snapshot import ConsumerGroupSnapshot, ConsumerMemberSnapshot, GroupSnapshot
from kafka_why.contract.rocketmq.history import ConnectionSnapshot
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.lag.definitions import LogBounds
from kafka_why.page.findings import Finding, FindingKind
from kafka_why.page.fleet import WINDOW_MS, Fleet
from kafka_why.page.members import (
    GROUPS_NAMED,
    MemberGrouping,
    MemberLine,
    Members,
    MembersSelection,
    columns_of,
    most_causes_sentence,
)
from kafka_why.page.overview import (
    INTERVALS,
    GroupLine,
    GroupProtocol,
    GroupSelection,
    Overview,
    OverviewThread,
    covered_fractions,
)
from kafka_why.why.state_timelines import Span
from tests.e2e.harness import wait_until
from tests.harness.examples import examples
from tests.unit.kafka_why.page_facts import (
    LAYOUT,
    facts_of,
    fleet_of,
    member,
    played,
    take_commit,
    take_entries,
    take_view,
    view,
)
from tests.unit.kafka_why.why_story import BEGIN_MS, END_MS, STORY

STEP_MS = WINDOW_MS // INTERVALS
NOW_MS = END_MS


def lines(fleet: Fleet, now_ms: int = NOW_MS) -> list[GroupLine]:
    return Overview(fleet).lines(now_ms)


def line(group_id: str, **fields: object) -> GroupLine:
    given = {
        "protocol": GroupProtocol.CLASSIC,
        "state": "Stable",
        "since_ms": 0,
        "members": 1,
        "lag_records": None,
        "lag_ms": None,
        "rebalances": 0,
        "not_stable": [],
        "changed_ms": None,
        "change": "",
        "findings": [],
    }
    return GroupLine(group_id=group_id, **given | fields)  # type: ignore[arg-type]


def test_groups_are_ordered_by_severity_then_by_rebalances() -> None:
    fleet = fleet_of(
        view("a-calm"),
        view("b-restless"),
        view("c-long", state="PreparingRebalance"),
        view("d-quarantined", quarantined="q"),
        view("e-gone"),
    )
    for group_id in ("b-restless", "e-gone"):
        take_entries(fleet, played(*STORY), NOW_MS, group_id)
    fleet.apply(LAYOUT.groups_topic, b"e-gone", None, 0)
    found = lines(fleet)
    assert [one.group_id for one in found] == ["d-quarantined", "c-long", "b-restless", "a-calm"]
    assert [one.is_unwell for one in found] == [True, True, False, False]


def test_overview_line_shows_everything_known_of_the_group() -> None:
    fleet = fleet_of(view(state_timestamp_ms=7, last_rebalance_at_ms=5, last_rebalance_reason="why"))
    for number in (0, 1, 2):
        take_commit(fleet, "g", ("t", number), 10, at_ms=NOW_MS)
    for at_ms, end in ((1_000, 10), (2_000, 15), (3_000, 16)):
        fleet.lags.add_bounds({("t", 0): LogBounds(0, 15), ("t", 1): LogBounds(0, end)}, at_ms)
    take_entries(fleet, played(*STORY), NOW_MS)
    (found,) = lines(fleet)
    assert (found.lag_records, found.lag_ms) == (11, 1_000)
    assert (found.since_ms, found.changed_ms, found.change, found.rebalances) == (7, 5, "why", 4)


def test_last_change_on_the_overview_names_the_client() -> None:
    """The reason of a view has ids, which on the page say less than the client's name."""
    fleet, entries = Fleet(LAYOUT), played(*STORY)
    added = next(entry for entry in entries if entry.member_id is not None)
    take_entries(fleet, entries, NOW_MS)
    overview = Overview(fleet)
    for reason, change in (
        (f"{added.member_id} joined", "worker-1 joined"),
        ("group emptied", "group emptied"),
    ):
        take_view(fleet, view(last_rebalance_at_ms=5, last_rebalance_reason=reason))
        (found,) = overview.lines(NOW_MS)
        assert found.change == change


def test_protocols_are_distinguished_and_rocketmq_groups_have_their_own_line() -> None:
    fleet = fleet_of(
        view("classic"), view("epochs", consumer=ConsumerGroupSnapshot(1, "uniform", {}, {}, [], []))
    )
    fleet.apply(LAYOUT.groups_topic, b"rocket", encode(rocketmq()), 0)
    found = {one.group_id: one for one in lines(fleet)}
    assert {name: one.protocol for name, one in found.items()} == {
        "classic": GroupProtocol.CLASSIC,
        "epochs": GroupProtocol.CONSUMER,
        "rocket": GroupProtocol.ROCKETMQ,
    }
    rocket = found["rocket"]
    assert (rocket.lag_records, rocket.rebalances, rocket.members, rocket.since_ms) == (None, 0, 0, 9)
    assert [one.kind for one in rocket.findings] == [FindingKind.QUARANTINED]


def rocketmq() -> RocketMqSnapshot:
    return RocketMqSnapshot(
        group_id="rocket",
        incarnation="i",
        seq=1,
        at_ms=9,
        message_model=None,
        consume_type=None,
        consume_from_where=None,
        consumers=[],
        producers=[],
        subscriptions={},
        request_modes={},
        duplicate_client_ids={},
        quarantined="q",
    )


@examples(200)
@given(st.lists(st.integers(-WINDOW_MS, 2 * WINDOW_MS), min_size=2, max_size=24, unique=True), st.booleans())
def test_time_fractions_add_up_to_the_time_within_the_window(times: list[int], is_open: bool) -> None:
    now_ms = BEGIN_MS + WINDOW_MS
    ends = sorted(times)[: len(times) // 2 * 2]
    spans = [Span("x", BEGIN_MS + a, BEGIN_MS + b) for a, b in zip(ends[::2], ends[1::2], strict=True)]
    if is_open:
        spans[-1] = Span("x", spans[-1].from_ms)
    found = covered_fractions(spans, now_ms)
    within_ms = sum(
        max(min(now_ms if s.to_ms is None else s.to_ms, now_ms) - max(s.from_ms, BEGIN_MS), 0) for s in spans
    )
    assert len(found) == (INTERVALS if within_ms else 0)
    assert all(0 <= share <= 1 for share in found)
    assert sum(found) * STEP_MS == pytest.approx(within_ms, abs=0.0005 * INTERVALS * STEP_MS + 1)


ALL = (
    line("Orders", members=3, lag_records=5, rebalances=1, changed_ms=9),
    line("billing", state="Empty", members=0, lag_records=70, changed_ms=3),
    line(
        "audit",
        protocol=GroupProtocol.CONSUMER,
        members=9,
        findings=[Finding(FindingKind.STUCK, "s")],
        rebalances=4,
    ),
)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (GroupSelection(), ["Orders", "billing", "audit"]),
        (GroupSelection(text="oRD"), ["Orders"]),
        (GroupSelection(state="Empty"), ["billing"]),
        (GroupSelection(state="unwell"), ["audit"]),
        (GroupSelection(protocol="consumer"), ["audit"]),
        (GroupSelection(protocol="consumer", state="Empty"), []),
        (GroupSelection(sort="name"), ["Orders", "audit", "billing"]),
        (GroupSelection(sort="state"), ["billing", "Orders", "audit"]),
        (GroupSelection(sort="members"), ["audit", "Orders", "billing"]),
        (GroupSelection(sort="lag"), ["billing", "Orders", "audit"]),
        (GroupSelection(sort="rebalances"), ["audit", "Orders", "billing"]),
        (GroupSelection(sort="changed"), ["Orders", "billing", "audit"]),
        (GroupSelection(sort="there is no such"), ["Orders", "billing", "audit"]),
    ],
)
def test_overview_filters_and_sorts_lines(selection: GroupSelection, expected: list[str]) -> None:
    assert [one.group_id for one in selection.select(ALL)] == expected


def test_overview_version_is_never_newer_than_its_lines() -> None:
    """A page that had the fleet's own would count as new, and would not ask for what the lines lack."""
    fleet = fleet_of(view())
    thread = OverviewThread(fleet)
    assert (thread.version, thread.lines) == (0, []) and fleet.version > 0
    thread.start()
    try:
        for _ in range(2):
            wait_until(lambda: thread.version == fleet.version, "lines of all that is known")
            known = {facts.group_id for facts in fleet.all_facts()}
            assert {one.group_id for one in thread.lines} == known
            take_view(fleet, view("newer"))
    finally:
        thread.stop()


def members_of(fleet: Fleet, now_ms: int = END_MS) -> Members:
    overview = Overview(fleet)
    overview.lines(now_ms)
    return overview.members


def line_of(members: Members, name: str, by: MemberGrouping = MemberGrouping.CLIENT) -> MemberLine:
    (found,) = [member_line for member_line in members.lines[by] if member_line.name == name]
    return found


def storied(*group_ids: str) -> Fleet:
    """Groups of that story: worker-1 and worker-4 join, worker-3 times out, worker-4 leaves."""
    fleet = fleet_of(*map(view, group_ids))
    for group_id in group_ids:
        take_entries(fleet, played(*STORY), END_MS, group_id)
    return fleet


def test_client_line_counts_its_rebalances_in_all_groups_by_cause() -> None:
    members = members_of(storied("a", "b"))
    worker = line_of(members, "worker-4")
    assert (worker.rebalances, worker.causes) == (4, {"member joined": 2, "member left": 2})
    assert [*columns_of(worker)] == [0, 2, 2, 0]
    assert [(group.group_id, group.rebalances) for group in worker.groups] == [("a", 2), ("b", 2)]
    assert [*columns_of(line_of(members, "worker-3"))] == [2, 0, 0, 0]
    assert members.rebalances == 8
    assert most_causes_sentence(members, MemberGrouping.CLIENT) == (
        "worker-4 caused 4 of the 8 rebalances of the last hour: 2 x member joined, 2 x member left."
    )


def test_clients_with_equal_counts_are_ranked_by_timeouts() -> None:
    fleet = fleet_of(view(members=[replace(member("m"), client_id="worker-1")]))
    story = [entry for entry in played(*STORY) if entry.at_ms < END_MS - 40_000]
    take_entries(fleet, story, END_MS)
    members = members_of(fleet)
    assert [member_line.name for member_line in members.lines[MemberGrouping.CLIENT][:2]] == [
        "worker-3",
        "worker-1",
    ]
    assert most_causes_sentence(members, MemberGrouping.CLIENT) == (
        "worker-3 and 1 other client each caused 1 of the 2 rebalances of the last hour."
    )


def test_rebalances_without_a_known_client_are_counted_separately() -> None:
    fleet = fleet_of(view())
    nameless = [replace(entry, client_id=None, client_host=None) for entry in played(*STORY)]
    take_entries(fleet, nameless, END_MS)
    members = members_of(fleet)
    assert members.of_nobody == {"member joined": 2, "session timeout": 1, "member left": 1}
    assert members.lines == {MemberGrouping.CLIENT: [], MemberGrouping.HOST: []}
    assert most_causes_sentence(members, MemberGrouping.HOST) == (
        "No host is known to have caused one of the 4 rebalances of the last hour."
    )


def test_members_and_partitions_are_summed_over_groups() -> None:
    two = member("m", ("t", 0), ("t", 1))
    other = replace(two, member_id="o", client_id="other")
    members = members_of(fleet_of(view("a", members=[two, member("n")]), view("b", members=[other])))
    worker, host = line_of(members, "worker"), line_of(members, "/10.0.0.7", MemberGrouping.HOST)
    assert (worker.members, worker.partitions, worker.groups_number) == (2, 2, 1)
    assert (host.members, host.partitions, host.groups_number) == (3, 4, 2)


HELD = ConsumerMemberSnapshot(3, 2, "Stable", None, ["t"], "", None, {"t": [0, 1, 2]}, {}, {})


@pytest.mark.parametrize(
    ("group", "partitions"),
    [
        pytest.param(
            view(
                consumer=ConsumerGroupSnapshot(1, "uniform", {}, {}, [], []),
                members=[replace(member("m"), consumer=HELD)],
            ),
            3,
            id="of the consumer protocol",
        ),
        pytest.param(view(members=[replace(member("m"), assignment=b"?")]), None, id="unreadable"),
        pytest.param(
            view(members=[replace(member("m"), assignment=b"?")], protocol_type="connect"),
            None,
            id="of another protocol type",
        ),
    ],
)
def test_unknown_partitions_are_not_shown_as_zero(group: GroupSnapshot, partitions: int | None) -> None:
    assert line_of(members_of(fleet_of(group)), "worker").partitions == partitions


def test_listed_rebalance_hides_the_owners_until_the_group_is_stable_again() -> None:
    stable = view(members=[member("m", ("orders", 0))])
    fleet, owners = fleet_of(stable), []
    for state in (None, "PreparingRebalance", "Stable"):
        if state is not None:
            fleet.set_view("g", replace(stable, state=state))
        owners.append(dict(facts_of(fleet).ownership.holders))
    assert owners == [{("orders", 0): "m"}, {}, {("orders", 0): "m"}]


def test_rocketmq_clients_have_unknown_host_and_partitions() -> None:
    fleet = Fleet(LAYOUT)
    there = [ConnectionSnapshot(f"c{n}", "A", "JAVA", 401) for n in (1, 2)]
    fleet.apply(LAYOUT.groups_topic, b"rocket", encode(replace(rocketmq(), consumers=there)), 0)
    members = members_of(fleet)
    assert (line_of(members, "A").members, line_of(members, "A").partitions) == (1, None)
    assert members.lines[MemberGrouping.HOST] == []


def test_client_line_names_its_groups_with_most_rebalances_and_counts_the_rest() -> None:
    names = [f"g{number}" for number in range(GROUPS_NAMED + 3)]
    fleet = storied(names[-1])
    for name in names:
        take_view(fleet, view(name, members=[replace(member("m"), client_id="worker-4")]))
    worker = line_of(members_of(fleet), "worker-4")
    assert worker.groups_number == len(names)
    assert [group.group_id for group in worker.groups] == [names[-1], *names[: GROUPS_NAMED - 1]]


def member_line(name: str, **causes: int) -> MemberLine:
    return MemberLine(
        name=name,
        members=len(name),
        partitions=None,
        rebalances=sum(causes.values()),
        causes={kind.replace("_", " "): number for kind, number in causes.items()},
        groups_number=1,
        groups=[],
    )


CLIENTS = [
    member_line("Web-1", session_timeout=2),
    member_line("batch", member_left=1),
    member_line("web-22", member_joined=1),
]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (MembersSelection(), ["Web-1", "web-22", "batch"]),
        (MembersSelection(text="wEB"), ["Web-1", "web-22"]),
        (MembersSelection(by=MemberGrouping.HOST), []),
        (MembersSelection(sort="name"), ["Web-1", "batch", "web-22"]),
        (MembersSelection(sort="members"), ["web-22", "Web-1", "batch"]),
        (MembersSelection(sort="timeouts"), ["Web-1", "batch", "web-22"]),
        (MembersSelection(sort="joins"), ["web-22", "Web-1", "batch"]),
        (MembersSelection(sort="leaves"), ["batch", "Web-1", "web-22"]),
        (MembersSelection(sort="there is no such"), ["Web-1", "batch", "web-22"]),
    ],
)
def test_members_page_filters_and_sorts_lines(selection: MembersSelection, expected: list[str]) -> None:
    members = Members(lines={MemberGrouping.CLIENT: CLIENTS, MemberGrouping.HOST: []})
    assert [one.name for one in selection.select(members)] == expected
