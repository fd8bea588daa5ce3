"""A group as it is or might be: what the question "what if?" is asked about."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from assignors.kafka.api import MemberId, MemberSubscription, PartitionRacks, Subscription, TopicPartition
from assignors.kafka.user_data import Claim, encode_sticky_user_data
from insight.why.moves import Holdings


class InputError(ValueError):
    """The question cannot be asked like this; the message says why."""


@dataclass(frozen=True, slots=True)
class Member:
    """The topics a member subscribes to; its group.instance.id and its rack if it has them."""

    topics: tuple[str, ...]
    instance_id: str | None = None
    rack: str | None = None


@dataclass(frozen=True)
class Group:
    """Topics with their numbers of partitions, and the members.

    `current` is who holds what now, None if that is not known; it may name members that are gone. `weights`
    are 0 or more, 0 for partitions that are not named. `racks` are those of a topic's partitions by number,
    of each the leader's first; what is missing is unknown. Raises InputError for what does not fit together.
    """

    topics: Mapping[str, int]
    members: Mapping[MemberId, Member]
    current: Holdings | None = None
    weights: Mapping[TopicPartition, int] = field(default_factory=dict)
    racks: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for topic, partitions in self.topics.items():
            if partitions < 1:
                raise InputError(f"topic {topic} has {partitions} partitions: a topic has at least one")
        if not self.members:
            raise InputError("the group has no members")
        for member_id, member in self.members.items():
            _check_topics(member_id, member.topics, self.topics)
        for topic, racks in self.racks.items():
            if len(racks) != self.topics.get(topic):
                raise InputError(f"racks of topic {topic}: a list for each of its partitions is needed")
        for partition, weight in self.weights.items():
            self._check_partition(partition, "the list of weights")
            if weight < 0:
                raise InputError(f"weight {weight} of {_name(partition)} is negative")
        self._check_current()

    def partitions(self) -> Iterator[TopicPartition]:
        """All partitions, by topic as given, then by number."""
        return (TopicPartition(topic, n) for topic, count in self.topics.items() for n in range(count))

    def weight(self, partitions: Iterable[TopicPartition]) -> int:
        """What they weigh together."""
        return sum(self.weights.get(partition, 0) for partition in partitions)

    def subscriptions(self, held: Holdings, generation_id: int) -> dict[MemberId, MemberSubscription]:
        """What the members would send in JoinGroup if they held this since that generation.

        The user data are those of `sticky`; other assignors look at the owned partitions.
        """
        return {
            member_id: _subscription(member, tuple(sorted(held.get(member_id, ()))), generation_id)
            for member_id, member in self.members.items()
        }

    def partition_racks(self) -> PartitionRacks:
        """The racks as assignors take them."""
        return {topic: [frozenset(racks) for racks in partitions] for topic, partitions in self.racks.items()}

    def without(self, member_id: MemberId) -> "Group":
        """The group when this member is gone; what it held is still in `current`. Raises InputError if it was
        the last.
        """
        return replace(self, members={m: member for m, member in self.members.items() if m != member_id})

    def having(self, member_id: MemberId, member: Member) -> "Group":
        """The group with one member more, who holds nothing. Raises InputError if it is there already."""
        if member_id in self.members:
            raise InputError(f"{member_id} is a member already")
        return replace(self, members={**self.members, member_id: member})

    def _check_current(self) -> None:
        held = Counter(p for partitions in (self.current or {}).values() for p in partitions)
        for partition, holders in held.items():
            self._check_partition(partition, "the current assignment")
            if holders > 1:
                raise InputError(f"the current assignment gives {_name(partition)} to {holders} members")

    def _check_partition(self, partition: TopicPartition, where: str) -> None:
        count = self.topics.get(partition.topic, 0)
        if not 0 <= partition.partition < count:
            there = f"{partition.topic} has {count} partitions" if count else "there is no such topic"
            raise InputError(f"{where} has {_name(partition)}, but {there}")


def _check_topics(member_id: MemberId, wanted: Sequence[str], topics: Mapping[str, int]) -> None:
    if not wanted:
        raise InputError(f"member {member_id} subscribes to no topic")
    for topic in wanted:
        if topic not in topics:
            raise InputError(
                f"member {member_id} subscribes to {topic}, which is none of the topics: {', '.join(topics)}"
            )


def _subscription(
    member: Member, owned: tuple[TopicPartition, ...], generation_id: int
) -> MemberSubscription:
    user_data = encode_sticky_user_data(Claim(owned, generation_id))
    return MemberSubscription(
        Subscription(member.topics, user_data, owned, generation_id, member.rack), member.instance_id
    )


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
