"""Adapters of this project's assignors to AbstractPartitionAssignor, for kafka-python's consumers.

An adapter is an argument of a consumer:
``KafkaConsumer(partition_assignment_strategy=[AssignorAdapter(...)], ...)``. The other members of the group
may be kafka-python's or Java's, with an assignor of the same name.

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
"""Returns the weights of partitions."""

# The assignors that read a member's earlier partitions from the user data of its subscription, and those that
# read them from the subscription's owned partitions.
_USER_DATA_ASSIGNORS: Final = {StickyAssignor.name, LagAwareAssignor.name}
_OWNED_PARTITIONS_ASSIGNORS: Final = {CooperativeStickyAssignor.name, UniformAssignor.name}


class AssignorAdapter(AbstractPartitionAssignor):  # type: ignore[misc]  # it has no types
    """An assignor for one consumer. It writes the consumer's metadata for JoinGroup, and assigns if the
    consumer is the leader.

    Each consumer needs its own adapter. `rack_id` is the consumer's rack (Kafka's client.rack), or None.
    """

    def __init__(self, assignor: Assignor, rack_id: str | None = None) -> None:
        self.assignor = assignor
        self._rack_id = rack_id
        self._last_assignment: Claim | None = None  # with its generation; None before the first assignment

    @property
    def name(self) -> str:
        """The protocol name in JoinGroup."""
        return self.assignor.name

    def supported_protocols(self) -> list[RebalanceProtocol]:
        """Return COOPERATIVE for `cooperative-sticky`, which kafka-python does not mix with eager assignors,
        and EAGER for all others.
        """
        is_cooperative = self.assignor.name == CooperativeStickyAssignor.name
        return [RebalanceProtocol.COOPERATIVE if is_cooperative else RebalanceProtocol.EAGER]

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolSubscription:
        """Return the metadata for JoinGroup: the topics, and for some assignors the earlier partitions."""
        claim = self._last_assignment or Claim()  # without partitions and generation
        user_data: bytes | None = None
        if self.assignor.name in _USER_DATA_ASSIGNORS and self._last_assignment is not None:
            user_data = encode_sticky_user_data(claim)
        elif self.assignor.name == CooperativeStickyAssignor.name:
            user_data = encode_cooperative_user_data(claim.generation_id)
        sends_owned = self.assignor.name in _OWNED_PARTITIONS_ASSIGNORS
        subscription = Subscription(
            tuple(topics),
            user_data,
            claim.partitions if sends_owned else (),
            claim.generation_id if sends_owned and self._last_assignment is not None else None,
            self._rack_id,
        )
        # kafka-python expects an object of its own class, and encodes it again.
        return ConsumerProtocolSubscription.decode(encode_subscription(subscription))

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Store the consumer's assignment and its generation for the next `metadata`."""
        self._last_assignment = Claim(tuple(TopicPartition(*p) for p in assignment.partitions()), generation)

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
        """Return the assignor for a rebalance of topics with these partition counts. Override it if the
        assignor depends on them.
        """
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
        """Return no assignment, because the coordinator ignores the leader's. A client with KIP-814 does not
        call this method, because the coordinator sets `skip_assignment` in the answer to JoinGroup.
        """
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
    """Convert a member's metadata. A negative generation and an empty rack become None, as in Kafka."""
    return Subscription(
        topics=tuple(metadata.topics),
        user_data=metadata.user_data,
        owned_partitions=tuple(
            TopicPartition(owned.topic, n) for owned in metadata.owned_partitions for n in owned.partitions
        ),
        generation_id=metadata.generation_id if metadata.generation_id >= 0 else None,
        rack_id=metadata.rack_id or None,
    )


def _assignment(partitions: Iterable[TopicPartition]) -> ConsumerProtocolAssignment:
    """Return the partitions as a member's assignment, in version 0 and without user data."""
    numbers_of: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers_of.setdefault(topic, []).append(number)
    return ConsumerProtocolAssignment(0, list(numbers_of.items()), b"")


def _racks(cluster: ClusterMetadata, counts: Mapping[str, int]) -> PartitionRacks:
    """Return, by topic and partition, the racks of all replicas, including offline ones, as in Kafka."""
    rack_of = {broker.node_id: broker.rack for broker in cluster.brokers()}
    racks: dict[str, list[frozenset[str]]] = {}
    for topic, count in counts.items():
        # ClusterMetadata's public methods return only leaders. This attribute has the replicas.
        partitions = cluster._partitions.get(topic, {})
        replicas = [partitions[n].replica_nodes if n in partitions else () for n in range(count)]
        racks[topic] = [frozenset(rack_of[n] for n in nodes if rack_of.get(n)) for nodes in replicas]
    return racks
