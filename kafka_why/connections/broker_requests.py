"""Requests for which kafka-python's admin client has no method, over its connections with TLS and SASL."""

from typing import Any, NamedTuple
from uuid import UUID

from kafka import KafkaAdminClient
from kafka.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError, for_code
from kafka.protocol.consumer import FetchRequest

_READ_UNCOMMITTED = 0
_CONSUMER = -1
# Minimum and maximum versions. Fetch by id uses the first version with ids, which every broker since 3.1 has.
# Fetch by name uses the versions from the first with today's batch format to the last with names.
_BY_ID, _BY_NAME = (13, 13), (4, 12)


def send(admin: KafkaAdminClient, request: Any, node_id: int | None = None) -> Any:
    """Send a request to a broker, and return the response. Raises KafkaError.

    If `node_id` is None, any broker gets it.
    """
    manager = admin._manager
    return manager.run(manager.send, request, node_id)


class FoundTopic(NamedTuple):
    """A topic in a Metadata response."""

    name: str
    topic_id: UUID
    leaders: dict[int, int]  # by partition; negative without a leader

    def leader_of(self, partition: int) -> int:
        """Return the leader's id. Raises UnknownTopicOrPartitionError, NotLeaderForPartitionError."""
        leader = self.leaders.get(partition)
        if leader is None:
            raise UnknownTopicOrPartitionError(f"{self.name}-{partition}")
        if leader < 0:
            raise NotLeaderForPartitionError(f"{self.name}-{partition} has no leader")
        return leader


def find_topic(admin: KafkaAdminClient, name: str) -> FoundTopic:
    """Request the metadata of a topic, and return it. Raises KafkaError.

    UnknownTopicOrPartitionError means that the topic does not exist.
    """
    (found,) = admin.describe_topics([name])
    if found["error_code"]:
        raise for_code(found["error_code"])(name)
    leaders = {p["partition_index"]: p["leader_id"] for p in found["partitions"]}
    return FoundTopic(name, UUID(str(found["topic_id"])), leaders)


def fetch(
    admin: KafkaAdminClient,
    topic: FoundTopic,
    partition: int,
    offset: int,
    *,
    by_id: bool,
    max_wait_ms: int,
    max_bytes: int,
) -> Any:
    """Fetch stored batches from the partition's leader, up to the high watermark. Raises KafkaError.

    Return the partition's part of the response, which may have an error code. With `by_id`, a new topic of
    the same name is not mistaken for `topic`.
    """
    min_version, max_version = _BY_ID if by_id else _BY_NAME
    kind = FetchRequest.FetchTopic
    wanted = kind.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    named = {"topic_id": topic.topic_id} if by_id else {"topic": topic.name}
    request = FetchRequest(
        replica_id=_CONSUMER,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=_READ_UNCOMMITTED,
        topics=[kind(partitions=[wanted], **named)],
        min_version=min_version,
        max_version=max_version,
    )
    answer = send(admin, request, topic.leader_of(partition))
    if not answer.responses:
        raise for_code(answer.error_code)(f"{topic.name}-{partition}")
    (found,) = answer.responses[0].partitions
    return found
