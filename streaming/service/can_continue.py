"""The check if a query can ever continue from its checkpoint: before each start of the query, after each
failed batch, and when the replica sees records disappear. If it cannot, the service ends, because each
further attempt would fail, and no batch would ever confirm the early answers given meanwhile.
"""

import time
from collections.abc import Mapping

from kafka import TopicPartition
from kafka.errors import KafkaError
from msgspec.structs import replace

from checkpoints.checkpoint import Checkpoint
from kafka_why.connections.client_config import ClientConfig
from kafka_why.local_files import FolderError
from kafka_why.topic_reader import TopicReader
from streaming.service.topics import FoundTopics, TopicsError, find_topic

# A missing topic may be a new one that a broker does not know yet.
_GONE_AFTER_S = 2.0
_RETRY_S = 0.2
_UNREAD = "(docs/recovery.md, 'Requests that were deleted unread')"


class CannotContinue(FolderError):
    """The query can never continue from its checkpoint. The message has the reason and the remedy."""


class RequestsLost(CannotContinue):
    """Records were deleted before a committed batch handled them.

    `lost` has the first offset and the one after the last by partition, None if all later ones are lost.
    """

    def __init__(self, message: str, lost: Mapping[int, tuple[int, int | None]]) -> None:
        super().__init__(message)
        self.lost = lost


class TopicLost(RequestsLost):
    """The topic was deleted, or deleted and created again. Spark's Kafka clients would wait for minutes in
    the first case, and continue in the second.
    """


def check_can_continue(client_config: ClientConfig, checkpoint: Checkpoint) -> None:
    """Check the topic, its records and Spark's logs. Raises CannotContinue, FolderError, and KafkaError if no
    broker answers.
    """
    identity = checkpoint.identity()
    topic = identity.requests_topic
    try:
        check_topic(client_config, checkpoint)
    except TopicsError as error:
        raise KafkaError(str(error)) from error
    checkpoint.check_committed(topic)
    _check_records(client_config, topic, handled_ends(checkpoint, topic))


def check_topic(client_config: ClientConfig, checkpoint: Checkpoint) -> None:
    """Check that the topic is still the one that the state belongs to, if any.

    Raises CannotContinue and TopicsError.
    """
    pinned = checkpoint.pinned()
    if pinned is None or not pinned.requests_topic_id:
        return
    topic = pinned.requests_topic
    found = _find(client_config, topic)
    lost = {number: (begin, None) for number, begin in handled_ends(checkpoint, topic).items()}
    is_same_cluster = found.cluster_id == pinned.cluster_id
    if is_same_cluster and not found.ids:
        raise TopicLost(
            f"the topic {topic} does not exist any more, so the state in {checkpoint} cannot continue. "
            f"Requests that were not handled are gone with it {_UNREAD}",
            lost,
        )
    topic_id, partitions = found.ids.get(topic, ""), found.partitions.get(topic, 0)
    is_now = replace(
        pinned, cluster_id=found.cluster_id, requests_topic_id=topic_id, request_partitions=partitions
    )
    try:
        checkpoint.pin(is_now)
    except FolderError as error:
        if is_same_cluster and topic_id != pinned.requests_topic_id:
            raise TopicLost(str(error), lost) from error
        raise CannotContinue(str(error)) from error


def handled_ends(checkpoint: Checkpoint, topic: str) -> dict[int, int]:
    """Return the offsets of the first records that no committed batch has handled, by partition."""
    return checkpoint.planned_ends(checkpoint.last_batch("commits"), topic)


def _find(client_config: ClientConfig, topic: str) -> FoundTopics:
    give_up_s = time.monotonic() + _GONE_AFTER_S
    while True:
        found = find_topic(client_config, topic)
        if found.ids or time.monotonic() > give_up_s:
            return found
        time.sleep(_RETRY_S)


def _check_records(client_config: ClientConfig, topic: str, begin: Mapping[int, int]) -> None:
    """Check that the topic reaches these offsets, and has all records from there on."""
    if not begin:
        return
    partitions = {number: TopicPartition(topic, number) for number in sorted(begin)}
    with TopicReader(client_config) as reader:
        first, ends = reader.beginnings(partitions.values()), reader.ends(partitions.values())
    deleted = {
        number: (begin[number], first[partition])
        for number, partition in partitions.items()
        if first[partition] > begin[number]
    }
    if deleted:
        ranges = ", ".join(f"{topic}[{number}] {low} to {end - 1}" for number, (low, end) in deleted.items())
        raise RequestsLost(
            f"records were deleted before they were handled: {ranges}. The coordinator does not skip them, "
            f"because requests may be among them {_UNREAD}",
            deleted,
        )
    cut = [f"{topic}[{number}]" for number, key in partitions.items() if ends[key] < begin[number]]
    if cut:
        raise CannotContinue(
            f"the topic has lost records that were handled: {', '.join(cut)} ends before the offset up to "
            f"which it was read. Later records at these offsets would be skipped {_UNREAD}"
        )
