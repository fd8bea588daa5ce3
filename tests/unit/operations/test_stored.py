# ruff: noqa: E501 - tables are as wide as on the terminal
"""The rows of a group's state, and their tables; the state at a moment, and the list of groups with epochs."""

from datetime import UTC
from textwrap import dedent

from gateway.coordinator.groups import to_known_group
from kafka_why.contract.kafka.history import GroupState, Offset
from kafka_why.contract.kafka.requests import Protocol, ReplyTo
from kafka_why.contract.protocols.subscriptions import Assignment, TopicPartition, encode_assignment
from kafka_why.contract.rocketmq.requests import ConsumeType, MessageModel, MessageQueue, SubscriptionData
from kafka_why.groups.list_groups import list_row
from kafka_why.wording import Clock
from operations.replay.moment import moment_text
from operations.replay.replay import Replayed
from operations.stored.rows import rows_of
from operations.stored.text import group_text
from state.config import CoordinatorConfig
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember, PendingMember
from state.kafka.context import KafkaGroup
from state.kafka.group import PendingOffsets
from state.kafka.protocols import view_of
from state.kafka.share_group import ShareGroup
from state.rocketmq.group import ClientChannelInfo, ConsumerGroupInfo, LockEntry, RocketMqGroup
from tests.harness.histories import Recorder
from tests.unit.kafka_why.page_facts import looks
from tests.unit.kafka_why.test_why_epochs import MORNING

T = 1_795_312_000_000  # 2026-11-22 01:46:40
CONFIG = CoordinatorConfig()
REPLY_TO = ReplyTo(0, "c", "requests-0-1")


def member(name: str, *partitions: int) -> ClassicGroupMember:
    protocols = [Protocol("range", b"m")]
    assigned = encode_assignment(Assignment(tuple(TopicPartition("orders", p) for p in partitions)))
    return ClassicGroupMember(f"{name}-1", None, name, "/h", 10_000, 60_000, protocols, T + 10_000, assigned)


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


def before(commands: tuple[str, ...], at: str) -> KafkaGroup:
    recorder = Recorder()
    recorder.play(*commands[: commands.index(f"at {at}")])
    group = recorder.any_group()
    assert group is not None
    return group


def moment_of(group: KafkaGroup) -> str:
    return f"{moment_text(Replayed('g', group=group), group.clock_ms, CONFIG, Clock(UTC))}\n"


def test_consumer_group_is_shown_as_tables() -> None:
    assert group_text(rows_of(before(MORNING, "30s"), 6, CONFIG)) == looks("""
GROUP PROTOCOL         STATE       SINCE                   GENERATION TARGET-EPOCH STRATEGY #MEMBERS #OFFSETS #LOCKS LAST-EVENT              NEXT-DEADLINE
g     Kafka (consumer) Reconciling 1970-01-01 00:00:14.000 5          5            uniform  4        0        0      1970-01-01 00:00:14.000 1970-01-01 00:00:57.000

  Last rebalance: 1970-01-01 00:00:12.000, member C subscribes to orders, prices

  MEMBER-ID INSTANCE-ID CLIENT-ID HOST ROLE   EXPIRES                 EPOCH STATE                ASSIGNMENT REVOKING   TARGET            SUBSCRIPTION
  A         -           A              member 1970-01-01 00:00:59.000 3     UnrevokedPartitions  orders:0,1 orders:2,3 orders:0,1        orders,prices
  B         -           B              member 1970-01-01 00:00:59.000 3     UnrevokedPartitions  orders:4,5 prices:0,1 orders:4,5        orders,prices
  C         till        C              member 1970-01-01 00:00:57.000 4     UnreleasedPartitions -          -          orders:3;prices:1 orders,prices
  D         -           D              member 1970-01-01 00:00:57.200 4     Stable               -          -          orders:2;prices:0 orders,prices

  TIMER     DEADLINE                MEMBER-ID
  heartbeat 1970-01-01 00:00:57.000 C
  heartbeat 1970-01-01 00:00:57.200 D
  heartbeat 1970-01-01 00:00:59.000 A
  heartbeat 1970-01-01 00:00:59.000 B
  rebalance 1970-01-01 00:01:14.000 A
  rebalance 1970-01-01 00:01:14.000 B
    """)


def test_replay_at_a_time_shows_members_and_timers_of_a_consumer_group() -> None:
    group = before(MORNING, "30s")
    text = moment_of(group)
    assert (
        text
        == looks("""
Group g at 1970-01-01 00:00:14.000 UTC: Reconciling for 0 ms, epoch 5, 4 members, assignor uniform
Last rebalance: began 1970-01-01 00:00:12.000, because member C subscribes to orders, prices

MEMBER          HOST       EPOCH STATE                     HOLDS           GIVES-UP        WAITS-FOR
A               -          3     has to give up partitions orders 0-1      orders 2-3      -
B               -          3     has to give up partitions orders 4-5      prices 0-1      -
C               -          4     waits for partitions      -               -               orders 3; prices 1
D               -          4     is not at its target yet  -               -               orders 2; prices 0

Timers:
    1970-01-01 00:00:57.000  in 43.0 s  the session of C ends
    1970-01-01 00:00:57.200  in 43.2 s  the session of D ends
    1970-01-01 00:00:59.000  in 45.0 s  the session of A ends
    1970-01-01 00:00:59.000  in 45.0 s  the session of B ends
    1970-01-01 00:01:14.000  in 60.0 s  A has to have given up its partitions
    1970-01-01 00:01:14.000  in 60.0 s  B has to have given up its partitions
    """)
        + "\n"
    )


def group_after(*commands: str) -> ShareGroup:
    recorder = Recorder()
    recorder.play("at 10s", "topics foo=2", "share A e0", "init watcher", "share A e2", *commands)
    group = recorder.any_group()
    assert isinstance(group, ShareGroup)
    return group


def test_share_partitions_are_rows_with_their_states() -> None:
    group = group_after(
        "topics foo=4", "topic-metadata watcher", "share A e3", "init watcher error=15 partitions[foo 3]"
    )
    (*_, two, three) = rows_of(group, 2, CONFIG).shares
    assert (two.state, two.start_offset, two.state_epoch, two.error_code) == ("initializing", 0, 4, None)
    assert (three.partition, three.error_code, three.task) == (3, 15, two.task)
    assert two.asked_at_ms == 10_000
    text = group_text(rows_of(group, 2, CONFIG))
    assert (
        "  TOPIC PARTITION STATE        TASK         ASKED                   STATE-EPOCH START-OFFSET ERROR"
        in text
    )
    assert (
        "  foo   3         initializing requests-0-4 1970-01-01 00:00:10.000 4           0            15"
        in text
    )
    deleting = rows_of(group_after("share A -1", "delete admin"), 2, CONFIG).shares
    assert [(row.partition, row.state) for row in deleting] == [(0, "deleting"), (1, "deleting")]


def test_replay_at_a_time_shows_partitions_and_tasks_of_a_share_group() -> None:
    group = group_after("topics foo=3", "topic-metadata watcher", "share A e3")
    text = moment_of(group)
    assert text == dedent("""\
        Group g at 1970-01-01 00:00:10.000 UTC: Stable for 0 ms, epoch 4, target assignment of epoch 3, 1 member
        Last rebalance: began 1970-01-01 00:00:10.000, because the topics that members subscribe to have changed

        MEMBER          HOST       EPOCH HAS             TARGET
        A               -          3     foo 0-1         foo 0-1

        Initialized: foo 0-1
        Initializing: foo 2
        Task: foo 2: initializing for 0 ms (task requests-0-4)

        Timers:
            1970-01-01 00:00:55.000  in 45.0 s  the session of A ends
            1970-01-01 00:01:10.000  in 60.0 s  tasks that the share coordinator has not done get an entry
        """)


def test_group_lists_include_share_groups() -> None:
    """Row SD5."""
    view = view_of(group_after())
    in_list = to_known_group(view)
    assert (in_list.state, in_list.protocol_type, in_list.group_type) == ("Stable", "share", "share")
    assert list_row(view).type == "Share"
