"""The topics of a classic group, and the assignment of the group if the coordinator computes it, which it
does for a protocol whose name begins with `coordinator:`.

A row, such as M1, is a rule of docs/rules.md. `context.cite` records that a row was applied.
"""

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
from state.kafka.group import has_more_partitions, topic_of, topics_from_watcher

# Assignment by the coordinator. Rows M1 to M5.
#
# In Kafka's classic groups the leader assigns. Assignment by the coordinator is an idea of KIP-848, applied
# here to the classic protocol. The JoinGroups carry the partition counts, because the coordinator has no
# topic metadata.


def validate_protocols(context: StepContext, request: JoinGroup) -> RuleAndError | None:
    """Rows M1 and M2: return the refusal of a JoinGroup if one of its `coordinator:` protocols names no
    assignor or has no valid subscription, else None.
    """
    for protocol in request.protocols:
        if not is_for_coordinator(protocol.name):
            continue
        if protocol.name not in COORDINATOR_ASSIGNORS:
            return context.cite("M1"), ErrorCode.UNSUPPORTED_ASSIGNOR
        if request.protocol_type != PROTOCOL_TYPE or not _is_subscription(protocol.metadata):
            return context.cite("M2"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return None


def record_partition_counts(context: StepContext, request: JoinGroup) -> RuleAndError | None:
    """Record the partition counts that a JoinGroup reports, and return None.

    If the group would have too many partitions, record nothing and return the refusal (row M5).
    """
    group, max_partitions = context.group_of(ClassicGroup), context.config.group_max_partitions
    reported = dict(group.reported_partition_counts)
    for topic, count in request.partitions_per_topic.items():
        # Row M3: some members see late that a topic grew.
        reported[topic] = max(count, reported.get(topic, 0))
    counts = group.partitions_per_topic | reported
    if _total_partitions(counts.values()) > max_partitions:
        # Topics without a subscriber do not count.
        subscribed = _topics_for_coordinator(group, request)
        subscribed_counts = (count for topic, count in counts.items() if topic in subscribed)
        if _total_partitions(subscribed_counts) > max_partitions:
            return context.cite("M5"), ErrorCode.GROUP_MAX_SIZE_REACHED
        reported = {topic: count for topic, count in reported.items() if topic in subscribed}
    if request.partitions_per_topic:
        context.cite("M3")
    group.reported_partition_counts = reported
    return None


def set_partition_counts(context: StepContext, group: ClassicGroup) -> list[str]:
    """Set the partition counts of the new generation: the reported ones, else those of the last generation.

    Return the topics that have too many partitions to be assigned. Row M5 refuses a JoinGroup that would add
    such a topic, so there are such topics only if `group.max.partitions` was lowered since.
    """
    to_assign = (group.subscribed_topics or []) if is_for_coordinator(group.protocol_name) else []
    counts = group.partitions_per_topic | group.reported_partition_counts
    capacity = context.config.group_max_partitions
    group.partitions_per_topic, group.reported_partition_counts = {}, {}
    left_out = []
    for topic in to_assign:
        if topic not in counts:
            continue
        needed = _total_partitions([counts[topic]])
        if needed > capacity:
            left_out.append(topic)
        else:
            group.partitions_per_topic[topic] = counts[topic]
            capacity -= needed
    return left_out


def _total_partitions(counts: Iterable[int]) -> int:
    """Return the sum of the partition counts of topics, as `group.max.partitions` limits it."""
    # A topic without partitions counts as one partition, because its name takes space.
    return sum(max(count, 1) for count in counts)


def _topics_for_coordinator(group: ClassicGroup, request: JoinGroup) -> set[str]:
    """Return the topics of all members, as of this JoinGroup, that the coordinator may have to assign."""
    # The JoinGroup replaces what its sender offered before, even if it is a static member with a new id.
    sender_ids = {request.member_id, group.static_members.get(request.group_instance_id or "")}
    others = [member.protocols for id_, member in group.members.items() if id_ not in sender_ids]
    topics: set[str] = set()
    for protocols in [request.protocols, *others]:
        for protocol in protocols:
            if is_for_coordinator(protocol.name):
                topics.update(decode_subscribed_topics(protocol.metadata))
    return topics


def assign(group: ClassicGroup, last_generation: int) -> dict[str, bytes]:
    """Compute and return the assignment of the new generation, by member id.

    `last_generation` is the generation whose assignment the members still have.
    """
    assignor = COORDINATOR_ASSIGNORS[group.protocol_name or ""]
    subscriptions = {}
    for member in group.members.values():
        # This cannot fail, because `validate_protocols` checked every protocol.
        subscription = decode_subscription(member.metadata(group.protocol_name))
        subscription = with_last_assignment(assignor, subscription, _last_partitions(member), last_generation)
        subscriptions[member.member_id] = MemberSubscription(subscription, member.group_instance_id)
    assigned = assignor.assign(group.partitions_per_topic, subscriptions)
    return {id_: encode_assignment(Assignment(tuple(partitions))) for id_, partitions in assigned.items()}


def _last_partitions(member: ClassicGroupMember) -> tuple[TopicPartition, ...]:
    """Return the partitions of the member's last assignment, none if they are unreadable."""
    try:
        return decode_assignment(member.assignment).partitions
    except ProtocolError:
        # A leader may have sent bytes that are not an assignment.
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
    """Return the topics of each member, or None if a subscription is unreadable or the protocol type is not
    `consumer`.
    """
    if not group.uses_consumer_group_protocol():
        return None
    try:
        return {
            member.member_id: sorted(set(decode_subscribed_topics(member.metadata(group.protocol_name))))
            for member in group.members.values()
        }
    except ProtocolError:
        return None


def all_topics(by_member: Subscriptions | None) -> list[str] | None:
    """Return the topics of all members, sorted, or None if they are unknown."""
    if by_member is None:
        return None
    return sorted({topic for topics in by_member.values() for topic in topics})


def subscriptions_if_different(by_member: Subscriptions | None) -> Subscriptions | None:
    """Return `by_member` for the history, which has the topics of each member only if they differ. Return
    None if all members subscribe to the same topics, or if the topics are unknown.
    """
    if by_member is None or len({tuple(topics) for topics in by_member.values()}) <= 1:
        return None
    return by_member


# Reports of JoinGroups about the members' topics: their ids and numbers of partitions.
#
# The classic protocol does not use them. An upgrade to the consumer protocol needs them, because that
# protocol identifies topics by their ids (rows UP5, MI14).


def record_topics(group: ClassicGroup, reported: TopicImages | None) -> None:
    """Store the topics that an accepted JoinGroup reports, which is None if its sender could not read them.

    The latest report counts, unless it has fewer partitions of the same topic, because a topic never loses
    partitions.
    """
    for name, image in (reported or {}).items():
        topic = topic_of(image)
        if not has_more_partitions(group.topics.get(name), topic):
            group.topics[name] = topic
    # The topic watcher need not look up a reported topic.
    if group.wanted_topics and reported:
        group.wanted_topics = [name for name in group.wanted_topics if name not in reported]


def forget_unsubscribed_topics(group: ClassicGroup) -> None:
    """Forget the topics that no member of the new generation subscribes to."""
    subscribed = group.subscribed()
    group.topics = {name: topic for name, topic in sorted(group.topics.items()) if name in subscribed}
    group.wanted_topics = [name for name in group.wanted_topics if name in subscribed]


def topic_metadata(context: StepContext, group: ClassicGroup, request: TopicMetadata) -> None:
    """Row MI8: store the watcher's report of the group's topics, and of those that an upgrade needs."""
    relevant = {*group.topics, *group.wanted_topics}
    images = {name: request.topics[name] for name in sorted(request.topics) if name in relevant}
    if not images:
        return
    changed = topics_from_watcher(group.topics, images, group.deleted_topic_ids)
    group.topics = dict(sorted({**group.topics, **changed}.items()))
    if reported := [name for name in group.wanted_topics if name in images]:
        group.wanted_topics = [name for name in group.wanted_topics if name not in images]
        reason = "the topics that a conversion to the consumer protocol needs are known"
        context.record(context.cite("MI8"), EntryType.TOPICS_CHANGED, reason, topics=reported)
