"""What a Kafka assignor takes and gives. The names are those of Kafka's ConsumerPartitionAssignor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias

MemberId: TypeAlias = str

PartitionRacks: TypeAlias = Mapping[str, Sequence[frozenset[str]]]
"""By topic and partition number, the racks with a replica (KIP-881). What is missing is unknown."""

NO_RACKS: Final[PartitionRacks] = MappingProxyType({})


class TopicPartition(NamedTuple):
    """One partition of a topic; partitions are numbered from 0."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member asks for: the metadata it sends in JoinGroup under each assignor it supports.

    `owned_partitions` (KIP-429) are those the member held when it joined, `generation_id` (KIP-792) the
    generation it held them in, 0 or more, None if it does not say. `rack_id` (KIP-881) is where it runs,
    None if it does not say.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int | None = None
    rack_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member gets: the bytes the leader sends for it in SyncGroup."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member's subscription and, if it is a static member (KIP-345), its group.instance.id."""

    subscription: Subscription
    group_instance_id: str | None = None


class Assignor(Protocol):
    """A rule that deals the partitions of the subscribed topics out to a group's members.

    An assignor is a pure function: the same arguments give the same answer, whatever the order of the
    mappings. Where Kafka goes by the order of a Java hash table, ours go by name.
    """

    @property
    def name(self) -> str:
        """The protocol name in JoinGroup; the members of a group vote for one they all support."""

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """Deal out partitions 0 to n-1 of every topic in `partitions_per_topic` that a member subscribes to.

        A subscribed topic that is missing there (no metadata) or has 0 partitions gives nobody anything.
        Every member is in the answer, be it with an empty list; members come in the order of
        `assignors.kafka.members.members_in_order`, the partitions of each by topic, then by number.
        Rules that are not rack-aware take no notice of `racks`.
        """
