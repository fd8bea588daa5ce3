"""Requests for which kafka-python's admin client has no method, over its connections with TLS and SASL."""

from typing import Any, NamedTuple
from uuid import UUID

from kafka import KafkaAdminClient
from kafka.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError, for_code
from kafka.protocol.consumer import FetchRequest

_READ_UNCOMMITTED = 0
_CONSUMER_REPLICA_ID = -1
# Minimum and maximum versions of the request. Fetch by id uses the first version with ids, which every broker
# since 3.1 has. Fetch by name uses the versions from the first with today's batch format to the last with
# names.
_VERSIONS_BY_ID, _VERSIONS_BY_NAME = (13, 13), (4, 12)


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
    leaders: dict[int, int]  # the leader's id by partition; negative if there is no leader

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
    (metadata,) = admin.describe_topics([name])
    if metadata["error_code"]:
        raise for_code(metadata["error_code"])(name)
    leaders = {p["partition_index"]: p["leader_id"] for p in metadata["partitions"]}
    return FoundTopic(name, UUID(str(metadata["topic_id"])), leaders)


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

    Return the response's only partition, which may have an error code. If `by_id` is true, the request
    has the topic's id, so a later topic of the same name is not read.
    """
    min_version, max_version = _VERSIONS_BY_ID if by_id else _VERSIONS_BY_NAME
    fetch_topic = FetchRequest.FetchTopic
    fetch_partition = fetch_topic.FetchPartition(
        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    topic_key = {"topic_id": topic.topic_id} if by_id else {"topic": topic.name}
    request = FetchRequest(
        replica_id=_CONSUMER_REPLICA_ID,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=_READ_UNCOMMITTED,
        topics=[fetch_topic(partitions=[fetch_partition], **topic_key)],
        min_version=min_version,
        max_version=max_version,
    )
    response = send(admin, request, topic.leader_of(partition))
    if not response.responses:  # an error of the whole request
        raise for_code(response.error_code)(f"{topic.name}-{partition}")
    (partition_response,) = response.responses[0].partitions
    return partition_response
