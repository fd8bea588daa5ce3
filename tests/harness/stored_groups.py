"""Groups of each kind, as the state stores them, in which no field has its default."""

from kafka_why.contract.kafka.history import GroupState, MemberState
from kafka_why.contract.kafka.offsets import Offset
from kafka_why.contract.kafka.requests import Protocol, ReplyTo
from kafka_why.contract.rocketmq.queues import MessageQueue, MessageRequestMode
from kafka_why.contract.rocketmq.requests import (
    ConsumeFromWhere,
    ConsumeType,
    MessageModel,
    RequestMode,
    SubscriptionData,
)
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember, JoinPhase, PendingMember
from state.kafka.consumer_group import (
    CheckedRegex,
    ClassicMember,
    ConsumerGroup,
    ConsumerMember,
    ResolvedRegex,
)
from state.kafka.group import ConfigsOnly, EndedTransaction, Group, ModernGroup, PendingOffsets, Topic
from state.kafka.share_group import (
    DeletingTopic,
    InitializationTask,
    InitializedTopic,
    InitializingTopic,
    Parked,
    ParkedKind,
    ParkedTopic,
    ShareGroup,
    ShareMember,
)
from state.rocketmq import group as rocketmq

ENUMS = (GroupState, MemberState, ParkedKind, MessageModel, ConsumeType, ConsumeFromWhere, MessageRequestMode)
"""The enums in the state."""

STORED = {
    ClassicGroup: (
        ClassicGroup,
        ClassicGroupMember,
        PendingMember,
        JoinPhase,
        Offset,
        PendingOffsets,
        EndedTransaction,
        Protocol,
        ReplyTo,
        Topic,
    ),
    ConsumerGroup: (
        ConsumerGroup,
        ConsumerMember,
        ClassicMember,
        ResolvedRegex,
        CheckedRegex,
        Topic,
        Offset,
        PendingOffsets,
        EndedTransaction,
        Protocol,
    ),
    ShareGroup: (
        ShareGroup,
        ShareMember,
        InitializingTopic,
        InitializationTask,
        InitializedTopic,
        DeletingTopic,
        Parked,
        ParkedTopic,
        ReplyTo,
        Topic,
        Offset,
        PendingOffsets,
        EndedTransaction,
    ),
    ConfigsOnly: (ConfigsOnly,),
    rocketmq.RocketMqGroup: (
        rocketmq.RocketMqGroup,
        rocketmq.ConsumerGroupInfo,
        rocketmq.ClientChannelInfo,
        rocketmq.LockEntry,
        RequestMode,
        SubscriptionData,
        MessageQueue,
    ),
}
"""The structs of each kind of group. A struct that several of Kafka's kinds have is listed with each."""


def sample() -> ClassicGroup:
    """Return a group in which no field has its default."""
    member = ClassicGroupMember(
        member_id="m-1",
        group_instance_id="i-1",
        client_id="m",
        client_host="/10.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocols=[Protocol("range", b"\x00\x01"), Protocol("sticky")],
        heartbeat_deadline_ms=1_700_000_010_000,
        assignment=b"\x02",
        is_new=True,
        pending_sync=True,
        parked_join=ReplyTo(1, "c-1", "requests-0-1"),
        parked_sync=ReplyTo(2, "c-2", "requests-0-2"),
    )
    offset = Offset(6, 1, "note", 1_700_000_000_002, None, b"\x07" * 16, (5, 3))
    pending = PendingOffsets(
        request="requests-0-5#3",
        position=(5, 3),
        at_ms=1_700_000_000_002,
        transactional_id="t-1",
        producer_id=4001,
        producer_epoch=7,
        txn_version=2,
        txn_partition=1,
        txn_position=41,
        txn_topic_id=b"\x05" * 16,
        offsets={"t": {0: offset}},
    )
    return ClassicGroup(
        group_id="grüppe",
        incarnation="requests-0-0",
        seq=7,
        clock_ms=1_700_000_000_003,
        last_fired_ms=1_700_000_000_002,
        state=GroupState.PREPARING_REBALANCE,
        previous_state=GroupState.STABLE,
        state_timestamp_ms=1_700_000_000_001,
        generation=3,
        protocol_type="consumer",
        protocol_name="range",
        leader_id="m-1",
        members={"m-1": member},
        static_members={"i-1": "m-1"},
        pending_members={"p-1": PendingMember("p", "/10.0.0.2", 1_700_000_020_000)},
        new_member_added=True,
        join_phase=JoinPhase(1_700_000_003_000, 3_000, 57_000),
        sync_deadline_ms=1_700_000_060_000,
        last_rebalance_at_ms=1_700_000_000_000,
        last_rebalance_reason="new member m-1 joined",
        quarantined="InjectedFault: told to",
        subscribed_topics=["t"],
        offsets={"t": {0: Offset(5, 1, "note", 1_700_000_000_001, 1_700_000_900_000, b"\x07" * 16, (4, 2))}},
        retention_deadline_ms=1_700_001_000_000,
        partitions_per_topic={"t": 4},
        reported_partition_counts={"t": 5},
        deleted_topic_ids=[b"\x03" * 16],
        pending=[pending],
        ended={4001: EndedTransaction(1, 40, b"\x05" * 16, 1_700_000_000_002)},
        topics={"t": Topic(b"\x07" * 16, 4), "gone": None},
        wanted_topics=["u"],
        configs={"consumer.session.timeout.ms": 50_000},
    )


def consumer_sample() -> ConsumerGroup:
    """Return the same for a group of the consumer protocol. Not every combination of its fields can occur."""
    shell = {name: getattr(sample(), name) for name in Group.__struct_fields__}
    member = ConsumerMember(
        member_id="m-1",
        instance_id="i-1",
        rack_id="rack",
        client_id="m",
        client_host="/10.0.0.1",
        rebalance_timeout_ms=60_000,
        server_assignor="range",
        subscribed_topic_names=["t"],
        subscribed_topic_regex="x.*",
        member_epoch=5,
        previous_epoch=4,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned={b"\x07" * 16: {0: 3}},
        pending_revocation={b"\x07" * 16: {1: 2}},
        session_deadline_ms=1_700_000_045_000,
        rebalance_deadline_ms=1_700_000_060_000,
        classic=ClassicMember(10_000, [Protocol("range", b"\x00\x01")], 1_700_000_050_000, 1_700_000_055_000),
        revoking_since_ms=1_700_000_000_000,
    )
    return ConsumerGroup(
        **shell | {"group_id": "kümmel"},
        group_epoch=6,
        assignment_epoch=5,
        assignment_timestamp_ms=1_700_000_000_001,
        metadata_hash=b"\x09" * 16,
        metadata_stale=False,
        members={"m-1": member},
        static_members={"i-1": "m-1"},
        target={"m-1": {b"\x07" * 16: [0, 2]}},
        target_assignor="uniform",
        topics={"t": Topic(b"\x07" * 16, 4), "gone": None},
        resolved_regexes={"x.*": ResolvedRegex(["x-1"], 1_700_000_000_000)},
        checked_regexes={
            "x.*": CheckedRegex("0a" * 16, 1_700_000_000_001, 1_700_000_000_000, is_wanted=False)
        },
    )


def configs_sample() -> ConfigsOnly:
    """Return the settings of a group id that has no group. `quarantined` can only be None."""
    return ConfigsOnly("öl", "requests-0-4", 1_700_000_000_003, {"consumer.session.timeout.ms": 50_000}, 1, 2)


def _channel(client_id: str) -> rocketmq.ClientChannelInfo:
    address, gateway = "10.0.0.1:5", ("gateway", "start-1")
    return rocketmq.ClientChannelInfo(
        client_id, "PYTHON", 1, 1_700_000_000_001, 2, "b/0", address, *gateway, ["t"]
    )


def rocketmq_sample() -> rocketmq.RocketMqGroup:
    """Return the same for a RocketMQ group."""
    return rocketmq.RocketMqGroup(
        group_id="rüpel",
        incarnation="requests-0-3",
        seq=7,
        clock_ms=1_700_000_000_003,
        last_fired_ms=1_700_000_000_002,
        consumers={
            "b/0": rocketmq.ConsumerGroupInfo(
                message_model=MessageModel.CLUSTERING,
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                channels={"c-1": _channel("X")},
                subscriptions={"t": SubscriptionData("t", "a > 1", 5, "SQL92", ("a", "b"), (97, 98))},
                heartbeat_fingerprint=3,
                differing=[["t"], ["u"]],
            )
        },
        producers={"c-2": _channel("Y")},
        locks={MessageQueue("t", "b", 0): rocketmq.LockEntry("X", 1_700_000_000_001)},
        request_modes={"t": RequestMode(MessageRequestMode.POP, 2)},
        quarantined="InjectedFault: told to",
    )


def share_sample() -> ShareGroup:
    """Return a share group in which no field has its default."""
    foo, bar = b"\x07" * 16, b"\x08" * 16
    asked = InitializationTask("requests-0-7", 8, 0, 1_700_000_000_001, 15)
    member = ShareMember(
        member_id="m-1",
        rack_id="r1",
        client_id="m",
        client_host="/10.0.0.1",
        subscribed_topic_names=["bar", "foo"],
        member_epoch=8,
        previous_epoch=7,
        assigned={foo: [0, 1]},
        session_deadline_ms=1_700_000_045_000,
    )
    shell = consumer_sample()
    return ShareGroup(
        **{name: getattr(shell, name) for name in ModernGroup.__struct_fields__ if name != "group_id"},
        group_id="share",
        members={"m-1": member},
        target={"m-1": {foo: [0, 1]}},
        topics={"foo": Topic(foo, 3), "nope": None},
        initializing={foo: InitializingTopic("foo", {2: asked})},
        initialized={foo: InitializedTopic("foo", [0, 1])},
        deleting={bar: DeletingTopic("bar", {0: 31}, "requests-0-8", 1_700_000_000_002)},
        deletion="requests-0-8",
        parked=[
            Parked(
                ParkedKind.DELETE_OFFSETS,
                ReplyTo(1, "c-1", "requests-0-8"),
                1_700_000_060_000,
                [ParkedTopic("bar", bar, {0: 31, 1: None}), ParkedTopic("nope", b"", {}, "SO17")],
            )
        ],
        overdue_deadline_ms=1_700_000_060_000,
        noted_until_ms=1_699_999_940_000,
    )


def samples() -> dict[str, AnyGroup]:
    """Return a group of each kind."""
    groups: tuple[AnyGroup, ...] = (
        sample(),
        rocketmq_sample(),
        consumer_sample(),
        share_sample(),
        configs_sample(),
    )
    return {group.group_id: group for group in groups}
