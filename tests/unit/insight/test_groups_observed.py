"""`groups list` and `describe` of share and streams groups that are observed."""

import pytest

from assignors.kafka.api import TopicPartition
from insight.admin.describe import member_rows, mentioned_partitions, state_row
from insight.admin.described import EpochsDescription, remark
from insight.admin.list_groups import select_groups
from insight.admin.observed import described
from insight.admin.render import member_table, state_table
from insight.admin.selection import parse_states, parse_types
from insight.assign.live import live_group
from insight.assign.model import InputError
from state.kafka.observed.view import view_of
from state.kafka.snapshot import GroupSnapshot
from tests.harness.observed_log import REAL_OF_OTHERS, Watched, real_records

STREAMS_STABLE, SHARE_STABLE = 56, 19
"""So many records of `REAL_OF_OTHERS` until the groups are Stable with two members."""


def view(group_id: str, records: int) -> GroupSnapshot:
    """The view of a group after so many records."""
    watched = Watched().take(real_records(REAL_OF_OTHERS)[:records])
    return view_of(watched.groups[group_id], {})


SHARE, STREAMS = view("queue", SHARE_STABLE), view("counts", STREAMS_STABLE)


def description(of: GroupSnapshot) -> EpochsDescription:
    found = described(of.group_id, of)
    assert isinstance(found, EpochsDescription)
    return found


@pytest.mark.parametrize(
    ("types", "expected"),
    [("share", ["queue"]), ("Streams", ["counts"]), ("classic", []), ("", ["counts", "queue"])],
)
def test_groups_are_listed_by_their_types_as_kafka_names_them(types: str, expected: list[str]) -> None:
    found = select_groups([STREAMS, SHARE], frozenset(), parse_types(types))
    assert [row.group for row in found] == expected


def test_a_streams_group_can_be_not_ready() -> None:
    not_ready = view("counts", 41)
    (row,) = select_groups([not_ready, SHARE], parse_states("notready"), frozenset())
    assert (row.group, row.type, row.state) == ("counts", "Streams", "NotReady")
    text = remark("counts", not_ready.state, not_ready.group_type)
    assert text is not None
    assert text.startswith("Warning: Streams group 'counts' is not ready: topics of its topology are missing")


def test_the_state_has_the_type_and_the_epochs() -> None:
    heading, line = state_table(state_row(description(SHARE), "requests", 0)).splitlines()
    assert heading.split()[-4:] == ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH", "#MEMBERS", "TYPE"]
    assert line.split() == ["queue", "requests", "(0)", "-", "Stable", "4", "4", "2", "Share"]
    assert state_row(description(STREAMS), "requests", 0).type == "Streams"


def test_members_of_a_streams_group_have_tasks() -> None:
    text = member_table(member_rows(description(STREAMS)), verbose=True)
    assert "active 0:0,1;standby 0:2,3" in text
    assert "active 0:2,3;standby 0:0,1" in text


def test_offsets_of_a_streams_group_are_those_of_what_active_tasks_read() -> None:
    assert mentioned_partitions(description(STREAMS), ()) == {TopicPartition("orders", n) for n in range(4)}


def test_a_member_of_a_share_group_waits_for_no_other_one() -> None:
    waiting = view("queue", 18)
    (sentence,) = state_row(description(waiting), "requests", 0).unsettled
    assert "it gets orders 1-2 at its next heartbeat" in sentence


@pytest.mark.parametrize("of", [SHARE, STREAMS])
def test_assign_is_for_groups_of_consumers(of: GroupSnapshot) -> None:
    with pytest.raises(InputError, match=f"group {of.group_id} is a {of.group_type} group"):
        live_group(description(of), {}, ())
