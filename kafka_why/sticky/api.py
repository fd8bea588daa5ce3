"""Arguments and result of a Kafka assignor. The names are those of Kafka's ConsumerPartitionAssignor."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    MemberSubscription,
    PartitionRacks,
    TopicPartition,
    java_order,
)

NO_RACKS: Final[PartitionRacks] = MappingProxyType({})


class Assignor(Protocol):
    """A rule that divides the partitions of the subscribed topics among a group's members.

    An assignor is a pure function: equal arguments give an equal result, whatever the order of the mappings.
    Where Kafka follows the order of a Java hash table, these assignors follow the order of names.
    """

    @property
    def name(self) -> str:
        """The protocol name in JoinGroup. The members of a group vote for a protocol they all support."""

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """Assign partitions 0 to n-1 of every topic in `partitions_per_topic` that a member subscribes to.

        A subscribed topic that is missing from the mapping (no metadata) or has 0 partitions adds no
        partition to any member. The result has an entry for every member; the entry may be an empty list.
        Members come in the order of `kafka_why.sticky.api.members_in_order`. The partitions of a member
        are sorted by topic, then by number. Rules that are not rack-aware ignore `racks`.
        """


def members_in_order(subscriptions: Mapping[MemberId, MemberSubscription]) -> list[MemberId]:
    """Return static members by group.instance.id, then dynamic members by member id.

    A static member therefore keeps its position when it rejoins with a new member id. An instance id belongs
    to one member of a group. If two members share one, their member ids decide (Kafka leaves the order open).
    """

    def place(member_id: MemberId) -> tuple[bool, bytes, bytes]:
        instance_id = subscriptions[member_id].group_instance_id
        return instance_id is None, java_order(instance_id or ""), java_order(member_id)

    return sorted(subscriptions, key=place)


def consumers_per_topic(subscriptions: Mapping[MemberId, MemberSubscription]) -> dict[str, list[MemberId]]:
    """Return the subscribers of each subscribed topic: topics in Java's order, members as `members_in_order`.

    A member that names a topic twice is one subscriber.
    """
    consumers: defaultdict[str, list[MemberId]] = defaultdict(list)
    for member_id in members_in_order(subscriptions):
        for topic in dict.fromkeys(subscriptions[member_id].subscription.topics):
            consumers[topic].append(member_id)
    return {topic: consumers[topic] for topic in sorted(consumers, key=java_order)}


_UNKNOWN: frozenset[str] = frozenset()


def replica_racks(racks: PartitionRacks, topic: str, number: int) -> frozenset[str]:
    """Return the racks of one partition, or the empty set if they are unknown."""
    racks_of_topic = racks.get(topic, ())
    return racks_of_topic[number] if number < len(racks_of_topic) else _UNKNOWN


def do_racks_matter(member_racks: Collection[str], partition_racks: Collection[frozenset[str]]) -> bool:
    """Return True if a rack-aware assignment can differ: some member is near some partitions but not all.

    If every partition has replicas on the same racks, each member is near all of them or none.
    """
    everywhere = _UNKNOWN.union(*partition_racks)
    return not everywhere.isdisjoint(member_racks) and any(racks != everywhere for racks in partition_racks)
