"""Clients and hosts across groups: their members, and the rebalances of the last hour that they caused."""

import pytest
from msgspec.structs import replace

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.snapshot import ConsumerGroupSnapshot, ConsumerMemberSnapshot, GroupSnapshot
from kafka_why.contract.rocketmq.history import ConnectionSnapshot
from kafka_why.page.fleet import Fleet
from kafka_why.page.members import (
    GROUPS_NAMED,
    MemberGrouping,
    MemberLine,
    Members,
    MembersSelection,
    columns_of,
    sentence,
)
from kafka_why.page.overview import Overview
from tests.unit.kafka_why.page_facts import LAYOUT, fleet_of, member, played, take_entries, take_view, view
from tests.unit.kafka_why.test_page_overview import rocketmq
from tests.unit.kafka_why.why_story import END_MS, STORY


def members_of(fleet: Fleet, now_ms: int = END_MS) -> Members:
    overview = Overview(fleet)
    overview.lines(now_ms)
    return overview.members


def line_of(members: Members, name: str, by: MemberGrouping = MemberGrouping.CLIENT) -> MemberLine:
    (found,) = [line for line in members.lines[by] if line.name == name]
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
    assert sentence(members, MemberGrouping.CLIENT) == (
        "worker-4 caused 4 of the 8 rebalances of the last hour: 2 x member joined, 2 x member left."
    )


def test_clients_with_equal_counts_are_ranked_by_timeouts() -> None:
    fleet = fleet_of(view(members=[replace(member("m"), client_id="worker-1")]))
    story = [entry for entry in played(*STORY) if entry.at_ms < END_MS - 40_000]
    take_entries(fleet, story, END_MS)
    members = members_of(fleet)
    assert [line.name for line in members.lines[MemberGrouping.CLIENT][:2]] == ["worker-3", "worker-1"]
    assert sentence(members, MemberGrouping.CLIENT) == (
        "worker-3 and 1 other client each caused 1 of the 2 rebalances of the last hour."
    )


def test_rebalances_without_a_known_client_are_counted_separately() -> None:
    fleet = fleet_of(view())
    nameless = [replace(entry, client_id=None, client_host=None) for entry in played(*STORY)]
    take_entries(fleet, nameless, END_MS)
    members = members_of(fleet)
    assert members.of_nobody == {"member joined": 2, "session timeout": 1, "member left": 1}
    assert members.lines == {MemberGrouping.CLIENT: [], MemberGrouping.HOST: []}
    assert sentence(members, MemberGrouping.HOST) == (
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


def line(name: str, **causes: int) -> MemberLine:
    return MemberLine(
        name=name,
        members=len(name),
        partitions=None,
        rebalances=sum(causes.values()),
        causes={kind.replace("_", " "): number for kind, number in causes.items()},
        groups_number=1,
        groups=[],
    )


ALL = [line("Web-1", session_timeout=2), line("batch", member_left=1), line("web-22", member_joined=1)]


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
    members = Members(lines={MemberGrouping.CLIENT: ALL, MemberGrouping.HOST: []})
    assert [one.name for one in selection.of(members)] == expected
