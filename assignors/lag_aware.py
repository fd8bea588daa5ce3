"""An assignor that balances lag, or any other weight of partitions, with few moves.

Kafka's assignors count partitions, so one member may get all the busy partitions. Here a partition has a
weight, for example its lag in records or its records a second. A member's load is the sum of its partitions'
weights.

The aims, in this order:

1. Loads are even. If the loads of two members differ by more than the tolerance, the heavier member holds no
   partition that the lighter one subscribes to and that weighs less than the difference. If all members have
   the same topics, the heaviest and the lightest load therefore differ by at most the heaviest partition or
   the tolerance, whichever is more.
2. Partitions without weight even out the numbers of partitions in the same way: a member that has at least
   two partitions more than another holds none without weight that the other subscribes to.
3. Few partitions move. If 1 and 2 hold with every partition at its owner, none moves. Otherwise the heaviest
   member gives the partition that brings its load and the lightest load closest to each other, and so on. In
   the end no single partition could go back to its owner without breaking 1 or 2. (The minimum number of
   moves cannot be found in reasonable time, because that is the partition problem.)

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

    `weights` are 0 or more, 0 for partitions that are missing; `tolerance` has the unit of the weights. A
    member's earlier partitions are those in its user data, as for `sticky`, or else its owned partitions.
    Raises ValueError for a negative weight or tolerance.
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
        claims = {m: _claim(member.subscription) for m, member in subscriptions.items()}
        group = number_group(partitions_per_topic, subscriptions, claims)
        weights = [
            self.weights.get(TopicPartition(topic, number), 0)
            for index, topic in enumerate(group.topics)
            for number in range(group.first[index + 1] - group.first[index])
        ]
        holder = list(group.owner)
        busy = [partition for partition, weight in enumerate(weights) if weight]
        idle = [partition for partition, weight in enumerate(weights) if not weight]
        _LoadBalancer(group, holder, weights, self.tolerance).even_out(busy)
        _LoadBalancer(group, holder, [1] * group.size, 0).even_out(idle)
        return group.by_name(holder, subscriptions)


def _claim(subscription: Subscription) -> Claim:
    return sticky_claim(subscription) if subscription.user_data else cooperative_claim(subscription)


class _LoadBalancer:
    """A balancer of members' loads. It changes `holder`, the member of each partition, in place."""

    def __init__(self, group: StickyGroup, holder: list[int], weights: list[int], tolerance: int) -> None:
        self._group = group
        self._holder = holder
        self._weights = weights
        self._tolerance = tolerance
        self._load = [0] * len(group.members)
        for partition, member in enumerate(holder):
            if member != NOBODY:
                self._load[member] += weights[partition]
        self._members = sorted((load, member) for member, load in enumerate(self._load))
        self._topic_of = group.topic_of()
        self._subscribers: list[set[int]] = [set() for _ in group.topics]
        for member, topics in enumerate(group.topics_of):
            for topic in topics:
                self._subscribers[topic].add(member)
        # By member and topic: the partitions that may move, as (weight, partition), ascending.
        self._held: list[dict[int, list[tuple[int, int]]]] = [{} for _ in group.members]

    def even_out(self, partitions: Iterable[int]) -> None:
        """Place the partitions without a holder, and move others if necessary."""
        free = []
        for partition in partitions:
            if self._holder[partition] == NOBODY:
                free.append(partition)
            else:
                self._hold(partition, self._holder[partition])
        for partition in sorted(free, key=lambda partition: (-self._weights[partition], partition)):
            self._move(partition, self._lightest(self._topic_of[partition]))
        while self._relieve_all():
            pass
        self._take_back(partitions)

    def _relieve_all(self) -> bool:
        """Relieve each member, the heaviest first. Return True if any partition moved."""
        heaviest_first = [member for _, member in reversed(self._members)]
        return sum(self._move_partitions_from(member) for member in heaviest_first) > 0

    def _lightest(self, topic: int) -> int:
        subscribers = self._subscribers[topic]
        return next(member for _, member in self._members if member in subscribers)

    def _move_partitions_from(self, member: int) -> bool:
        has_moved = False
        while (best := self._best_move(member)) is not None:
            self._move(*best)
            has_moved = True
        return has_moved

    def _best_move(self, member: int) -> tuple[int, int] | None:
        """Return (partition, receiver) of the move that best balances the two loads, or None."""
        best, best_gain = None, 0
        for topic, held in self._held[member].items():
            receiver = self._lightest(topic)
            gap = self._load[member] - self._load[receiver]
            if gap <= self._tolerance:
                continue
            middle = bisect_left(held, (gap // 2, self._group.size))
            for weight, partition in held[max(0, middle - 1) : middle + 1]:
                gain = min(weight, gap - weight)
                if gain > best_gain:
                    best, best_gain = (partition, receiver), gain
        return best

    def _take_back(self, partitions: Iterable[int]) -> None:
        """Return partitions to their owners until every remaining move is necessary."""
        moved = [p for p in partitions if self._group.owner[p] not in (NOBODY, self._holder[p])]
        has_returned = True
        while has_returned:
            has_returned = False
            for partition in moved:
                owner, receiver = self._group.owner[partition], self._holder[partition]
                weight = self._weights[partition]
                gap = self._load[owner] - self._load[receiver] + 2 * weight
                if owner == receiver or gap > max(self._tolerance, weight):
                    continue
                self._move(partition, owner)
                if self._is_even():
                    has_returned = True
                else:
                    self._move(partition, receiver)

    def _is_even(self) -> bool:
        """Return True if no move of a partition to another subscriber would improve the balance."""
        least = [0] * len(self._group.topics)
        for member, topics in enumerate(self._held):
            for topic, held in topics.items():
                allowed = max(self._tolerance, held[0][0])
                least[topic] = max(least[topic], self._load[member] - allowed)
        return all(
            self._load[member] >= least[topic]
            for topic, subscribers in enumerate(self._subscribers)
            for member in subscribers
        )

    def _move(self, partition: int, member: int) -> None:
        holder, weight = self._holder[partition], self._weights[partition]
        if holder != NOBODY:
            held = self._held[holder][self._topic_of[partition]]
            del held[bisect_left(held, (weight, partition))]
            if not held:
                del self._held[holder][self._topic_of[partition]]
            self._set_load(holder, self._load[holder] - weight)
        self._holder[partition] = member
        self._hold(partition, member)
        self._set_load(member, self._load[member] + weight)

    def _hold(self, partition: int, member: int) -> None:
        held = self._held[member].setdefault(self._topic_of[partition], [])
        insort(held, (self._weights[partition], partition))

    def _set_load(self, member: int, load: int) -> None:
        del self._members[bisect_left(self._members, (self._load[member], member))]
        self._load[member] = load
        insort(self._members, (load, member))
