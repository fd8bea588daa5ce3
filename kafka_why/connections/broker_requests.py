"""Requests that kafka-python's admin client has no method for, over its connections with TLS and SASL."""

from typing import Any, NamedTuple
from uuid import UUID

from kafka import KafkaAdminClient
from kafka.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError, for_code
from kafka.protocol.consumer import FetchRequest

_READ_UNCOMMITTED = 0
_CONSUMER = -1
# Minimum and maximum versions. Fetch by id: the first one with ids, which every broker since 3.1 has. Fetch
# by name: from the first one with today's batch format to the last one with names.
_BY_ID, _BY_NAME = (13, 13), (4, 12)


def send(admin: KafkaAdminClient, request: Any, node_id: int | None = None) -> Any:
    """Send a request to a broker, any broker if `node_id` is None, and return its response. Raises
    KafkaError.
    """
    manager = admin._manager
    return manager.run(manager.send, request, node_id)


class FoundTopic(NamedTuple):
    """A topic in a Metadata response: its id, and the leader of each partition, negative if there is none."""

    name: str
    topic_id: UUID
    leaders: dict[int, int]

    def leader_of(self, partition: int) -> int:
        """Return the leader's id. Raises UnknownTopicOrPartitionError, NotLeaderForPartitionError."""
        leader = self.leaders.get(partition)
        if leader is None:
            raise UnknownTopicOrPartitionError(f"{self.name}-{partition}")
        if leader < 0:
            raise NotLeaderForPartitionError(f"{self.name}-{partition} has no leader")
        return leader


def find_topic(admin: KafkaAdminClient, name: str) -> FoundTopic:
    """Return a topic from a Metadata request.

    Raises KafkaError, in particular UnknownTopicOrPartitionError if it does not exist.
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
    """Fetch stored batches from the partition's leader, up to the high watermark.

    Return the partition's part of the response, which may have an error code. Raises KafkaError. The topic is
    fetched by its id, so a topic that was created again is not mistaken for the old one.
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
