# ruff: noqa: E501 - tables are as wide as on the terminal
"""The rows of a group's state, and their tables."""

from textwrap import dedent

from kafka_why.contract.kafka.history import GroupState, Offset
from kafka_why.contract.kafka.requests import Protocol, ReplyTo
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from kafka_why.contract.rocketmq.requests import ConsumeType, MessageModel, MessageQueue, SubscriptionData
from operations.stored.rows import rows_of
from operations.stored.text import group_text
from state.config import CoordinatorConfig
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember, PendingMember
from state.kafka.group import PendingOffsets
from state.rocketmq.group import ClientChannelInfo, ConsumerGroupInfo, LockEntry, RocketMqGroup

T = 1_795_312_000_000  # 2026-11-22 01:46:40
CONFIG = CoordinatorConfig()


def assigned(*partitions: int) -> bytes:
    return encode_assignment(Assignment(tuple(TopicPartition("orders", p) for p in partitions)))


def member(name: str, *partitions: int) -> ClassicGroupMember:
    protocols = [Protocol("range", b"m")]
    return ClassicGroupMember(
        f"{name}-1", None, name, "/h", 10_000, 60_000, protocols, T + 10_000, assigned(*partitions)
    )


def kafka_group() -> ClassicGroup:
    group = ClassicGroup("shop", "requests-0-1", 7, T, T, T - 5_000, state=GroupState.STABLE)
    group.generation, group.protocol_name = 3, "range"
    group.add(member("a", 0, 2), "consumer")
    group.add(member("b", 1), "consumer")
    group.pending_members["c-1"] = PendingMember("c", "/h", T + 2_000)
    group.last_rebalance_at_ms, group.last_rebalance_reason = T - 6_000, "new member b-1 joined"
    group.offsets = {"orders": {0: Offset(41, -1, "", T - 1_000, None, bytes(15) + b"\x01")}}
    return group


def rocketmq_group() -> RocketMqGroup:
    return RocketMqGroup(
        "jobs",
        "requests-0-9",
        clock_ms=T,
        consumers={
            "b/0": ConsumerGroupInfo(
                message_model=MessageModel.CLUSTERING,
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                channels={"c1": ClientChannelInfo("A", "JAVA", 401, T, 2)},
                subscriptions={"t": SubscriptionData("t")},
            )
        },
        locks={MessageQueue("t", "b", 3): LockEntry("A", T - 1_000)},
    )


def text_of(group: AnyGroup) -> str:
    return group_text(rows_of(group, 3, CONFIG))


def test_kafka_group_is_shown_as_tables() -> None:
    """The earliest timer comes first; columns without a value are left out."""
    assert text_of(kafka_group()) == dedent("""\
        GROUP PROTOCOL STATE  SINCE                   GENERATION STRATEGY #MEMBERS #OFFSETS #LOCKS LAST-EVENT              NEXT-DEADLINE
        shop  Kafka    Stable 2026-11-22 01:46:35.000 3          range    2        1        0      2026-11-22 01:46:40.000 2026-11-22 01:46:42.000

          Last rebalance: 2026-11-22 01:46:34.000, new member b-1 joined

          MEMBER-ID CLIENT-ID HOST ROLE    EXPIRES                 ASSIGNMENT
          a-1       a         /h   leader  2026-11-22 01:46:50.000 orders:0,2
          b-1       b         /h   member  2026-11-22 01:46:50.000 orders:1
          c-1       c         /h   pending 2026-11-22 01:46:42.000 -

          TOPIC  PARTITION OFFSET COMMITTED
          orders 0         41     2026-11-22 01:46:39.000

          TIMER     DEADLINE                MEMBER-ID
          heartbeat 2026-11-22 01:46:42.000 c-1
          heartbeat 2026-11-22 01:46:50.000 a-1
          heartbeat 2026-11-22 01:46:50.000 b-1""")


def test_rocketmq_group_is_shown_as_tables() -> None:
    assert text_of(rocketmq_group()) == dedent("""\
        GROUP PROTOCOL STATE  STRATEGY   #MEMBERS #OFFSETS #LOCKS LAST-EVENT              NEXT-DEADLINE
        jobs  RocketMQ Online CLUSTERING 1        0        1      2026-11-22 01:46:40.000 2026-11-22 01:47:40.000

          MEMBER-ID CLIENT-ID ROLE     LAST-HEARTBEAT
          c1        A         consumer 2026-11-22 01:46:40.000

          TIMER DEADLINE
          scan  2026-11-22 01:47:40.000

          TOPIC BROKER QUEUE CLIENT-ID LAST-LOCKED
          t     b      3     A         2026-11-22 01:46:39.000""")


def test_tables_show_parked_requests_and_unreadable_assignments() -> None:
    group = kafka_group()
    group.set_parked_join(group.members["a-1"], REPLY_TO)
    group.members["b-1"].assignment = b"\xff"
    first, second, _ = rows_of(group, 3, CONFIG).members
    assert (first.waits_for, first.partitions) == ("JoinGroup", 2)
    assert (second.waits_for, second.partitions, second.assignment) == (None, None, None)


def pending(request: str, *offsets: int) -> PendingOffsets:
    """Offsets of partitions 0, 1, ... of topic orders, pending in one transaction."""
    position = (int(request.rpartition("-")[2]), 0)
    held = {p: Offset(offset, -1, "", T, None, None, position) for p, offset in enumerate(offsets)}
    return PendingOffsets(request, position, T, "app-1", 4001, 7, 2, 0, 40, None, {"orders": held})


def test_pending_offsets_are_shown_as_a_table() -> None:
    group = kafka_group()
    group.pending = [pending("requests-0-5", 42, 7), pending("requests-0-6", 43)]
    text = text_of(group)
    assert "#OFFSETS #PENDING" in text
    assert text.split("\n\n")[4] == (
        "  TOPIC  PARTITION PENDING-OFFSET TRANSACTIONAL-ID PRODUCER-ID EPOCH POSITION REQUESTED\n"
        "  orders 0         42             app-1            4001        7     40       2026-11-22 01:46:40.000\n"
        "  orders 1         7              app-1            4001        7     40       2026-11-22 01:46:40.000\n"
        "  orders 0         43             app-1            4001        7     40       2026-11-22 01:46:40.000"
    )
    assert rows_of(group, 4, CONFIG).group.pending == 3


REPLY_TO = ReplyTo(0, "c", "requests-0-1")
