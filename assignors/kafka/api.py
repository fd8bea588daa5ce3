"""Arguments and result of a Kafka assignor. The names are those of Kafka's ConsumerPartitionAssignor."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    MemberSubscription,
    PartitionRacks,
    TopicPartition,
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
        Members come in the order of `assignors.kafka.members.members_in_order`. The partitions of a member
        are sorted by topic, then by number. Rules that are not rack-aware ignore `racks`.
        """
