"""The topics of a share group: what the topic watcher reports, and what is forgotten. Rows MI8 to MI15, SI18.

Source: GroupMetadataManager (onMetadataUpdate, maybeCleanupShareGroupState).
"""

from typing import TypeVar

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import TopicMetadata
from state.kafka.context import StepContext
from state.kafka.modern.topics import forget_topics, store_watched
from state.kafka.share.deletion import maybe_end_deletion
from state.kafka.share.outcomes import in_words
from state.kafka.share.overdue import stop_watching
from state.kafka.share.parked import note_gone
from state.kafka.share_group import ShareGroup

T = TypeVar("T")


def topic_metadata(context: StepContext, request: TopicMetadata) -> None:
    """Keep what the topic watcher reports of the topics that the group knows or subscribes to (row MI8).

    The share coordinator deletes the state of deleted topics by itself, so the group forgets their ids.
    """
    group = context.group_of(ShareGroup)
    known = group.names_by_id().keys()
    if not store_watched(context, group, request.topics, {*group.topics, *group.subscribed()}):
        return
    gone = known - group.names_by_id().keys()
    if gone & {topic_id for topic_id, _, _ in group.state_partitions()}:
        forgotten = {name: numbers for id_, name, numbers in group.state_partitions() if id_ in gone}
        context.record(
            context.rule("SI18"),
            EntryType.SHARE_PARTITIONS_REMOVED,
            f"the topic was deleted, and with it the state of {in_words(forgotten)}",
            partitions=forgotten,
        )
        group.initializing = _without(group.initializing, gone)
        group.initialized = _without(group.initialized, gone)
        group.deleting = _without(group.deleting, gone)
        stop_watching(group)
        note_gone(context, gone)
    forget_unused(context)
    maybe_end_deletion(context)


def forget_unused(context: StepContext) -> None:
    """Forget the topics that no subscription, no state, no member's partitions and no target refers to (row
    MI15).
    """
    group = context.group_of(ShareGroup)
    used = {id_ for target in group.target.values() for id_ in target}
    used.update(topic_id for topic_id, _, _ in group.state_partitions())
    for member in group.members.values():
        used.update(member.assigned)
    forget_topics(context, group, used)


def _without(topics: dict[bytes, T], gone: set[bytes]) -> dict[bytes, T]:
    return {topic_id: topic for topic_id, topic in topics.items() if topic_id not in gone}
