"""TopicMetadata: offsets of deleted topics are removed. Rows D6 to D9.

Source: OffsetMetadataManager.onTopicsDeleted. Kafka's coordinator receives the ids of deleted topics. This
coordinator receives the existing topics from a watcher, whose broker may lag.
"""

from msgspec.structs import replace

from state.kafka.context import RuleId, StepContext
from state.kafka.group import Offset
from state.kafka.history import EntryType
from state.kafka.offsets.fetch import is_of_another_topic
from state.kafka.requests import TopicImage, TopicMetadata

# The number of deleted topic ids that a group remembers.
DELETED_IDS_MAX = 64


def topic_metadata(context: StepContext, request: TopicMetadata) -> None:
    """Remove the offsets of deleted topics, and store the topic ids of the others. Known metadata changes
    nothing.
    """
    if not context.has_group:
        return
    for name, image in request.topics.items():
        offsets = context.group.offsets.get(name)
        if offsets is None:
            continue
        if image is None:
            _forget(context, context.rule("D6"), name, offsets, "the topic was deleted")
        elif image.id.bytes in context.group.deleted_topic_ids:
            context.rule("D9")
        else:
            _update_topic_id(context, name, image, offsets)


def _update_topic_id(context: StepContext, name: str, image: TopicImage, offsets: dict[int, Offset]) -> None:
    topic_id = image.id.bytes
    unknown = {p: offset for p, offset in offsets.items() if offset.topic_id is None}
    if any(is_of_another_topic(offset, topic_id) for offset in offsets.values()):
        row = context.rule("D7")
        old = {p: offset for p, offset in offsets.items() if offset.topic_id != topic_id}
        _forget(context, row, name, old, "the topic was deleted and made again")
    elif unknown:
        context.rule("D8")
        for partition, offset in unknown.items():
            context.commit(name, partition, replace(offset, topic_id=topic_id))


def _forget(context: StepContext, rule: RuleId, name: str, offsets: dict[int, Offset], why: str) -> None:
    ids = dict.fromkeys(offset.topic_id for offset in offsets.values() if offset.topic_id is not None)
    deleted = [*(known for known in context.group.deleted_topic_ids if known not in ids), *ids]
    context.group.deleted_topic_ids = deleted[-DELETED_IDS_MAX:]
    gone = {name: sorted(offsets)}
    context.forget(gone)
    context.record(rule, EntryType.OFFSETS_DELETED, why, partitions=gone)
