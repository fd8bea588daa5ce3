"""OffsetFetch: what is committed. Rows Q1 to Q3.

Source: OffsetMetadataManager.fetchOffsets, fetchAllOffsets.
"""

from collections.abc import Mapping, Sequence

from state.kafka.context import StepContext
from state.kafka.group import Offset
from state.kafka.requests import OffsetFetch, ReplyTo, TopicPartitions
from state.kafka.responses import FetchedPartition, FetchedTopic, OffsetFetchResponse

_NOTHING = Offset(offset=-1, leader_epoch=-1, metadata="", committed_at_ms=-1)


def fetch(context: StepContext, request: OffsetFetch, reply_to: ReplyTo) -> None:
    """Tell offsets. It is never an error not to have any, and no group comes of asking."""
    offsets: Mapping[str, Mapping[int, Offset]] = {}
    no_group = None
    if context.has_group:
        offsets = context.group.offsets
    else:
        no_group = context.rule("Q1")
    if request.topics is None:
        row = context.rule("Q2")
        asked = [(topic, list(partitions)) for topic, partitions in offsets.items()]
    else:
        row = context.rule("Q3")
        asked = _each_once(request.topics)
    topics = [
        FetchedTopic(topic, [_fetched(p, offsets.get(topic, {}).get(p, _NOTHING)) for p in partitions])
        for topic, partitions in asked
    ]
    context.reply(reply_to, OffsetFetchResponse, no_group or row, topics=topics)


def _each_once(topics: Sequence[TopicPartitions]) -> list[tuple[str, list[int]]]:
    """What is asked for, without repetitions: otherwise a small request could ask for a large metadata text
    many thousand times.
    """
    asked: dict[str, dict[int, None]] = {}
    for topic in topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return [(topic, list(partitions)) for topic, partitions in asked.items()]


def _fetched(partition: int, offset: Offset) -> FetchedPartition:
    return FetchedPartition(partition, offset.offset, offset.leader_epoch, offset.metadata)
