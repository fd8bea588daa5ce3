"""OffsetDelete: removal of offsets by request (KIP-496). Rows D1 to D5.

Source: OffsetMetadataManager.deleteOffsets, ClassicGroup.validateOffsetDelete.
"""

from collections.abc import Container, Mapping

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import OffsetDelete, ReplyTo, TopicPartitions
from kafka_why.contract.kafka.responses import OffsetDeleteResponse, PartitionError, TopicErrors
from state.kafka.context import RuleId, StepContext, Verdict, deciding
from state.kafka.group import Group
from state.kafka.offsets.pending import forget_pending


def delete_offsets(context: StepContext, request: OffsetDelete, reply_to: ReplyTo) -> None:
    """Remove offsets of topics that no member of the group subscribes to."""
    group = context.group
    if not group.is_empty and not group.is_consumer_group():
        context.reply(reply_to, OffsetDeleteResponse, context.rule("D2"), ErrorCode.NON_EMPTY_GROUP)
        return
    subscribed = group.subscribed_of(topic.name for topic in request.topics)
    gone: dict[str, set[int]] = {}
    deleted: RuleId | None = None
    verdicts: list[Verdict] = []
    topics = []
    pending = group.pending_partitions()
    for topic in request.topics:
        found = _found(group, topic, gone, pending.get(topic.name, ()))
        if topic.name in subscribed:
            verdict = context.rule("D3"), ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        elif found:
            deleted = context.rule("D4")
            verdict = deleted, ErrorCode.NONE
            gone.setdefault(topic.name, set()).update(found)
        else:
            verdict = context.rule("D5"), ErrorCode.NONE
        verdicts.append(verdict)
        topics.append(
            TopicErrors(topic.name, [PartitionError(p, verdict[1]) for p in topic.partition_indexes])
        )
    if deleted is not None:
        forget_pending(context, lambda topic, partition, _: partition in gone.get(topic, ()))
        partitions = {topic: sorted(numbers) for topic, numbers in gone.items()}
        context.forget(
            {
                topic: [p for p in numbers if p in group.offsets[topic]]
                for topic, numbers in partitions.items()
                if topic in group.offsets
            }
        )
        context.record(deleted, EntryType.OFFSETS_DELETED, "deleted by request", partitions=partitions)
    context.reply(reply_to, OffsetDeleteResponse, deciding(verdicts), topics=topics)


def _found(
    group: Group, topic: TopicPartitions, gone: Mapping[str, set[int]], pending: Container[int]
) -> set[int]:
    """The requested partitions that have an offset, committed or pending, and are not in `gone` already.

    A request may name a topic many times, so the work depends on the requested partitions, not on the
    group's.
    """
    offsets, seen = group.offsets.get(topic.name, {}), gone.get(topic.name, ())
    return {p for p in topic.partition_indexes if (p in offsets or p in pending) and p not in seen}
