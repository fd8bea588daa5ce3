"""The arguments of kafka-python's assignors."""

from collections.abc import Iterable, Mapping

from kafka.cluster import ClusterMetadata
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData
from kafka.protocol.consumer import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from kafka.protocol.metadata import MetadataResponse

from kafka_why.contract.protocols.subscriptions import MemberId, TopicPartition

STICKY: Mapping[str, type[AbstractPartitionAssignor]] = {
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def cluster_of(counts: Mapping[str, int]) -> ClusterMetadata:
    """Return a cluster with these topics, built from a metadata response."""
    topic_of = MetadataResponse.MetadataResponseTopic
    partition_of = topic_of.MetadataResponsePartition
    topics = [
        topic_of(name=name, partitions=[partition_of(partition_index=p) for p in range(count)])
        for name, count in counts.items()
    ]
    broker = MetadataResponse.MetadataResponseBroker(node_id=0, host="localhost", port=9092)
    response = MetadataResponse(version=1, brokers=[broker], topics=topics)
    cluster = ClusterMetadata(bootstrap_servers=["localhost:9092"])
    cluster.update_metadata(MetadataResponse.decode(response.encode(version=1), version=1))
    return cluster


def tell(name: str, topics: tuple[str, ...], owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Return a member's JoinGroup metadata as kafka-python encodes it."""
    partitions_of: dict[str, list[int]] = {}
    for topic, number in owned:
        partitions_of.setdefault(topic, []).append(number)
    runs = list(partitions_of.items())
    if name == "cooperative-sticky":
        message = ConsumerProtocolSubscription(2, list(topics), b"", runs, generation)
    else:
        message = ConsumerProtocolSubscription(0, list(topics), StickyAssignorUserData(runs, generation))
    return bytes(message.encode())


def members_of(told: Mapping[MemberId, bytes]) -> list[JoinGroupResponse.JoinGroupResponseMember]:
    """Return the members of a group, by their metadata, as the leader receives them."""
    return [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=member_id, group_instance_id=None, metadata=ConsumerProtocolSubscription.decode(data)
        )
        for member_id, data in told.items()
    ]
