"""This project's assignors for kafka-python's consumers: AbstractPartitionAssignors around an `Assignor`.

A consumer takes an adapter directly: ``KafkaConsumer(partition_assignment_strategy=[AssignorAdapter(...)],
...)``. The other members of the group may be kafka-python's or Java's, with an assignor of the same name.
`sticky` has a limit. kafka-python's `sticky` writes a member's earlier partitions in a format that Java's
clients cannot read, and it cannot read what Java's clients and this adapter write. A leader that cannot read
the earlier partitions assigns without them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from kafka.cluster import ClusterMetadata
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol
from kafka.protocol.consumer import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from assignors.kafka.server_side import PREFIX
from assignors.kafka.uniform import UniformAssignor
from assignors.lag_aware import LagAwareAssignor
from kafka_why.contract.protocols.subscriptions import (
    Claim,
    MemberId,
    MemberSubscription,
    PartitionRacks,
    Subscription,
    TopicPartition,
    encode_cooperative_user_data,
    encode_sticky_user_data,
    encode_subscription,
)
from kafka_why.sticky.api import NO_RACKS, Assignor
from kafka_why.sticky.assignor import CooperativeStickyAssignor, StickyAssignor

Member: TypeAlias = JoinGroupResponse.JoinGroupResponseMember
Weigh = Callable[[frozenset[TopicPartition]], Mapping[TopicPartition, int]]

_SENDS_USER_DATA: Final = {StickyAssignor.name, LagAwareAssignor.name}
_SENDS_OWNED: Final = {CooperativeStickyAssignor.name, UniformAssignor.name}


class AssignorAdapter(AbstractPartitionAssignor):  # type: ignore[misc]  # it has no types
    """An assignor for one consumer, which writes the consumer's metadata. It assigns if the consumer is the
    leader.

    Each consumer needs its own adapter. `rack_id` is the consumer's rack (Kafka's client.rack), or None.
    """

    def __init__(self, assignor: Assignor, rack_id: str | None = None) -> None:
        self.assignor = assignor
        self._rack_id = rack_id
        self._claim: Claim | None = None  # the consumer's last assignment, or None before the first

    @property
    def name(self) -> str:
        """The protocol name in JoinGroup."""
        return self.assignor.name

    def supported_protocols(self) -> list[RebalanceProtocol]:
        """Return COOPERATIVE for `cooperative-sticky`, which kafka-python does not mix with eager assignors,
        and EAGER for all others.
        """
        if self.assignor.name == CooperativeStickyAssignor.name:
            return [RebalanceProtocol.COOPERATIVE]
        return [RebalanceProtocol.EAGER]

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolSubscription:
        """Return the metadata for JoinGroup: the topics, and for some assignors the earlier partitions."""
        claim = self._claim or Claim()
        user_data: bytes | None = None
        if self.assignor.name in _SENDS_USER_DATA and self._claim is not None:
            user_data = encode_sticky_user_data(claim)
        elif self.assignor.name == CooperativeStickyAssignor.name:
            user_data = encode_cooperative_user_data(claim.generation_id)
        sends_owned = self.assignor.name in _SENDS_OWNED
        subscription = Subscription(
            tuple(topics),
            user_data,
            claim.partitions if sends_owned else (),
            claim.generation_id if sends_owned and self._claim is not None else None,
            self._rack_id,
        )
        return ConsumerProtocolSubscription.decode(encode_subscription(subscription))

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Store the consumer's assignment and its generation for the next `metadata`."""
        self._claim = Claim(tuple(TopicPartition(*p) for p in assignment.partitions()), generation)

    def assign(
        self, cluster: ClusterMetadata, members: Iterable[Member]
    ) -> dict[MemberId, ConsumerProtocolAssignment]:
        """Assign, as the leader, all partitions of the topics that the members subscribe to."""
        subscriptions = {
            member.member_id: MemberSubscription(_subscription(member.metadata), member.group_instance_id)
            for member in members
        }
        topics = {t for member in subscriptions.values() for t in member.subscription.topics}
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        has_racks = any(member.subscription.rack_id for member in subscriptions.values())
        racks = _racks(cluster, counts) if has_racks else NO_RACKS
        assigned = self._assignor_for(counts).assign(counts, subscriptions, racks)
        return {member_id: _assignment(partitions) for member_id, partitions in assigned.items()}

    def _assignor_for(self, counts: Mapping[str, int]) -> Assignor:
        return self.assignor


class CoordinatorAdapter(AssignorAdapter):
    """An adapter that leaves the assignment to the coordinator, which has the same assignor.

    It is only for groups of this project's coordinator. The gateway adds the topics' partition counts to the
    requests.
    """

    @property
    def name(self) -> str:
        """The protocol name in JoinGroup: `coordinator:` and the assignor's name."""
        return PREFIX + self.assignor.name

    def assign(
        self, cluster: ClusterMetadata, members: Iterable[Member]
    ) -> dict[MemberId, ConsumerProtocolAssignment]:
        """Return no assignment, because the coordinator ignores it. Clients with KIP-814 do not call this."""
        return {}


class LagAwareAdapter(AssignorAdapter):
    """An adapter of `lag-aware` with new weights in each rebalance that this consumer leads.

    `weigh` returns the lags of the given partitions, or other weights of 0 or more. It runs during the
    rebalance, so the group waits for it, and it must not use this consumer.
    """

    def __init__(self, weigh: Weigh, tolerance: int = 0) -> None:
        super().__init__(LagAwareAssignor(tolerance=tolerance))
        self._weigh = weigh
        self._tolerance = tolerance

    def _assignor_for(self, counts: Mapping[str, int]) -> Assignor:
        partitions = (TopicPartition(topic, n) for topic, count in counts.items() for n in range(count))
        return LagAwareAssignor(self._weigh(frozenset(partitions)), self._tolerance)


def _subscription(metadata: ConsumerProtocolSubscription) -> Subscription:
    # A negative generation and an empty rack become None, as in Kafka.
    return Subscription(
        topics=tuple(metadata.topics),
        user_data=metadata.user_data,
        owned_partitions=tuple(
            TopicPartition(run.topic, n) for run in metadata.owned_partitions for n in run.partitions
        ),
        generation_id=metadata.generation_id if metadata.generation_id >= 0 else None,
        rack_id=metadata.rack_id or None,
    )


def _assignment(partitions: Iterable[TopicPartition]) -> ConsumerProtocolAssignment:
    numbers_of: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers_of.setdefault(topic, []).append(number)
    return ConsumerProtocolAssignment(0, list(numbers_of.items()), b"")


def _racks(cluster: ClusterMetadata, counts: Mapping[str, int]) -> PartitionRacks:
    """Return the racks of all replicas, including offline ones, as in Kafka."""
    rack_of = {broker.node_id: broker.rack for broker in cluster.brokers()}
    racks: dict[str, list[frozenset[str]]] = {}
    for topic, count in counts.items():
        # ClusterMetadata's public methods return only leaders. This attribute has the replicas.
        partitions = cluster._partitions.get(topic, {})
        replicas = [partitions[n].replica_nodes if n in partitions else () for n in range(count)]
        racks[topic] = [frozenset(rack_of[n] for n in nodes if rack_of.get(n)) for nodes in replicas]
    return racks
