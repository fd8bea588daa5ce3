"""The topics of a classic group, and the assignment that the coordinator computes for one."""

from collections.abc import Iterable

from assignors.kafka.server_side import COORDINATOR_ASSIGNORS, is_for_coordinator, with_last_assignment
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import JoinGroup, TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import (
    PROTOCOL_TYPE,
    Assignment,
    MemberSubscription,
    ProtocolError,
    TopicPartition,
    decode_assignment,
    decode_subscribed_topics,
    decode_subscription,
    encode_assignment,
)
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.context import RuleAndError, StepContext
from state.kafka.group import is_more_of, topic_of, watched

# Assignment by the coordinator. Rows M1 to M5.
#
# In Kafka's classic groups the leader assigns. Assignment by the coordinator is an idea of KIP-848, applied
# here to the classic protocol. The JoinGroups carry the partition counts, because the coordinator has no
# topic metadata.


def validate_protocols(context: StepContext, request: JoinGroup) -> RuleAndError | None:
    """Rows M1 and M2: return the refusal if a protocol asks the coordinator to assign and it cannot do that,
    else None.
    """
    for protocol in request.protocols:
        if not is_for_coordinator(protocol.name):
            continue
        if protocol.name not in COORDINATOR_ASSIGNORS:
            return context.rule("M1"), ErrorCode.UNSUPPORTED_ASSIGNOR
        if request.protocol_type != PROTOCOL_TYPE or not _is_subscription(protocol.metadata):
            return context.rule("M2"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return None


def record_partition_counts(context: StepContext, request: JoinGroup) -> RuleAndError | None:
    """Record the partition counts that a JoinGroup reports, and return None.

    If the group would have too many partitions, record nothing and return the refusal (row M5).
    """
    group, most = context.group_of(ClassicGroup), context.config.group_max_partitions
    reported = dict(group.reported_partition_counts)
    for topic, count in request.partitions_per_topic.items():
        # Row M3: some members see late that a topic grew.
        reported[topic] = max(count, reported.get(topic, 0))
    known = group.partitions_per_topic | reported
    if _size(known.values()) > most:
        # Some counts are of topics without a subscriber.
        wanted = _topics_for_coordinator(group, request)
        if _size(count for topic, count in known.items() if topic in wanted) > most:
            return context.rule("M5"), ErrorCode.GROUP_MAX_SIZE_REACHED
        reported = {topic: count for topic, count in reported.items() if topic in wanted}
    if request.partitions_per_topic:
        context.rule("M3")
    group.reported_partition_counts = reported
    return None


def settle_partitions(context: StepContext, group: ClassicGroup) -> list[str]:
    """Set the partition counts of this generation: those reported for it, else those of the last generation.

    Returns the topics that have too many partitions to be assigned. M5 refuses such JoinGroups, so such
    topics exist only if the group is older than the setting.
    """
    needed = (group.subscribed_topics or []) if is_for_coordinator(group.protocol_name) else []
    known = group.partitions_per_topic | group.reported_partition_counts
    places = context.config.group_max_partitions
    group.partitions_per_topic, group.reported_partition_counts = {}, {}
    left_out = []
    for topic in needed:
        size = _size([known[topic]]) if topic in known else 0
        if size > places:
            left_out.append(topic)
        elif topic in known:
            group.partitions_per_topic[topic] = known[topic]
            places -= size
    return left_out


def _size(counts: Iterable[int]) -> int:
    """Return the number of partitions of topics with these counts."""
    # A topic without partitions counts as one, because its name takes space.
    return sum(max(count, 1) for count in counts)


def _topics_for_coordinator(group: ClassicGroup, request: JoinGroup) -> set[str]:
    """Return all members' topics that the coordinator may have to assign after this JoinGroup."""
    replaced = {request.member_id, group.static_members.get(request.group_instance_id or "")}
    others = [member.protocols for id_, member in group.members.items() if id_ not in replaced]
    topics: set[str] = set()
    for protocols in [request.protocols, *others]:
        for protocol in protocols:
            if is_for_coordinator(protocol.name):
                topics.update(decode_subscribed_topics(protocol.metadata))
    return topics


def assign(group: ClassicGroup, last_generation: int) -> dict[str, bytes]:
    """Return the assignment of the new generation, by member id.

    `last_generation` is the generation whose assignment the members still have.
    """
    assignor = COORDINATOR_ASSIGNORS[group.protocol_name or ""]
    subscriptions = {}
    for member in group.members.values():
        # This cannot fail, because `validate_protocols` checked every protocol.
        subscription = decode_subscription(member.metadata(group.protocol_name))
        subscription = with_last_assignment(assignor, subscription, _last_assigned(member), last_generation)
        subscriptions[member.member_id] = MemberSubscription(subscription, member.group_instance_id)
    dealt = assignor.assign(group.partitions_per_topic, subscriptions)
    return {m: encode_assignment(Assignment(tuple(partitions))) for m, partitions in dealt.items()}


def _last_assigned(member: ClassicGroupMember) -> tuple[TopicPartition, ...]:
    try:
        return decode_assignment(member.assignment).partitions
    except ProtocolError:
        # The leader's bytes are not an assignment.
        return ()


def _is_subscription(metadata: bytes) -> bool:
    try:
        decode_subscription(metadata)
    except ProtocolError:
        return False
    return True


# The topics that a generation's members subscribe to, and what JoinGroups report of them: ids and numbers
# of partitions.
#
# Source: ClassicGroup.computeSubscribedTopics.


Subscriptions = dict[str, list[str]]
"""Topics, sorted, by member id."""


def subscriptions(group: ClassicGroup) -> Subscriptions | None:
    """Return the topics of each member. None if one subscription is unreadable, or if this is not a consumer
    group.
    """
    if not group.is_consumer_group():
        return None
    try:
        return {
            member.member_id: sorted(set(decode_subscribed_topics(member.metadata(group.protocol_name))))
            for member in group.members.values()
        }
    except ProtocolError:
        return None


def all_topics(by_member: Subscriptions | None) -> list[str] | None:
    """Return the topics of all members, sorted. None if they are unknown."""
    if by_member is None:
        return None
    return sorted({topic for topics in by_member.values() for topic in topics})


def subscriptions_if_different(by_member: Subscriptions | None) -> Subscriptions | None:
    """Return `by_member`, or None if all members subscribe to the same topics or if the topics are
    unknown.
    """
    if by_member is None or len({tuple(topics) for topics in by_member.values()}) <= 1:
        return None
    return by_member


# Reports of JoinGroups about the members' topics: their ids and numbers of partitions.
#
# The classic protocol does not use them. An upgrade to the consumer protocol needs them, because
# that protocol goes by topic id (rows UP5, MI14).


def record_topics(group: ClassicGroup, reported: TopicImages | None) -> None:
    """Store what an accepted JoinGroup reported of the topics.

    The latest report counts, because no other source reports to a classic group. Only a lower partition count
    of the same topic is ignored, because a topic never loses partitions.
    """
    for name, image in (reported or {}).items():
        topic = topic_of(image)
        if not is_more_of(group.topics.get(name), topic):
            group.topics[name] = topic
    # The topic watcher need not look up a reported topic.
    if group.wanted_topics and reported:
        group.wanted_topics = [name for name in group.wanted_topics if name not in reported]


def settle_topics(group: ClassicGroup) -> None:
    """Forget the topics that no member of the new generation subscribes to."""
    subscribed = group.subscribed()
    group.topics = {name: topic for name, topic in sorted(group.topics.items()) if name in subscribed}
    group.wanted_topics = [name for name in group.wanted_topics if name in subscribed]


def topic_metadata(context: StepContext, group: ClassicGroup, request: TopicMetadata) -> None:
    """Store what the topic watcher reports of the topics that the group knows or needs (row MI8)."""
    names = {*group.topics, *group.wanted_topics}
    images = {name: request.topics[name] for name in sorted(request.topics) if name in names}
    if not images:
        return
    found = watched(group.topics, images, group.deleted_topic_ids)
    group.topics = dict(sorted({**group.topics, **found}.items()))
    if answered := [name for name in group.wanted_topics if name in images]:
        group.wanted_topics = [name for name in group.wanted_topics if name not in images]
        why = "the topics that a conversion to the consumer protocol needs are known"
        context.record(context.rule("MI8"), EntryType.TOPICS_CHANGED, why, topics=answered)
