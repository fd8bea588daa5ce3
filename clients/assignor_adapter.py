"""Our assignors for consumers of kafka-python: its AbstractPartitionAssignor around an `Assignor`.

A consumer takes one as it is: ``KafkaConsumer(partition_assignment_strategy=[AssignorAdapter(...)], ...)``.
The other members of the group may be kafka-python's or Java's with an assignor of the same name. Of `sticky`
that goes with a grain of salt: what kafka-python's own writes of its earlier partitions only it and ours can
read, and it can not read what Java and ours write; a leader that can not deals without it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from kafka.cluster import ClusterMetadata
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor, RebalanceProtocol
from kafka.protocol.consumer import JoinGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from assignors.kafka.api import (
    NO_RACKS,
    Assignor,
    MemberId,
    MemberSubscription,
    PartitionRacks,
    Subscription,
    TopicPartition,
)
from assignors.kafka.consumer_protocol import encode_subscription
from assignors.kafka.server_side import PREFIX
from assignors.kafka.sticky.assignor import CooperativeStickyAssignor, StickyAssignor
from assignors.kafka.uniform import UniformAssignor
from assignors.kafka.user_data import Claim, encode_cooperative_user_data, encode_sticky_user_data
from assignors.lag_aware import LagAwareAssignor

Member: TypeAlias = JoinGroupResponse.JoinGroupResponseMember
Weigh = Callable[[frozenset[TopicPartition]], Mapping[TopicPartition, int]]

_TELL_USER_DATA: Final = {StickyAssignor.name, LagAwareAssignor.name}
_TELL_OWNED: Final = {CooperativeStickyAssignor.name, UniformAssignor.name}


class AssignorAdapter(AbstractPartitionAssignor):  # type: ignore[misc]  # it has no types
    """One consumer's view of an assignor: what it tells of itself, and what it deals out as the leader.

    Each consumer needs its own. `rack_id` is where the consumer runs (Kafka's client.rack), None if unknown.
    """

    def __init__(self, assignor: Assignor, rack_id: str | None = None) -> None:
        self.assignor = assignor
        self._rack_id = rack_id
        self._claim: Claim | None = None  # what it was given last

    @property
    def name(self) -> str:
        """The protocol name in JoinGroup."""
        return self.assignor.name

    def supported_protocols(self) -> list[RebalanceProtocol]:
        """Cooperative for `cooperative-sticky`, which kafka-python does not mix with eager assignors."""
        if self.assignor.name == CooperativeStickyAssignor.name:
            return [RebalanceProtocol.COOPERATIVE]
        return [RebalanceProtocol.EAGER]

    def metadata(self, topics: Iterable[str]) -> ConsumerProtocolSubscription:
        """What to send in JoinGroup: the topics, and what the assignor has to know of earlier partitions."""
        claim = self._claim or Claim()
        user_data: bytes | None = None
        if self.assignor.name in _TELL_USER_DATA and self._claim is not None:
            user_data = encode_sticky_user_data(claim)
        elif self.assignor.name == CooperativeStickyAssignor.name:
            user_data = encode_cooperative_user_data(claim.generation_id)
        tells_owned = self.assignor.name in _TELL_OWNED
        subscription = Subscription(
            tuple(topics),
            user_data,
            claim.partitions if tells_owned else (),
            claim.generation_id if tells_owned and self._claim is not None else None,
            self._rack_id,
        )
        return ConsumerProtocolSubscription.decode(encode_subscription(subscription))

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """Keep what the consumer has been given, and when."""
        self._claim = Claim(tuple(TopicPartition(*p) for p in assignment.partitions()), generation)

    def assign(
        self, cluster: ClusterMetadata, members: Iterable[Member]
    ) -> dict[MemberId, ConsumerProtocolAssignment]:
        """As the leader, deal out what the cluster has of the topics the members subscribe to."""
        subscriptions = {
            member.member_id: MemberSubscription(_read(member.metadata), member.group_instance_id)
            for member in members
        }
        topics = {t for member in subscriptions.values() for t in member.subscription.topics}
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        has_racks = any(member.subscription.rack_id for member in subscriptions.values())
        racks = _racks(cluster, counts) if has_racks else NO_RACKS
        dealt = self._assignor_for(counts).assign(counts, subscriptions, racks)
        return {member_id: _write(partitions) for member_id, partitions in dealt.items()}

    def _assignor_for(self, counts: Mapping[str, int]) -> Assignor:
        """The assignor to deal out these topics with."""
        return self.assignor


class CoordinatorAdapter(AssignorAdapter):
    """Leaves the assignment to the coordinator, which has this assignor of `assignors.kafka` too.

    Behind it the group has to be this project's; the gateway tells the coordinator what partitions there are.
    """

    @property
    def name(self) -> str:
        """The protocol name in JoinGroup: `coordinator:` and the assignor's."""
        return PREFIX + self.assignor.name

    def assign(
        self, cluster: ClusterMetadata, members: Iterable[Member]
    ) -> dict[MemberId, ConsumerProtocolAssignment]:
        """Nothing, which the coordinator takes no notice of. Clients that know KIP-814 do not ask."""
        return {}


class LagAwareAdapter(AssignorAdapter):
    """`lag-aware` with weights asked for anew by each leader.

    `weigh` is given the partitions to deal out and answers with their lags, or other weights of 0 or more. It
    runs while the consumer rebalances, so it must not use that consumer, and the group waits for it.
    """

    def __init__(self, weigh: Weigh, tolerance: int = 0) -> None:
        super().__init__(LagAwareAssignor(tolerance=tolerance))
        self._weigh = weigh
        self._tolerance = tolerance

    def _assignor_for(self, counts: Mapping[str, int]) -> Assignor:
        partitions = (TopicPartition(topic, n) for topic, count in counts.items() for n in range(count))
        return LagAwareAssignor(self._weigh(frozenset(partitions)), self._tolerance)


def _read(metadata: ConsumerProtocolSubscription) -> Subscription:
    """Like Kafka, and unlike kafka-python, take a negative generation and an empty rack for none."""
    return Subscription(
        topics=tuple(metadata.topics),
        user_data=metadata.user_data,
        owned_partitions=tuple(
            TopicPartition(run.topic, n) for run in metadata.owned_partitions for n in run.partitions
        ),
        generation_id=metadata.generation_id if metadata.generation_id >= 0 else None,
        rack_id=metadata.rack_id or None,
    )


def _write(partitions: Iterable[TopicPartition]) -> ConsumerProtocolAssignment:
    numbers_of: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers_of.setdefault(topic, []).append(number)
    return ConsumerProtocolAssignment(0, list(numbers_of.items()), b"")


def _racks(cluster: ClusterMetadata, counts: Mapping[str, int]) -> PartitionRacks:
    """The racks of all replicas, offline ones too, as in Kafka."""
    rack_of = {broker.node_id: broker.rack for broker in cluster.brokers()}
    racks: dict[str, list[frozenset[str]]] = {}
    for topic, count in counts.items():
        # ClusterMetadata tells leaders only; this is where it keeps the replicas.
        partitions = cluster._partitions.get(topic, {})
        replicas = [partitions[n].replica_nodes if n in partitions else () for n in range(count)]
        racks[topic] = [frozenset(rack_of[n] for n in nodes if rack_of.get(n)) for nodes in replicas]
    return racks
