"""The page of share and streams groups that are observed."""

import pytest

from insight.page.fleet import Fleet
from insight.page.group import group_page
from insight.page.overview import Overview
from insight.why.course import course_of
from state.kafka.observed.view import view_of
from tests.harness.observed_log import REAL_OF_OTHERS, Watched, real_records
from tests.unit.insight.page_facts import LAYOUT, facts, take_view

BEGIN_MS, END_MS = (real_records(REAL_OF_OTHERS)[place].at_ms for place in (0, -1))


def watched(records: int) -> Watched:
    return Watched().take(real_records(REAL_OF_OTHERS)[:records])


def test_groups_are_listed_with_their_types() -> None:
    fleet = Fleet(LAYOUT)
    for group_id, records in (("queue", 19), ("counts", 56)):
        take_view(fleet, view_of(watched(records).groups[group_id], {}))
    lines = {line.group_id: line for line in Overview(fleet).lines(END_MS)}
    assert {name: (line.protocol, line.state, line.members) for name, line in lines.items()} == {
        "queue": ("share", "Stable", 2),
        "counts": ("streams", "Stable", 2),
    }


@pytest.mark.parametrize(
    ("group_id", "records", "protocol", "holds"),
    [
        ("queue", 19, "share", ["orders 0 3", "orders 1-2"]),
        ("counts", 56, "streams", ["active 0 0-1, standby 0 2-3", "active 0 2-3, standby 0 0-1"]),
    ],
)
def test_a_group_has_its_members_its_rebalances_and_its_picture(
    group_id: str, records: int, protocol: str, holds: list[str]
) -> None:
    seen = watched(records)
    view = view_of(seen.groups[group_id], {})
    page = group_page(facts(view), course_of(seen.of(group_id)), (BEGIN_MS - 1, END_MS), END_MS)
    assert (page.protocol, page.state, page.generation) == (protocol, "Stable", 4)
    assert sorted(member.holds for member in page.members) == holds
    assert page.rebalances[0].sentence.startswith("member joined: ")
    assert page.rebalances[0].moved == 2
    assert page.findings == []
    assert page.picture.lanes


def test_a_streams_group_that_is_not_ready_says_so() -> None:
    seen = watched(41)
    view = view_of(seen.groups["counts"], {})
    page = group_page(facts(view), course_of(seen.of("counts")), (BEGIN_MS - 1, END_MS), END_MS + 60_000)
    assert page.state == "NotReady"
    assert [one.sentence.split(",")[0] for one in page.findings] == [
        "Topics of its topology are missing or have wrong numbers of partitions"
    ]
