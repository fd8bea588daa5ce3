"""The tables' text, from responses of the coordinator."""

from typing import Any

import pytest
from msgspec.structs import replace

from kafka_why.contract.codec import encode
from kafka_why.contract.history_reader import AnyView, GroupTable, decode_any_snapshot, decode_configs
from kafka_why.contract.kafka.responses import DescribedMember, DescribeGroupResponse
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.messages import ErrorCode, SettingValue
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from kafka_why.groups.describe import (
    lag_summary,
    member_rows,
    mentioned_partitions,
    partition_rows,
    state_remark,
    state_row,
    with_lags,
)
from kafka_why.groups.list_groups import (
    GroupOffsets,
    OffsetWithEpoch,
    consumer_groups,
    list_row,
    parse_protocols,
    parse_states,
    parse_types,
    select_groups,
)
from kafka_why.groups.render import (
    OffsetDeletion,
    Removal,
    ResetRow,
    member_table,
    offset_deletion_table,
    partition_table,
    removal_table,
    reset_table,
    state_table,
)
from kafka_why.lag.definitions import LogBounds
from kafka_why.why.share_state import difference_notes
from operations.admin.answers import snapshot_of
from state.dispatch import kind_of
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.group import ConfigsOnly
from tests.unit.kafka_why.page_facts import looks, view


def assigned(*partitions: tuple[str, int]) -> bytes:
    return encode_assignment(Assignment(tuple(TopicPartition(*p) for p in partitions)))


def member(name: str, assignment: bytes, instance_id: str | None = None) -> DescribedMember:
    return DescribedMember(f"{name}-1f0e", instance_id, name, "10.0.0.7", b"", assignment)


def group(*members: DescribedMember, **others: Any) -> GroupSnapshot:
    given = {"group_state": "Stable", "protocol_type": "consumer", "protocol_data": "range", **others}
    return snapshot_of(
        DescribeGroupResponse(
            group_id="billing",
            correlation_id="",
            request="",
            error_code=ErrorCode.NONE,
            members=list(members),
            **given,
        )
    )


TWO = group(
    member("alice", assigned(("orders", 2))),
    member("bob", assigned(("orders", 0), ("invoices-of-all-customers", 0)), "pod-0"),
    member("carol", b""),
)
COMMITTED = GroupOffsets(
    {
        TopicPartition("orders", 0): OffsetWithEpoch(5, 3),
        TopicPartition("orders", 2): OffsetWithEpoch(9, -1),
        TopicPartition("gone", 4): OffsetWithEpoch(1, 0),
    }
)
BOUNDS = {
    TopicPartition("orders", 0): LogBounds(0, 12),
    TopicPartition("orders", 2): LogBounds(0, 9),
    TopicPartition("invoices-of-all-customers", 0): LogBounds(0, 100),
}


def test_partition_table_lists_assigned_partitions_before_unassigned_ones() -> None:
    assert mentioned_partitions(TWO, COMMITTED) == BOUNDS.keys() | COMMITTED.committed.keys()
    rows = partition_rows(TWO, COMMITTED, BOUNDS)
    assert partition_table(rows, verbose=False) == looks("""
GROUP           TOPIC                     PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID     HOST            CLIENT-ID
billing         invoices-of-all-customers 0          -               100             -               bob-1f0e        10.0.0.7        bob
billing         orders                    0          5               12              7               bob-1f0e        10.0.0.7        bob
billing         orders                    2          9               9               0               alice-1f0e      10.0.0.7        alice
billing         gone                      4          1               -               -               -               -               -
    """)  # noqa: E501
    assert partition_table(rows[1:3], verbose=True) == looks("""
GROUP           TOPIC           PARTITION  LEADER-EPOCH    CURRENT-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID     HOST            CLIENT-ID
billing         orders          0          3               5               12              7               bob-1f0e        10.0.0.7        bob
billing         orders          2          -               9               9               0               alice-1f0e      10.0.0.7        alice
    """)  # noqa: E501


def test_pending_offset_has_a_column_even_without_a_commit() -> None:
    zero, one = TopicPartition("orders", 0), TopicPartition("orders", 1)
    offsets = GroupOffsets({zero: OffsetWithEpoch(5, 3)}, {zero: 7, one: 8})
    assert mentioned_partitions(group(), offsets) == {zero, one}
    rows = partition_rows(group(), offsets, BOUNDS)
    assert partition_table(rows, verbose=False) == looks("""
GROUP           TOPIC           PARTITION  CURRENT-OFFSET  PENDING-OFFSET  LOG-END-OFFSET  LAG             CONSUMER-ID     HOST            CLIENT-ID
billing         orders          0          5               7               12              7               -               -               -
billing         orders          1          -               8               -               -               -               -               -
    """)  # noqa: E501


GROUPS = [
    view("a"),
    view("b", state="Empty", protocol_type=None),
    view("c", state="Empty", protocol_type=""),
    view("d", protocol_type="connect"),
]


def test_lag_seconds_column_is_shown_on_request() -> None:
    rows = partition_rows(TWO, COMMITTED, BOUNDS, {(TopicPartition("orders", 0), 5): 61_500})
    assert partition_table(rows[1:], verbose=False) == looks("""
GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             LAG-SECONDS     CONSUMER-ID     HOST            CLIENT-ID
billing         orders          0          5               12              7               61.5            bob-1f0e        10.0.0.7        bob
billing         orders          2          9               9               0               0.0             alice-1f0e      10.0.0.7        alice
billing         gone            4          1               -               -               -               -               -               -
    """)  # noqa: E501
    assert member_table(with_lags(member_rows(TWO), rows), verbose=False) == looks("""
GROUP           CONSUMER-ID     GROUP-INSTANCE-ID HOST            CLIENT-ID       #PARTITIONS     LAG             LAG-SECONDS
billing         alice-1f0e                        10.0.0.7        alice           1               0               0.0
billing         bob-1f0e        pod-0             10.0.0.7        bob             2               7               61.5
billing         carol-1f0e                        10.0.0.7        carol           0               -               -
    """)  # noqa: E501
    state = replace(state_row(TWO, "requests", 3), behind=lag_summary(rows))
    assert state_table(state) == looks("""
GROUP           COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE                #MEMBERS LAG             LAG-SECONDS     TYPE
billing         requests (3)              range                Stable               3        7               61.5            Classic
    """)  # noqa: E501


def test_instance_id_column_is_shown_if_a_member_has_one() -> None:
    assert member_table(member_rows(TWO), verbose=True) == looks("""
GROUP           CONSUMER-ID     GROUP-INSTANCE-ID HOST            CLIENT-ID       #PARTITIONS     ASSIGNMENT
billing         alice-1f0e                        10.0.0.7        alice           1               orders:2
billing         bob-1f0e        pod-0             10.0.0.7        bob             2               invoices-of-all-customers:0;orders:0
billing         carol-1f0e                        10.0.0.7        carol           0               -
    """)  # noqa: E501
    dynamic = group(member("alice", assigned(("orders", 10), ("orders", 9))))
    assert member_table(member_rows(dynamic), verbose=False) == looks("""
GROUP           CONSUMER-ID     HOST            CLIENT-ID       #PARTITIONS
billing         alice-1f0e      10.0.0.7        alice           2
    """)


def test_undecodable_assignment_is_shown_without_partitions() -> None:
    strange = group(member("alice", b"everything"))
    assert [row.partitions for row in member_rows(strange)] == [None]
    assert partition_rows(strange, GroupOffsets(), {}) == []
    assert member_table(member_rows(strange), verbose=True).splitlines()[1].split()[-2:] == ["-", "-"]


def test_state_table_of_a_classic_group_is_printed() -> None:
    assert state_table(state_row(TWO, "group-coordinator-requests", 3)) == looks("""
GROUP           COORDINATOR (ID)               ASSIGNMENT-STRATEGY  STATE                #MEMBERS TYPE
billing         group-coordinator-requests (3) range                Stable               3        Classic
    """)
    empty = group(group_state="Empty", protocol_data="")
    assert " ".join(state_table(state_row(empty, "r", 0)).splitlines()[1].split()) == (
        "billing r (0) - Empty 0 Classic"
    )


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("Stable", None),
        ("Empty", "Consumer group 'g' has no active members."),
        ("Dead", "Error: Consumer group 'g' does not exist."),
        ("PreparingRebalance", "Warning: Consumer group 'g' is rebalancing."),
        ("CompletingRebalance", "Warning: Consumer group 'g' is rebalancing."),
    ],
)
def test_group_state_has_its_explanation(state: str, said: str | None) -> None:
    assert state_remark("g", state) == said


@pytest.mark.parametrize(
    ("states", "types", "protocols", "expected"),
    [
        ("", "", "", "abcd"),
        ("stable", "", "", "ad"),
        ("stable,empty", "classic,consumer", "", "abcd"),
        ("", "consumer", "", ""),
        ("", "", "connect, sr", "d"),
        ("empty", "", "connect", ""),
    ],
)
def test_list_shows_every_protocol_type(states: str, types: str, protocols: str, expected: str) -> None:
    rows = select_groups(
        map(list_row, GROUPS), parse_states(states), parse_types(types), parse_protocols(protocols)
    )
    assert "".join(row.group for row in rows) == expected
    assert "".join(group.group_id for group in consumer_groups(GROUPS)) == "abc"


def test_reset_and_deletion_tables_list_each_partition() -> None:
    assert reset_table([ResetRow(group="g", topic="orders", partition=0, new_offset=7)]) == looks("""
GROUP           TOPIC           PARTITION  NEW-OFFSET
g               orders          0          7
    """)
    deletions = [
        OffsetDeletion(topic="gone", partition=None, error="UNKNOWN_TOPIC_OR_PARTITION"),
        OffsetDeletion(topic="orders", partition=0, error=None),
    ]
    assert offset_deletion_table(deletions) == looks("""
TOPIC           PARTITION  STATUS
gone            -          Error: UNKNOWN_TOPIC_OR_PARTITION: the topic or partition does not exist
orders          0          Successful
    """)
    removals = [
        Removal(group="g", consumer_id=None, group_instance_id="pod-0", error=None),
        Removal(group="g", consumer_id="m-1", group_instance_id=None, error="UNKNOWN_MEMBER_ID"),
    ]
    assert removal_table(removals) == looks("""
GROUP           CONSUMER-ID     GROUP-INSTANCE-ID STATUS
g               -               pod-0             Successful
g               m-1             -                 Error: UNKNOWN_MEMBER_ID: the group has no such member
    """)


def test_settings_of_a_nonexistent_group_are_stored_but_not_listed() -> None:
    own: dict[str, SettingValue] = {
        "consumer.assignment.interval.ms": 0,
        "share.auto.offset.reset": "earliest",
    }
    member = {"m": ConsumerMember("m")}
    groups: GroupTable[AnyView] = GroupTable(decode_any_snapshot)
    configs = GroupTable(decode_configs)
    for stored, listed, settings in (
        (ConfigsOnly("g", "requests-0-0", 1, own), [], [own]),
        (ConsumerGroup("g", "requests-0-1", members=member, configs=own), ["g"], [own]),
        (ConfigsOnly("g", "requests-0-2", 1, own), [], [own]),
        (ConsumerGroup("g", "requests-0-3", members=member), ["g"], []),
    ):
        value = encode(kind_of(stored).view(stored))
        groups.apply(b"g", value)
        configs.apply(b"g", value)
        assert [view.group_id for view in groups.groups] == listed
        assert [found.configs for found in configs.groups] == settings


SESSION, INTERVAL, OTHER = (
    "share.session.timeout.ms",
    "share.heartbeat.interval.ms",
    "share.auto.offset.reset",
)


@pytest.mark.parametrize(
    ("own", "brokers", "sentences"),
    [
        ({}, {}, []),
        ({SESSION: 60_000}, {SESSION: "60000", OTHER: "earliest"}, []),
        (
            {SESSION: 60_000},
            {SESSION: "50000"},
            [f"{SESSION}=60000 is in force, and is 50000 at the brokers"],
        ),
        ({SESSION: 60_000}, {}, [f"{SESSION}=60000 is in force, and is not set at the brokers"]),
        ({}, {INTERVAL: "7000"}, [f"{INTERVAL}=7000 is set only at the brokers and has no effect"]),
    ],
)
def test_settings_that_differ_from_the_brokers_show_the_effective_value(
    own: dict[str, SettingValue], brokers: dict[str, str], sentences: list[str]
) -> None:
    assert difference_notes(own, brokers) == [
        f"{sentence}: set or delete it through the gateway" for sentence in sentences
    ]
