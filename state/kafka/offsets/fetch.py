"""OffsetFetch: what is committed. Rows Q1 to Q3.

Source: OffsetMetadataManager.fetchOffsets, fetchAllOffsets.
"""

from collections.abc import Mapping

from state.kafka.context import StepContext
from state.kafka.group import Offset
from state.kafka.requests import OffsetFetch, ReplyTo
from state.kafka.responses import FetchedPartition, FetchedTopic, OffsetFetchResponse

_NOTHING = Offset(offset=-1, leader_epoch=-1, metadata="", committed_at_ms=-1)


def fetch(context: StepContext, request: OffsetFetch, reply_to: ReplyTo) -> None:
    """Tell offsets. It is never an error not to have any, and no group comes of asking."""
    offsets: Mapping[str, Mapping[int, Offset]] = {}
    if context.has_group:
        offsets = context.group.offsets
    else:
        context.rule("Q1")
    if request.topics is None:
        context.rule("Q2")
        asked = [(topic, list(partitions)) for topic, partitions in offsets.items()]
    else:
        context.rule("Q3")
        asked = [(topic.name, topic.partition_indexes) for topic in request.topics]
    topics = [
        FetchedTopic(topic, [_fetched(p, offsets.get(topic, {}).get(p, _NOTHING)) for p in partitions])
        for topic, partitions in asked
    ]
    context.reply(reply_to, OffsetFetchResponse, topics=topics)


def _fetched(partition: int, offset: Offset) -> FetchedPartition:
    return FetchedPartition(partition, offset.offset, offset.leader_epoch, offset.metadata)
