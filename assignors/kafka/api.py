"""Arguments and result of a Kafka assignor. The names are those of Kafka's ConsumerPartitionAssignor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias

MemberId: TypeAlias = str

PartitionRacks: TypeAlias = Mapping[str, Sequence[frozenset[str]]]
"""By topic and partition number: the racks with a replica (KIP-881); a missing partition's are unknown."""

NO_RACKS: Final[PartitionRacks] = MappingProxyType({})


class TopicPartition(NamedTuple):
    """One partition of a topic; partitions are numbered from 0."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """The metadata that a member sends in JoinGroup with each assignor it supports.

    `owned_partitions` (KIP-429): the partitions the member held when it joined. `generation_id` (KIP-792):
    the generation, 0 or more, in which the member held them; None if the member does not send one.
    `rack_id` (KIP-881): the rack the member runs on; None if the member does not send one.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int | None = None
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """A member's share: the partitions and user data the leader sends for the member in SyncGroup."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member's subscription and, if it is a static member (KIP-345), its group.instance.id."""

    subscription: Subscription
    group_instance_id: str | None = None


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
