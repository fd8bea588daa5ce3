"""The adapters with kafka-python's metadata, messages and assignors, without a broker."""

import pytest
from kafka.cluster import ClusterMetadata
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kafka.protocol.metadata import MetadataResponse
from kafka.structs import TopicPartition as KafkaTopicPartition

from assignors.kafka import ASSIGNORS, BROKER_ASSIGNORS
from assignors.kafka.server_side import COORDINATOR_ASSIGNORS
from clients.assignor_adapter import AssignorAdapter, CoordinatorAdapter, LagAwareAdapter, Member
from kafka_why.contract.protocols.subscriptions import TopicPartition

EVERY = {**ASSIGNORS, **BROKER_ASSIGNORS}
Owned = dict[str, set[KafkaTopicPartition]]


def make_cluster(counts: dict[str, int], racks: tuple[str, ...] = ("a", "b")) -> ClusterMetadata:
    """Return a broker in each rack. Partition n has its one replica on broker n modulo the number of
    brokers.
    """
    response_topic = MetadataResponse.MetadataResponseTopic
    partition_of = response_topic.MetadataResponsePartition
    topics = [
        response_topic(
            name=name,
            partitions=[
                partition_of(partition_index=p, leader_id=p % len(racks), replica_nodes=[p % len(racks)])
                for p in range(count)
            ],
        )
        for name, count in counts.items()
    ]
    brokers = [
        MetadataResponse.MetadataResponseBroker(node_id=n, host="localhost", port=9092, rack=rack)
        for n, rack in enumerate(racks)
    ]
    response = MetadataResponse(version=1, brokers=brokers, topics=topics)
    cluster = ClusterMetadata(bootstrap_servers=["localhost:9092"])
    cluster.update_metadata(MetadataResponse.decode(response.encode(version=1), version=1))
    return cluster


class RebalancingConsumers:
    """Consumers that rebalance with the messages they would send. Any of them can lead."""

    def __init__(self, cluster: ClusterMetadata, *topics: str) -> None:
        self.cluster = cluster
        self.topics = topics
        self.assignors: dict[str, AbstractPartitionAssignor] = {}
        self.generation = 0

    def rebalance(self, leader: str | None = None) -> Owned:
        """Run one round. All metadata and assignments are encoded, as the coordinator would pass them on."""
        self.generation += 1
        members = [
            Member(
                member_id=member_id,
                group_instance_id=None,
                metadata=ConsumerProtocolSubscription.decode(assignor.metadata(set(self.topics)).encode()),
            )
            for member_id, assignor in self.assignors.items()
        ]
        dealt = self.assignors[leader or min(self.assignors)].assign(self.cluster, members)
        owned: Owned = {}
        for member_id, assignor in self.assignors.items():
            assignment = ConsumerProtocolAssignment.decode(dealt[member_id].encode())
            assignor.on_assignment(assignment, self.generation)
            owned[member_id] = set(assignment.partitions())
        return owned


def sizes(owned: Owned) -> list[int]:
    return sorted(len(partitions) for partitions in owned.values())


@pytest.mark.parametrize("name", EVERY)
def test_coordinator_adapter_differs_only_in_its_name_and_assigns_nothing(name: str) -> None:
    plain, ours = AssignorAdapter(EVERY[name]), CoordinatorAdapter(EVERY[name])
    assert ours.name == f"coordinator:{name}"
    assert ours.name in COORDINATOR_ASSIGNORS
    assert ours.supported_protocols() == plain.supported_protocols()
    given = ConsumerProtocolAssignment(0, [("t", [1, 2])], b"")
    for adapter in (plain, ours):
        adapter.on_assignment(given, 3)
    assert ours.metadata({"t"}).encode() == plain.metadata({"t"}).encode()
    assert ours.assign(make_cluster({"t": 7}), []) == {}


@pytest.mark.parametrize(
    ("theirs", "leader"),
    [
        (StickyPartitionAssignor, "mine"),
        (CooperativeStickyAssignor, "mine"),
        (CooperativeStickyAssignor, "theirs"),
    ],
)
def test_group_may_mix_ours_with_kafka_pythons(theirs: type[AbstractPartitionAssignor], leader: str) -> None:
    group = RebalancingConsumers(make_cluster({"t": 12}), "t")
    group.assignors["mine"] = AssignorAdapter(EVERY[theirs.name])
    group.assignors["theirs"] = theirs()
    before = group.rebalance(leader)
    assert sizes(before) == [6, 6]
    assert group.rebalance(leader) == before
    group.assignors["newcomer"] = theirs()
    group.rebalance(leader)
    after = group.rebalance(leader)
    assert sizes(after) == [4, 4, 4]
    assert sum(len(partitions & after[member_id]) for member_id, partitions in before.items()) == 8


@pytest.mark.parametrize("name", ["range", "sticky", "cooperative-sticky"])
def test_members_get_partitions_on_their_rack(name: str) -> None:
    group = RebalancingConsumers(make_cluster({"t": 8}), "t")
    for member_id, rack in (("m1", "b"), ("m2", "a")):
        group.assignors[member_id] = AssignorAdapter(EVERY[name], rack)
    owned = group.rebalance()
    assert {p.partition % 2 for p in owned["m1"]} == {1}
    assert {p.partition % 2 for p in owned["m2"]} == {0}


def test_lag_aware_assignor_requests_weights_of_the_partitions_it_assigns() -> None:
    asked: list[frozenset[TopicPartition]] = []

    def weigh(partitions: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        asked.append(partitions)
        return {TopicPartition("t", 0): 90, TopicPartition("t", 1): 40, TopicPartition("t", 2): 50}

    group = RebalancingConsumers(make_cluster({"t": 4}), "t")
    group.assignors = {member_id: LagAwareAdapter(weigh) for member_id in "ab"}
    owned = group.rebalance()
    assert asked == [frozenset(TopicPartition("t", number) for number in range(4))]
    busy = [{p.partition for p in partitions} - {3} for partitions in owned.values()]
    assert sorted(map(sorted, busy)) == [[0], [1, 2]]
    assert group.rebalance() == owned
