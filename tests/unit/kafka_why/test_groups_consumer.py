"""The tables of groups that go by epochs, of this coordinator and of others that are observed."""

from typing import Any
from uuid import UUID

import pytest
from msgspec import UNSET, UnsetType

from kafka_why.assign.model import InputError
from kafka_why.contract.kafka.responses import (
    AssignedTopicPartitions,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMemberDescription,
)
from kafka_why.contract.kafka.snapshot import GroupSnapshot, StreamsSnapshot
from kafka_why.contract.kafka.streams_responses import (
    NO_TASKS,
    StreamsAssignment,
    StreamsEndpoint,
    StreamsGroupDescribeResponse,
    StreamsGroupMemberDescription,
    TaskIds,
    TaskOffset,
)
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.describe import (
    member_rows,
    mentioned_partitions,
    partition_rows,
    state_remark,
    state_row,
)
from kafka_why.groups.list_groups import (
    GroupOffsets,
    OffsetWithEpoch,
    list_row,
    parse_states,
    parse_types,
    select_groups,
)
from kafka_why.groups.render import member_table, partition_table, state_table
from kafka_why.lag.definitions import LogBounds
from operations.admin.answers import snapshot_of
from operations.assign.compare import live_group, subscribed_topics
from tests.harness.observed_log import view_after
from tests.unit.kafka_why.page_facts import looks


def partitions(**topics: list[int]) -> list[AssignedTopicPartitions]:
    return [AssignedTopicPartitions(UUID(int=len(name)), n, name) for name, n in topics.items()]


def member(
    name: str, epoch: int, assigned: dict[str, list[int]], target: dict[str, list[int]], **others: Any
) -> ConsumerGroupMemberDescription:
    given: dict[str, Any] = {
        "instance_id": None,
        "rack_id": None,
        "subscribed_topic_names": ["orders"],
        "subscribed_topic_regex": "",
        "member_type": 1,
        **others,
    }
    return ConsumerGroupMemberDescription(
        member_id=f"{name}-1f0e",
        member_epoch=epoch,
        client_id=name,
        client_host="10.0.0.7",
        assignment=partitions(**assigned),
        target_assignment=partitions(**target),
        **given,
    )


def group(*members: ConsumerGroupMemberDescription, **others: Any) -> GroupSnapshot:
    given: dict[str, Any] = {
        "group_state": "Reconciling",
        "group_epoch": 7,
        "assignment_epoch": 7,
        "assignor_name": "uniform",
        **others,
    }
    return snapshot_of(
        ConsumerGroupDescribeResponse(
            group_id="billing",
            correlation_id="",
            request="",
            error_code=ErrorCode.NONE,
            members=list(members),
            **given,
        )
    )


ALICE = member("alice", 6, {"orders": [0, 1, 2]}, {"orders": [0, 1]})
BOB = member("bob", 7, {}, {"orders": [2, 3]}, subscribed_topic_names=[], subscribed_topic_regex="ord.*")
CAROL = member("carol", 7, {"prices": [0]}, {"prices": [0]}, instance_id="till", member_type=0)
MOVING = group(ALICE, BOB, CAROL)


def test_member_table_shows_epochs_current_and_target_assignment() -> None:
    assert list_row(MOVING).is_of_consumers
    assert [m.group_instance_id for m in MOVING.members] == [None, None, "till"]
    assert member_table(member_rows(MOVING), verbose=True) == looks("""
GROUP           CONSUMER-ID     GROUP-INSTANCE-ID HOST            CLIENT-ID       #PARTITIONS     CURRENT-EPOCH   CURRENT-ASSIGNMENT   TARGET-EPOCH    TARGET-ASSIGNMENT    UPGRADED SUBSCRIPTION
billing         alice-1f0e                        10.0.0.7        alice           3               6               orders:0,1,2         7               orders:0,1           true     orders
billing         bob-1f0e                          10.0.0.7        bob             0               7               -                    7               orders:2,3           true     /ord.*/
billing         carol-1f0e      till              10.0.0.7        carol           1               7               prices:0             7               prices:0             false    orders
    """)  # noqa: E501
    assert "UPGRADED" not in member_table(member_rows(group(ALICE, BOB)), verbose=True)
    assert "EPOCH" not in member_table(member_rows(MOVING), verbose=False)


def test_state_table_shows_what_the_group_waits_for() -> None:
    assert state_remark("billing", MOVING.state) == "Warning: Consumer group 'billing' is rebalancing."
    assert state_table(state_row(MOVING, "coordinator-requests", 3)) == looks("""
GROUP           COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE                GROUP-EPOCH     TARGET-ASSIGNMENT-EPOCH   #MEMBERS TYPE
billing         coordinator-requests (3)  uniform              Reconciling          7               7                         3        Consumer

Not at the target assignment: 2 of 3 members
  alice-1f0e (alice at 10.0.0.7) is at epoch 6 of 7: it has to give up orders 2
  bob-1f0e (bob at 10.0.0.7) is at epoch 7 of 7: it gets orders 3 at its next heartbeat; it waits for orders 2 of alice-1f0e

On the classic protocol: 1 of 3 members. The conversion to the consumer
protocol is complete when these have left, or have joined again with it:
  carol-1f0e
The way back is complete when the other 2 have left, or have joined again with the
classic protocol, if group.consumer.migration.policy allows it.
    """)  # noqa: E501


def test_partition_rows_follow_the_current_assignment_of_members() -> None:
    committed = GroupOffsets(
        {
            TopicPartition("orders", 0): OffsetWithEpoch(5, 3),
            TopicPartition("gone", 0): OffsetWithEpoch(1, -1),
        }
    )
    assert mentioned_partitions(MOVING, committed) == {
        *(TopicPartition("orders", n) for n in range(3)),
        TopicPartition("prices", 0),
        TopicPartition("gone", 0),
    }
    table = partition_table(
        partition_rows(MOVING, committed, {TopicPartition("orders", 0): LogBounds(0, 8)}), verbose=False
    )
    assert table.splitlines()[1].split() == [
        *("billing", "orders", "0", "5", "8", "3", "alice-1f0e", "10.0.0.7", "alice")
    ]
    pending = GroupOffsets(pending={TopicPartition("orders", 0): 7})
    assert "PENDING-OFFSET" in partition_table(partition_rows(group(), pending, {}), verbose=False)


def test_assign_accepts_a_group_that_is_reconciling() -> None:
    """`assign` knows the subscriptions of these groups in every state."""
    counts = {"orders": 4, "ord": 1, "prices": 2}
    assert subscribed_topics(MOVING, counts) == {"orders", "ord"}
    asked = live_group(MOVING, {name: counts[name] for name in ("ord", "orders")}, [])
    assert asked.members["bob-1f0e"].topics == ("ord", "orders")
    assert asked.members["carol-1f0e"].instance_id == "till"
    assert asked.current is not None
    assert asked.current["alice-1f0e"] == {TopicPartition("orders", n) for n in range(3)}
    with pytest.raises(InputError, match="has no members"):
        live_group(group(group_state="Empty"), counts, [])


def test_assign_refuses_a_member_whose_pattern_is_invalid_in_re2() -> None:
    """The topic watcher has found that, because no gateway could when the member joined."""
    bad = member("bob", 7, {}, {}, subscribed_topic_names=[], subscribed_topic_regex="(")
    with pytest.raises(InputError, match=r"the pattern '\(' of member bob-1f0e has no result"):
        subscribed_topics(group(bad), ["orders"])


STREAMS_STABLE, SHARE_STABLE = 56, 19
"""So many records of `REAL_OF_OTHERS` until the groups are Stable with two members."""


SHARE, STREAMS = view_after("queue", SHARE_STABLE), view_after("counts", STREAMS_STABLE)


@pytest.mark.parametrize(
    ("types", "expected"),
    [("share", ["queue"]), ("Streams", ["counts"]), ("classic", []), ("", ["counts", "queue"])],
)
def test_groups_are_listed_with_kafkas_type_names(types: str, expected: list[str]) -> None:
    found = select_groups(map(list_row, [STREAMS, SHARE]), frozenset(), parse_types(types))
    assert [row.group for row in found] == expected


def test_streams_group_without_its_topics_is_shown_as_not_ready() -> None:
    not_ready = view_after("counts", 41)
    (row,) = select_groups(map(list_row, [not_ready, SHARE]), parse_states("notready"), frozenset())
    assert (row.group, row.type, row.state) == ("counts", "Streams", "NotReady")
    text = state_remark("counts", not_ready.state, not_ready.group_type)
    assert text is not None
    assert text.startswith("Warning: Streams group 'counts' is not ready: topics of its topology are missing")


def test_member_table_of_a_streams_group_shows_tasks() -> None:
    text = member_table(member_rows(STREAMS), verbose=True)
    assert "active 0:0,1;standby 0:2,3" in text
    assert "active 0:2,3;standby 0:0,1" in text


def test_offsets_of_a_streams_group_cover_topics_read_by_active_tasks() -> None:
    assert mentioned_partitions(STREAMS, GroupOffsets()) == {TopicPartition("orders", n) for n in range(4)}


def test_share_group_member_does_not_wait_for_other_members() -> None:
    waiting = view_after("queue", 18)
    (sentence,) = state_row(waiting, "requests", 0).unsettled
    assert "it gets orders 1-2 at its next heartbeat" in sentence


def test_assign_refuses_share_groups() -> None:
    with pytest.raises(InputError, match="group queue is a share group"):
        live_group(SHARE, {}, ())


def test_state_of_a_streams_group_has_its_processes() -> None:
    row = state_row(STREAMS, "requests", 0)
    assert row.streams is not None
    assert [(one.members, one.active, one.standby, one.warm_up) for one in row.streams.processes] == [
        (1, 2, 2, 0),
        (1, 2, 2, 0),
    ]
    shown = state_table(row)
    assert "PROCESS                              HOST            #MEMBERS #ACTIVE #STANDBY #WARM-UP" in shown
    assert row.streams.stale_members == []


def streams_member(name: str, process: str, **others: Any) -> StreamsGroupMemberDescription:
    given: dict[str, Any] = {
        "assignment": NO_TASKS,
        "target_assignment": NO_TASKS,
        "task_offsets": [],
        "task_end_offsets": [],
        **others,
    }
    return StreamsGroupMemberDescription(
        member_id=name,
        member_epoch=7,
        instance_id=None,
        rack_id=None,
        client_id=name,
        client_host="10.0.0.7",
        topology_epoch=0,
        process_id=process,
        user_endpoint=StreamsEndpoint("h", 1) if process == "p1" else None,
        client_tags=[],
        **given,
    )


def streams_group(
    *members: StreamsGroupMemberDescription,
    pending: dict[str, StreamsAssignment] | UnsetType = UNSET,
    **details: Any,
) -> GroupSnapshot:
    given: dict[str, Any] = {"topology_epoch": 0, "validated_topology_epoch": 0, **details}
    return snapshot_of(
        StreamsGroupDescribeResponse(
            group_id="counts",
            correlation_id="",
            request="",
            error_code=ErrorCode.NONE,
            group_state="Reconciling",
            group_epoch=7,
            assignment_epoch=7,
            assignor_name="sticky",
            members=list(members),
            pending=pending,
            streams=StreamsSnapshot(subtopologies={"0": ["orders"]}, assignment_configs={}, **given),
        )
    )


def tasks(active: tuple[int, ...] = (), standby: tuple[int, ...] = ()) -> StreamsAssignment:
    return StreamsAssignment(
        [TaskIds("0", list(active))] if active else [], [TaskIds("0", list(standby))] if standby else [], []
    )


def test_state_table_of_a_streams_group_explains_missing_tasks() -> None:
    found = streams_group(
        streams_member("t1", "p1"),
        not_ready="Source topics are missing: orders.",
        shutdown_requested_by="t1",
        initial_deadline_ms=5_000,
        topology_epoch=3,
    )
    shown = state_table(state_row(found, "requests", 0))
    assert "No member has a task: Source topics are missing: orders." in shown
    assert "The first target waits for more members" in shown
    assert "Member t1 has asked to shut the application down." in shown
    assert "With an older topology than the group's:\n  t1\n" in shown
    assert "h:1" in shown


def test_member_waits_only_for_task_copies_in_its_own_process() -> None:
    """A thread of p1 waits for the other one to close its copy. The copies in p2 are no reason to wait."""
    found = streams_group(
        streams_member("a", "p1"),
        streams_member("b", "p2", assignment=tasks(standby=(1, 2)), target_assignment=tasks(standby=(1, 2))),
        streams_member("c", "p1", target_assignment=tasks(active=(1,), standby=(2,))),
        pending={"a": tasks(standby=(1,))},
    )
    giving, waiting = state_row(found, "requests", 0).unsettled
    assert giving.endswith("it has to give up standby 0 1")
    assert "it gets standby 0 2 at its next heartbeat; it waits for active 0 1 of a" in waiting


def test_task_state_behind_its_changelog_is_listed_as_reported() -> None:
    at = [TaskOffset("0", 1, 40), TaskOffset("0", 2, 70), TaskOffset("0", 3, 9)]
    ends = [TaskOffset("0", 1, 1_240), TaskOffset("0", 2, 70)]
    row = state_row(streams_group(streams_member("a", "p1", task_offsets=at, task_end_offsets=ends)), "r", 0)
    assert row.streams is not None
    assert row.streams.behind == {"0_1": {"a": 1_200}}
    assert "as members last reported it:\n  0_1: 1200 records at a\n" in state_table(row)
