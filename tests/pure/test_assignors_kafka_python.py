"""Against kafka-python's assignors: the same answer for thousands of random groups.

Left out is what kafka-python 3.0.12 gets wrong by Kafka's own (Java) assignors, which we follow:

- It groups members with itertools.groupby on the unsorted list, so members are lost where static and dynamic
  ones alternate. Here the static members come first.
- Its round robin raises KeyError as soon as it has to pass over a member. Here all members of a round-robin
  group have the same topics. (test_assignors_java.py has Kafka's own answers for the rest.)
- A topic that a member names twice counts twice in its range. Here topics are named once.
- It sorts by code point, not by UTF-16 unit. Here names are ASCII.
"""

from random import Random

import pytest
from kafka.cluster import ClusterMetadata
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.protocol.consumer import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from kafka.protocol.metadata import MetadataResponse

from assignors.kafka import ASSIGNORS
from assignors.kafka.api import MemberId, MemberSubscription, Subscription, TopicPartition

CASES = 3000
COUNTS = {f"t{count}{copy}": count for count in (0, 1, 2, 3, 5, 8, 13) for copy in "ab"}
TOPICS = [*COUNTS, "without-metadata"]


@pytest.fixture(scope="module")
def cluster() -> ClusterMetadata:
    """A cluster whose topics are COUNTS, as its metadata response tells."""
    topic_of = MetadataResponse.MetadataResponseTopic
    partition_of = topic_of.MetadataResponsePartition
    topics = [
        topic_of(name=name, partitions=[partition_of(partition_index=p) for p in range(count)])
        for name, count in COUNTS.items()
    ]
    broker = MetadataResponse.MetadataResponseBroker(node_id=0, host="localhost", port=9092)
    response = MetadataResponse(version=1, brokers=[broker], topics=topics)
    cluster = ClusterMetadata(bootstrap_servers=["localhost:9092"])
    cluster.update_metadata(MetadataResponse.decode(response.encode(version=1), version=1))
    return cluster


def random_group(random: Random, *, same_topics: bool) -> dict[MemberId, MemberSubscription]:
    """Up to 12 members in any order but static before dynamic."""
    size = random.randint(1, 12)
    static = random.randint(0, size)
    member_ids = random.sample([f"client{i}-{random.getrandbits(32):08x}" for i in range(size)], size)
    instance_ids = random.sample([f"instance-{i}" for i in range(size)], size)
    shared = tuple(random.sample(TOPICS, random.randint(0, 6)))
    return {
        member_id: MemberSubscription(
            Subscription(shared if same_topics else tuple(random.sample(TOPICS, random.randint(0, 6)))),
            instance_ids[i] if i < static else None,
        )
        for i, member_id in enumerate(member_ids)
    }


def kafka_python_assign(
    assignor: type[AbstractPartitionAssignor],
    cluster: ClusterMetadata,
    group: dict[MemberId, MemberSubscription],
) -> dict[MemberId, list[TopicPartition]]:
    members = [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=member_id,
            group_instance_id=member.group_instance_id,
            metadata=ConsumerProtocolSubscription(0, list(member.subscription.topics), b""),
        )
        for member_id, member in group.items()
    ]
    answer = assignor.assign(cluster, members)
    return {
        member_id: [TopicPartition(topic, p) for topic, numbers in given.assigned_partitions for p in numbers]
        for member_id, given in answer.items()
    }


@pytest.mark.parametrize("same_topics", [True, False])
def test_range(cluster: ClusterMetadata, same_topics: bool) -> None:
    random = Random(1)
    for _ in range(CASES):
        group = random_group(random, same_topics=same_topics)
        theirs = kafka_python_assign(RangePartitionAssignor, cluster, group)
        assert ASSIGNORS["range"].assign(COUNTS, group) == theirs


def test_roundrobin(cluster: ClusterMetadata) -> None:
    random = Random(2)
    for _ in range(CASES):
        group = random_group(random, same_topics=True)
        theirs = kafka_python_assign(RoundRobinPartitionAssignor, cluster, group)
        assert ASSIGNORS["roundrobin"].assign(COUNTS, group) == theirs


def test_the_names_are_kafkas() -> None:
    assert list(ASSIGNORS) == [RangePartitionAssignor.name, RoundRobinPartitionAssignor.name]
    assert all(name == assignor.name for name, assignor in ASSIGNORS.items())
