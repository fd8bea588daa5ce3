"""The topics of a consumer group: what the topic watcher reports, and what is forgotten. Rows MI8 to MI15,
HB45.

Source: GroupMetadataManager.onMetadataUpdate.
"""

from collections.abc import Collection

from msgspec.structs import replace

from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.kafka.topic_images import TopicImages
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import StepContext
from state.kafka.modern.topics import forget_topics, store_watched, unused_topics


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
