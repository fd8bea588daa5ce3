"""The broker's UniformAssignor (KIP-848), its default: balance has priority over stickiness."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    MemberSubscription,
    PartitionRacks,
    TopicPartition,
    cooperative_claim,
)
from kafka_why.sticky.api import NO_RACKS, NOBODY, StickyGroup, number_group

# The broker's uniform rule for members with different topics (UniformHeterogeneousAssignmentBuilder).
#
# Topic by topic, the unassigned partitions go to the least loaded subscribers. Then, topic by topic and
# repeatedly, partitions move from the topic's most loaded subscribers to its least loaded ones. Each topic is
# balanced separately, so chains of members with overlapping topics may end with loads that differ by more
# than one.


MAX_ITERATIONS: Final = 16
"""The maximum number of passes over all topics; Kafka's number."""


class _HeterogeneousBuilder:
    """A builder of the assignment for members with different topics. Every topic has a subscriber.

    Members, topics and partitions are numbers, as in `StickyGroup`.
    """

    def __init__(self, group: StickyGroup) -> None:
        self._group = group
        self._holder = list(group.owner)
        self._load = [0] * len(group.members)  # by member, the number of its partitions
        for owner in group.owner:
            if owner != NOBODY:
                self._load[owner] += 1
        self._subscribers: list[list[int]] = [[] for _ in group.topics]
        for member, topics in enumerate(group.topics_of):
            for topic in topics:
                self._subscribers[topic].append(member)

    def build(self) -> list[int]:
        """Return the new holder of each partition."""
        topics = sorted(range(len(self._group.topics)), key=self._topic_order)
        for topic in topics:
            selector = _MemberSelector(self._subscribers[topic], self._load)
            for partition in self._partitions(topic):
                if self._holder[partition] == NOBODY:
                    self._assign(partition, selector.next_least_loaded())
        self._balance([topic for topic in topics if len(self._subscribers[topic]) > 1])
        return self._holder

    def _topic_order(self, topic: int) -> tuple[float, int, int]:
        """Return the sort key of a topic."""
        subscribers = len(self._subscribers[topic])
        # Most partitions per subscriber first, then fewest subscribers, then by name.
        return -len(self._partitions(topic)) / subscribers, subscribers, topic

    def _partitions(self, topic: int) -> range:
        """Return the numbers of the topic's partitions."""
        return range(self._group.first[topic], self._group.first[topic + 1])

    def _balance(self, topics: list[int]) -> None:
        """Balance topic after topic until one whole pass moves no partition."""
        # The last topic that moved a partition, or else the first topic of all. If the loop reaches it again
        # and no other topic has moved one meanwhile, a whole pass was without a move.
        stop_at = None
        for _ in range(MAX_ITERATIONS):
            for topic in topics:
                if topic == stop_at:
                    return
                if self._balance_topic(topic) or stop_at is None:
                    stop_at = topic

    def _balance_topic(self, topic: int) -> bool:
        """Balance the loads of a topic's subscribers by moves of its partitions. Return True if any moved."""
        selector = _MemberSelector(self._subscribers[topic], self._load)
        if selector.spread <= 1:
            return False
        held_by: dict[int, list[int]] = {}  # by member, its partitions of the topic
        for partition in self._partitions(topic):
            held_by.setdefault(self._holder[partition], []).append(partition)
        has_moved = False
        while (giver := selector.next_most_loaded(held_by)) is not None:
            partition = held_by[giver].pop()
            taker = selector.next_least_loaded()
            # Each of the two calls may have started a new round, after which the loads differ less.
            if selector.is_balanced():
                break
            self._assign(partition, taker)
            has_moved = True
        return has_moved

    def _assign(self, partition: int, member: int) -> None:
        """Give a partition to this member, and take it from its holder if it has one."""
        holder = self._holder[partition]
        if holder != NOBODY:
            self._load[holder] -= 1
        self._holder[partition] = member
        self._load[member] += 1


class _MemberSelector:
    """A selector of the least and the most loaded members while partitions are assigned or moved.

    In a round, each least loaded member gets one partition. The next round includes members that now have the
    same load. The most loaded members give up partitions in the same way. The caller updates `load`.
    """

    def __init__(self, members: Iterable[int], load: Sequence[int]) -> None:
        self._load = load
        self._members = sorted(members, key=lambda member: (load[member], member))
        least, most = load[self._members[0]], load[self._members[-1]]
        self.spread = most - least
        # The least loaded of a round are `members[:least_end]`. The most loaded are
        # `members[most_start:most_end]`. Both are empty until the first call starts a round.
        self._least_load, self._least_end, self._next_least = least - 1, 0, 0
        self._most_load, self._most_start, self._most_end = most + 1, len(self._members), len(self._members)
        self._next_most = len(self._members) - 1

    def next_least_loaded(self) -> int:
        """Return the member that gets the next partition. The caller must assign it one."""
        if self._next_least >= self._least_end:
            self._least_load += 1
            while (
                self._least_end < len(self._members)
                and self._load[self._members[self._least_end]] == self._least_load
            ):
                self._least_end += 1
            self._next_least = 0
        self._next_least += 1
        return self._members[self._next_least - 1]

    def next_most_loaded(self, held: dict[int, list[int]]) -> int | None:
        """Return the member that gives up the next partition, or None if no member has one in `held`.

        `held` has each member's partitions of the topic. The caller must take one of them from the member.
        """
        while True:
            if self._next_most < self._most_start:
                self._start_round_of_most_loaded()
            if self._next_most < 0:
                return None
            member = self._members[self._next_most]
            self._next_most -= 1
            if held.get(member):
                return member
            self._exclude(self._next_most + 1)

    def is_balanced(self) -> bool:
        """Return True if the loads of this round's most and least loaded members differ by at most one."""
        return self._most_load - self._least_load <= 1

    def _start_round_of_most_loaded(self) -> None:
        """Start a round: the most loaded have one partition less than before, and members that already had
        that load join them.
        """
        if self._most_end <= self._most_start and self._most_start > 0:
            # All of the most loaded are excluded, because they hold none of the topic. Continue below them.
            self._most_load = self._load[self._members[self._most_start - 1]]
        else:
            self._most_load -= 1
        while self._most_start > 0 and self._load[self._members[self._most_start - 1]] == self._most_load:
            self._most_start -= 1
        self._next_most = self._most_end - 1

    def _exclude(self, index: int) -> None:
        """Move the member at this index out of the range of the most loaded."""
        self._most_end -= 1
        members = self._members
        members[index], members[self._most_end] = members[self._most_end], members[index]


class UniformAssignor:
    """Kafka's own rule step by step, for members with the same topics and for members with different ones.

    A member's current target assignment is its `owned_partitions`. A partition with two owners counts as
    unassigned; on Kafka's broker this cannot happen. The rule is not rack-aware, as in Kafka 4.0 and later.
    Where Kafka follows the order of a hash table, this rule orders members by member id. Where Kafka orders
    topics by topic id, this rule orders them by name.
    """

    name: Final = "uniform"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        claims = {m: cooperative_claim(member.subscription) for m, member in subscriptions.items()}
        group = number_group(partitions_per_topic, subscriptions, claims)
        if not group.members:
            return {}
        holder = _assign_homogeneous(group) if group.is_equal() else _HeterogeneousBuilder(group).build()
        return group.by_name(holder, subscriptions)


def _assign_homogeneous(group: StickyGroup) -> list[int]:
    """Return the holder of each partition by the rule of UniformHomogeneousAssignmentBuilder (Kafka 4.3).

    The quota is the number of partitions divided by the number of members. The remainder is the number of
    extra partitions: the first members that own more than the quota get one each. The last members get the
    remaining extra partitions. A member keeps the first partitions that it owns, up to the quota and any
    extra one.
    """
    holder = list(group.owner)
    unassigned = [partition for partition, owner in enumerate(holder) if owner == NOBODY]
    owned: list[list[int]] = [[] for _ in group.members]
    for partition, owner in enumerate(holder):
        if owner != NOBODY:
            owned[owner].append(partition)
    quota, extras_left = divmod(group.size, len(group.members))
    takers: list[int] = []  # a member for each partition that it lacks
    for member, partitions in enumerate(owned):
        members_left = len(group.members) - member
        has_extra = extras_left > 0 and (len(partitions) > quota or members_left <= extras_left)
        extras_left -= has_extra
        share = quota + has_extra
        unassigned += partitions[share:]
        takers += [member] * (share - len(partitions))  # no entry if the member has its share or more
    for partition, member in zip(unassigned, takers, strict=True):
        holder[partition] = member
    return holder
