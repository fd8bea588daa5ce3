"""The target assignment: when it is computed, by which assignor, and from what. Rows TA1 to TA31.

Source: GroupMetadataManager.maybeUpdateTargetAssignment, TargetAssignmentBuilder.java, ModernGroup.java.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from assignors.kafka import BROKER_ASSIGNORS
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.protocols.subscriptions import MemberSubscription, Subscription, TopicPartition
from state.config import CoordinatorConfig
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.modern.target import ModernSettings, by_topic_id, is_wanted, note_target, topics_of_target
from state.kafka.modern.topics import forget_topics, store_watched, unused_topics

# The settings that a group of the consumer protocol can have of its own, and the session of a member.


SETTINGS = ModernSettings("consumer", session="CF19", heartbeat="CF20", assignment="CF21")


def arm_session(context: StepContext, member: ConsumerMember) -> None:
    """Arm the member's session timeout from now on (rows TM1, TM2)."""
    if member.classic is None:
        timeout_ms = SETTINGS.of(context).session_timeout_ms
    else:
        timeout_ms = member.classic.session_timeout_ms
    member.session_deadline_ms = context.deadline(timeout_ms)


def maybe_update_target(context: StepContext) -> None:
    """Compute the target assignment if the group has changed since the last one and the assignment interval
    is over. The members are those of after the request.
    """
    if not is_wanted(context, SETTINGS, current="TA1", too_early="TA2"):
        return
    group = context.group_of(ConsumerGroup)
    last, name = group.target, preferred_assignor(group, context.config)
    topics, left_out = topics_of_target(context, group)
    group.target, group.target_assignor = by_topic_id(_deal(group, name, topics), topics), name
    note_target(context, group, context.rule("TA3"), name, last, left_out)


def preferred_assignor(group: ConsumerGroup, config: CoordinatorConfig) -> str:
    """Return the name of the assignor that most members ask for (rows TA9 to TA13).

    A tie goes to the one that is configured first. Nobody asks for one: the first that is configured. A name
    that is not configured does not count.
    """
    votes = Counter(member.server_assignor for member in group.members.values())
    return max(config.group_consumer_assignors, key=lambda name: votes[name])


def _deal(
    group: ConsumerGroup, assignor: str, topics: Mapping[str, Topic]
) -> Mapping[str, list[TopicPartition]]:
    """Let the assignor assign by topic name (rows TA14 to TA19, TA28, TA29). Each member has an entry."""
    counts = {name: topic.partitions for name, topic in topics.items()}
    names = {topic.topic_id: name for name, topic in topics.items()}
    subscriptions = {
        member.member_id: MemberSubscription(_subscription(group, member, topics, names), member.instance_id)
        for member in group.members.values()
    }
    return BROKER_ASSIGNORS[assignor].assign(counts, subscriptions)


def _subscription(
    group: ConsumerGroup, member: ConsumerMember, topics: Mapping[str, Topic], names: Mapping[bytes, str]
) -> Subscription:
    """The member's topics that exist, and its last target of them: it counts as what the member owns. A topic
    id that no topic of the member has any more does not.
    """
    subscribed = group.topics_of(member) & topics.keys()
    owned = [
        TopicPartition(name, number)
        for topic_id, numbers in group.target.get(member.member_id, {}).items()
        if (name := names.get(topic_id)) in subscribed
        for number in numbers
    ]
    return Subscription(
        tuple(sorted(subscribed)), owned_partitions=tuple(owned), generation_id=group.assignment_epoch
    )


# The topics of a consumer group: what the topic watcher reports, and what is forgotten. Rows MI8 to MI15,
# HB45.
#
# Source: GroupMetadataManager.onMetadataUpdate.


def topic_metadata(context: StepContext, request: TopicMetadata) -> None:
    """Keep what the topic watcher reports of the topics that the group knows or subscribes to (row MI8)."""
    group = context.group_of(ConsumerGroup)
    store_topic_images(context, request.topics, {*group.topics, *group.subscribed()})


def store_topic_images(context: StepContext, images: TopicImages, names: Collection[str]) -> None:
    """Keep what the topic watcher reports of the topics with these names."""
    group = context.group_of(ConsumerGroup)
    found = store_watched(context, group, images, names)
    if not found:
        return
    deleted = [name for name, topic in found.items() if topic is None]
    if deleted and context.config.regex_resolve_at_once:
        _leave_out_of_results(group, deleted)
        context.retention_is_stale = True
    forget_unused(context)


def _leave_out_of_results(group: ConsumerGroup, names: Collection[str]) -> None:
    """Leave deleted topics out of what patterns matched, so that one new epoch covers both."""
    group.resolved_regexes = {
        pattern: replace(resolved, topics=[topic for topic in resolved.topics if topic not in names])
        for pattern, resolved in group.resolved_regexes.items()
    }


def forget_unused(context: StepContext) -> None:
    """Forget the results of patterns that no member has (row HB45), and the topics that no subscription, no
    member's partitions and no target assignment refers to (row MI15).
    """
    group = context.group_of(ConsumerGroup)
    if group.resolved_regexes or group.checked_regexes:
        patterns = {member.subscribed_topic_regex for member in group.members.values()}
        group.resolved_regexes = {p: r for p, r in group.resolved_regexes.items() if p in patterns}
        group.checked_regexes = {p: c for p, c in group.checked_regexes.items() if p in patterns}
    if not unused_topics(group):
        return
    used = {id_ for target in group.target.values() for id_ in target}
    for member in group.members.values():
        used.update(member.assigned, member.pending_revocation)
    forget_topics(context, group, used)
