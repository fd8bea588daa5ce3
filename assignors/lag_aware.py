"""An assignor that balances lag, or any other weight of partitions, with few moves.

Kafka's assignors count partitions, so one member may get all the busy partitions. Here a partition has a
weight, for example its lag in records or its records a second. A member's load is the sum of its partitions'
weights.

The aims, in this order:

1. Loads are even. If the loads of two members differ by more than the tolerance, no partition's move from the
   heavier to the lighter member would reduce the difference. (A partition can move only to a subscriber of
   its topic.) If all members have the same topics, the heaviest and the lightest load therefore differ by at
   most the heaviest partition or the tolerance, whichever is more.
2. Partitions of weight 0 even out the members' numbers of partitions. If a member has at least two partitions
   more than another, it has no partition of weight 0 that could move to the other.
3. Few partitions move. If aims 1 and 2 hold with every partition at its owner, the member that had it before,
   none moves. Otherwise the heaviest member repeatedly gives the lightest one the partition that brings their
   loads closest together. At the end, each partition that has moved must stay: its return to its owner would
   break 1 or 2. (The minimum number of moves cannot be found in reasonable time, because that is the
   partition problem.)

The result is a function of the arguments: members are ordered by member id, topics by name.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from kafka_why.contract.protocols.subscriptions import (
    Claim,
    MemberId,
    MemberSubscription,
    PartitionRacks,
    Subscription,
    TopicPartition,
    cooperative_claim,
    sticky_claim,
)
from kafka_why.sticky.api import NO_RACKS, NOBODY, StickyGroup, number_group


@dataclass(frozen=True)
class LagAwareAssignor:
    """The assignor that the module describes; it implements `kafka_why.sticky.api.Assignor`.

    `weights` are 0 or more, and 0 for missing partitions. `tolerance` has the unit of the weights. A member's
    earlier partitions, which stay if possible, are those in its user data, as for `sticky`, or else its owned
    partitions. Raises ValueError for a negative weight or tolerance.
    """

    name: ClassVar[str] = "lag-aware"

    weights: Mapping[TopicPartition, int] = field(default_factory=dict)
    tolerance: int = 0

    def __post_init__(self) -> None:
        if self.tolerance < 0:
            raise ValueError(f"tolerance {self.tolerance} is negative")
        for partition, weight in self.weights.items():
            if weight < 0:
                raise ValueError(f"weight {weight} of {partition.topic}-{partition.partition} is negative")

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        claims = {m: _earlier_partitions(member.subscription) for m, member in subscriptions.items()}
        group = number_group(partitions_per_topic, subscriptions, claims)
        weights = [
            self.weights.get(TopicPartition(topic, number), 0)
            for index, topic in enumerate(group.topics)
            for number in range(group.first[index + 1] - group.first[index])
        ]
        holder = list(group.owner)
        with_weight = [partition for partition, weight in enumerate(weights) if weight]
        without_weight = [partition for partition, weight in enumerate(weights) if not weight]
        _LoadBalancer(group, holder, weights, self.tolerance).even_out(with_weight)
        # Here a member's load is its number of partitions, with those that are assigned already.
        _LoadBalancer(group, holder, weights=[1] * group.size, tolerance=0).even_out(without_weight)
        return group.by_name(holder, subscriptions)


def _earlier_partitions(subscription: Subscription) -> Claim:
    """Return a member's earlier partitions, from its user data or else from its owned partitions."""
    return sticky_claim(subscription) if subscription.user_data else cooperative_claim(subscription)


class _LoadBalancer:
    """A balancer of members' loads. It changes `holder`, the member of each partition or NOBODY, in place.

    Members, topics and partitions are numbers, as in `StickyGroup`.
    """

    def __init__(self, group: StickyGroup, holder: list[int], weights: list[int], tolerance: int) -> None:
        self._group = group
        self._holder = holder
        self._weights = weights
        self._tolerance = tolerance
        self._load = [0] * len(group.members)
        for partition, member in enumerate(holder):
            if member != NOBODY:
                self._load[member] += weights[partition]
        # The least loaded member is first.
        self._members_by_load = sorted((load, member) for member, load in enumerate(self._load))
        self._topic_of = group.topic_of()
        self._subscribers: list[set[int]] = [set() for _ in group.topics]  # by topic
        for member, topics in enumerate(group.topics_of):
            for topic in topics:
                self._subscribers[topic].add(member)
        # By member and topic: the partitions that may move (those of `even_out`), as (weight, partition),
        # ascending.
        self._movable: list[dict[int, list[tuple[int, int]]]] = [{} for _ in group.members]

    def even_out(self, partitions: Iterable[int]) -> None:
        """Balance the loads by these partitions: assign those without a holder, and move others if necessary.

        All other partitions stay.
        """
        unassigned = []
        for partition in partitions:
            if self._holder[partition] == NOBODY:
                unassigned.append(partition)
            else:
                self._add_movable(partition, self._holder[partition])
        for partition in sorted(unassigned, key=lambda partition: (-self._weights[partition], partition)):
            self._move(partition, self._lightest(self._topic_of[partition]))
        while self._unload_all():  # a move may allow another member a move that improves the balance
            pass
        self._return_to_owners(partitions)

    def _unload_all(self) -> bool:
        """Unload each member, the heaviest first. Return True if any partition moved."""
        heaviest_first = [member for _, member in reversed(self._members_by_load)]
        have_moved = [self._unload(member) for member in heaviest_first]  # a list, so that `any` skips none
        return any(have_moved)

    def _lightest(self, topic: int) -> int:
        """Return the least loaded subscriber of a topic."""
        subscribers = self._subscribers[topic]
        return next(member for _, member in self._members_by_load if member in subscribers)

    def _unload(self, member: int) -> bool:
        """Move partitions from the member while that improves the balance. Return True if any moved."""
        has_moved = False
        while (best := self._best_move(member)) is not None:
            self._move(*best)
            has_moved = True
        return has_moved

    def _best_move(self, member: int) -> tuple[int, int] | None:
        """Return (partition, receiver) of the member's move that reduces the gap of the two loads most.

        Return None if no move reduces a gap that exceeds the tolerance.
        """
        best, best_gain = None, 0
        for topic, movable in self._movable[member].items():
            receiver = self._lightest(topic)
            gap = self._load[member] - self._load[receiver]
            if gap <= self._tolerance:
                continue
            # A weight of half the gap would make the loads equal. Only the partitions with the next weights,
            # below and above, can gain most.
            middle = bisect_left(movable, (gap // 2, self._group.size))
            for weight, partition in movable[max(0, middle - 1) : middle + 1]:
                gain = min(
                    weight, gap - weight
                )  # half of the reduction, which is gap - abs(gap - 2 * weight)
                if gain > best_gain:
                    best, best_gain = (partition, receiver), gain
        return best

    def _return_to_owners(self, partitions: Iterable[int]) -> None:
        """Return partitions to their owners, the members that had them before `assign`, until every remaining
        move is necessary.
        """
        moved = [p for p in partitions if self._group.owner[p] not in (NOBODY, self._holder[p])]
        has_returned = True
        while has_returned:
            has_returned = False
            for partition in moved:
                owner, holder = self._group.owner[partition], self._holder[partition]
                weight = self._weights[partition]
                # The difference of the two loads after the return. If it is too great, the partition would
                # have to move again.
                gap = self._load[owner] - self._load[holder] + 2 * weight
                if owner == holder or gap > max(self._tolerance, weight):
                    continue
                self._move(partition, owner)
                if self._is_even():
                    has_returned = True
                else:
                    self._move(partition, holder)

    def _is_even(self) -> bool:
        """Return True if no move of a partition to another subscriber would improve the balance."""
        # Below this load, a subscriber of the topic should get a partition of it.
        min_load = [0] * len(self._group.topics)
        for member, topics in enumerate(self._movable):
            for topic, movable in topics.items():
                lightest_weight, _ = movable[0]
                allowed_gap = max(self._tolerance, lightest_weight)
                min_load[topic] = max(min_load[topic], self._load[member] - allowed_gap)
        return all(
            self._load[member] >= min_load[topic]
            for topic, subscribers in enumerate(self._subscribers)
            for member in subscribers
        )

    def _move(self, partition: int, member: int) -> None:
        """Move a partition to this member from its holder, if it has one."""
        holder, weight = self._holder[partition], self._weights[partition]
        if holder != NOBODY:
            topic = self._topic_of[partition]
            movable = self._movable[holder][topic]
            del movable[bisect_left(movable, (weight, partition))]
            if not movable:
                del self._movable[holder][topic]
            self._set_load(holder, self._load[holder] - weight)
        self._holder[partition] = member
        self._add_movable(partition, member)
        self._set_load(member, self._load[member] + weight)

    def _add_movable(self, partition: int, member: int) -> None:
        movable = self._movable[member].setdefault(self._topic_of[partition], [])
        insort(movable, (self._weights[partition], partition))

    def _set_load(self, member: int, load: int) -> None:
        del self._members_by_load[bisect_left(self._members_by_load, (self._load[member], member))]
        self._load[member] = load
        insort(self._members_by_load, (load, member))
