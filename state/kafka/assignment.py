"""Groups that leave their assignment to the coordinator. Rows M1 to M4.

Kafka's classic groups have a leader assign; that the coordinator does is an idea of KIP-848, brought here to
the classic protocol. Partition counts come with the JoinGroups, for the coordinator knows no topics.
"""

from assignors.kafka.api import Assignment, MemberSubscription, TopicPartition
from assignors.kafka.consumer_protocol import (
    PROTOCOL_TYPE,
    ProtocolError,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from assignors.kafka.server_side import COORDINATOR_ASSIGNORS, is_for_coordinator, with_last_assignment
from state.errors import ErrorCode
from state.kafka.context import StepContext
from state.kafka.group import Group, Member
from state.kafka.requests import JoinGroup


def validate_protocols(context: StepContext, request: JoinGroup) -> ErrorCode:
    """Rows M1 and M2: whether the coordinator could carry out what it may be asked to."""
    for protocol in request.protocols:
        if not is_for_coordinator(protocol.name):
            continue
        if protocol.name not in COORDINATOR_ASSIGNORS:
            context.rule("M1")
            return ErrorCode.UNSUPPORTED_ASSIGNOR
        if request.protocol_type != PROTOCOL_TYPE or not _is_subscription(protocol.metadata):
            context.rule("M2")
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def record_partition_counts(context: StepContext, request: JoinGroup) -> None:
    """Row M3: of what JoinGroups tell of a topic the most holds; some members hear late that it grew."""
    if request.partitions_per_topic:
        context.rule("M3")
    told = context.group.reported_partition_counts
    for topic, count in request.partitions_per_topic.items():
        told[topic] = max(count, told.get(topic, 0))


def settle_partitions(group: Group) -> None:
    """Keep what this generation needs: counts that were told for it, else those of the last one."""
    needed = (group.subscribed_topics or []) if is_for_coordinator(group.protocol_name) else []
    known = group.partitions_per_topic | group.reported_partition_counts
    group.partitions_per_topic = {topic: known[topic] for topic in needed if topic in known}
    group.reported_partition_counts = {}


def assign(group: Group, last_generation: int) -> dict[str, bytes]:
    """Who gets what in the generation that was just formed, by member id.

    `last_generation` is the one whose assignment the members still have. `validate_protocols` has seen to it
    that nothing here can fail.
    """
    assignor = COORDINATOR_ASSIGNORS[group.protocol_name or ""]
    subscriptions = {}
    for member in group.members.values():
        subscription = decode_subscription(member.metadata(group.protocol_name))
        subscription = with_last_assignment(assignor, subscription, _held(member), last_generation)
        subscriptions[member.member_id] = MemberSubscription(subscription, member.group_instance_id)
    dealt = assignor.assign(group.partitions_per_topic, subscriptions)
    return {m: encode_assignment(Assignment(tuple(partitions))) for m, partitions in dealt.items()}


def _held(member: Member) -> tuple[TopicPartition, ...]:
    """What the member was given last; a leader may have put anything there."""
    try:
        return decode_assignment(member.assignment).partitions
    except ProtocolError:
        return ()


def _is_subscription(metadata: bytes) -> bool:
    try:
        decode_subscription(metadata)
    except ProtocolError:
        return False
    return True
