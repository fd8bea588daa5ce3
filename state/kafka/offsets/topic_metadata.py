"""TopicMetadata: offsets of deleted topics are removed. Rows D6 to D9.

Source: OffsetMetadataManager.onTopicsDeleted. Kafka's coordinator receives the ids of deleted topics. This
coordinator receives the existing topics from a watcher, whose broker may lag.
"""

from collections.abc import Callable, Collection

from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.offsets import Offset
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImage
from state.kafka.context import RuleId, StepContext
from state.kafka.group import Group
from state.kafka.offsets.fetch import is_of_another_topic
from state.kafka.offsets.pending import forget_pending, set_topic_id

# The number of deleted topic ids that a group remembers.
DELETED_IDS_MAX = 64


def topic_metadata(context: StepContext, request: TopicMetadata) -> None:
    """Remove the offsets of deleted topics, and store the topic ids of the others. Known metadata changes
    nothing.
    """
    pending = context.group.pending_partitions()
    for name, image in request.topics.items():
        if name not in context.group.offsets and name not in pending:
            continue
        offsets = _offsets_of(context, name)
        if image is None:
            _forget(context, context.rule("D6"), name, lambda _: True, "the topic was deleted")
        elif image.id.bytes in context.group.deleted_topic_ids:
            context.rule("D9")
        else:
            _update_topic_id(context, name, image, offsets)


def _offsets_of(context: StepContext, name: str) -> list[Offset]:
    """The offsets of a topic, committed ones and those that are pending in transactions."""
    group = context.group
    offsets = list(group.offsets.get(name, {}).values())
    for entry in group.pending:
        offsets += entry.offsets.get(name, {}).values()
    return offsets


def _update_topic_id(context: StepContext, name: str, image: TopicImage, offsets: list[Offset]) -> None:
    topic_id = image.id.bytes
    if any(is_of_another_topic(offset, topic_id) for offset in offsets):
        why = "the topic was deleted and made again"
        _forget(context, context.rule("D7"), name, lambda offset: offset.topic_id != topic_id, why)
    elif any(offset.topic_id is None for offset in offsets):
        context.rule("D8")
        for partition, offset in list(context.group.offsets.get(name, {}).items()):
            if offset.topic_id is None:
                context.commit(name, partition, replace(offset, topic_id=topic_id))
        set_topic_id(context, name, topic_id)


def _forget(
    context: StepContext, rule: RuleId, name: str, is_gone: Callable[[Offset], bool], why: str
) -> None:
    group = context.group
    ids = dict.fromkeys(
        offset.topic_id
        for offset in _offsets_of(context, name)
        if offset.topic_id is not None and is_gone(offset)
    )
    remember_deleted(group, ids)
    committed = {p for p, offset in group.offsets.get(name, {}).items() if is_gone(offset)}
    pending = forget_pending(context, lambda topic, _, offset: topic == name and is_gone(offset))
    if committed:
        context.forget({name: sorted(committed)})
    partitions = {name: sorted(committed | pending.get(name, set()))}
    context.record(rule, EntryType.OFFSETS_DELETED, why, partitions=partitions)


def remember_deleted(group: Group, ids: Collection[bytes]) -> None:
    """Remember these topic ids as the latest that were deleted or replaced."""
    deleted = [*(known for known in group.deleted_topic_ids if known not in ids), *ids]
    group.deleted_topic_ids = deleted[-DELETED_IDS_MAX:]
