"""Subscriptions and assignments of members. The names are those of Kafka's ConsumerPartitionAssignor."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

MemberId: TypeAlias = str


PartitionRacks: TypeAlias = Mapping[str, Sequence[frozenset[str]]]
"""By topic and partition number: the racks with a replica (KIP-881); a missing partition's are unknown."""


class TopicPartition(NamedTuple):
    """One partition of a topic; partitions are numbered from 0."""

    topic: str
    partition: int


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partitions by topic, sorted by both."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    return topics


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


# The order of Java's strings.


def java_order(text: str) -> bytes:
    """Return a sort key for the order of Java's String.compareTo, which compares UTF-16 units.

    Python compares code points. The two orders differ beyond U+FFFF. A member id can hold such characters,
    because it starts with the client.id, which is any text. Java and Python leaders of one group must agree.
    """
    return text.encode("utf-16-be", "surrogatepass")
