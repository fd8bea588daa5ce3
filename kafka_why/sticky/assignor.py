"""Kafka's StickyAssignor (KIP-54) and CooperativeStickyAssignor (KIP-429)."""

from collections import deque
from collections.abc import Mapping
from typing import Final

from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    MemberSubscription,
    PartitionRacks,
    TopicPartition,
    cooperative_claim,
    sticky_claim,
)
from kafka_why.sticky.api import NO_RACKS
from kafka_why.sticky.balance import fill, level
from kafka_why.sticky.group import NOBODY, StickyGroup, number_group
from kafka_why.sticky.min_cost_flow import minimise_cost
from kafka_why.sticky.pools import Pools


class _EqualAssignment:
    """The assignment for members with the same topics (Kafka's ConstrainedAssignmentBuilder).

    Every member gets the same number of partitions or one more, and as many partitions as that allows stay
    where they were. Where Kafka follows the order of a hash table (which of the members that own too many may
    keep the extra partition), this rule follows the order of member ids. Racks are ignored.
    """

    def __init__(self, group: StickyGroup) -> None:
        self._group = group
        self._holder = [NOBODY] * group.size
        self._load = [0] * len(group.members)
        self._min_quota, self._extras_left = divmod(group.size, len(group.members))
        self._max_quota = self._min_quota + (self._extras_left > 0)
        # Members that will get more, and members at their share that may get one of the extra partitions.
        self._below: list[int] = []
        self._at_min: deque[int] = deque()

    def build(self) -> list[int]:
        """Return the new holder of each partition. The group has members."""
        self._keep_owned()
        self._give_around([partition for partition, holder in enumerate(self._holder) if holder == NOBODY])
        return self._holder

    def _keep_owned(self) -> None:
        """Leave each member the owned partitions that its share allows."""
        for member, owned in enumerate(self._owned()):
            if len(owned) < self._min_quota:
                self._give(member, owned)
                self._below.append(member)
            elif len(owned) >= self._max_quota and self._extras_left:
                self._give(member, owned[: self._max_quota])
                self._extras_left -= 1
            else:
                self._give(member, owned[: self._min_quota])
                self._at_min.append(member)

    def _owned(self) -> list[list[int]]:
        """Return the partitions that each member may keep, lowest numbers (over all its topics) first, as in
        Kafka.
        """
        group = self._group
        owned: list[list[int]] = [[] for _ in group.members]
        for partition, owner in enumerate(group.owner):
            if owner != NOBODY:
                owned[owner].append(partition)
        number = [n for t in range(len(group.topics)) for n in range(group.first[t + 1] - group.first[t])]
        for partitions in owned:
            partitions.sort(key=number.__getitem__)
        return owned

    def _give_around(self, partitions: list[int]) -> None:
        """Give partitions in turns to members below their share, then one each to those allowed an extra."""
        place = 0
        for partition in partitions:
            if not self._below:
                self._give(self._at_min.popleft(), [partition])
                continue
            place %= len(self._below)
            member = self._below[place]
            self._give(member, [partition])
            if self._load[member] < self._min_quota:
                place += 1
            else:
                del self._below[place]
                self._at_min.append(member)

    def _give(self, member: int, partitions: list[int]) -> None:
        self._load[member] += len(partitions)
        for partition in partitions:
            self._holder[partition] = member


def assign_exact(group: StickyGroup) -> list[int]:
    """Return the new holder of each partition, also for members with different topics or racks. Every
    topic of the group has a subscriber.

    Kafka's rule (AbstractStickyAssignor's GeneralAssignmentBuilder) moves single partitions from member to
    member until no single move helps, and reverts all moves if they have not improved the balance. This rule
    reaches the same aims as far as possible, in Kafka's order: 1. The loads are as even as the subscriptions
    allow. 2. As many partitions as possible are on a rack of their member. 3. As few partitions as possible
    move away from their owner. 4. Of the moved partitions, as many as possible go back to their previous
    owner. So the assignment is never less even than Kafka's, and where it is as even it does not move more.
    """
    pools = Pools(group)
    fill(pools)
    level(pools)
    minimise_cost(pools)
    return pools.holder


class StickyAssignor:
    """Assigns as evenly as the subscriptions allow and moves as few partitions as that permits.

    A member's earlier partitions are those of `kafka_why.contract.protocols.subscriptions.Claim`. If two
    members claim a partition, the claim of the higher generation counts; in the same generation neither
    claim counts. A near rack has priority over staying, as in Kafka.

    If members have the same topics and racks make no difference, the rule is Kafka's own, step by step.
    Otherwise the rule reaches Kafka's aims exactly (`assign_exact`). Kafka's own rule does not: it leaves
    loads uneven or moves more than necessary, gives members partitions they no longer subscribe to, and takes
    partitions that are near no rack from their owner at every rebalance.
    """

    name: Final = "sticky"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """See `Assignor.assign`."""
        claims = {m: sticky_claim(member.subscription) for m, member in subscriptions.items()}
        group = number_group(partitions_per_topic, subscriptions, claims, racks)
        return group.answer(_assign(group), subscriptions)


class CooperativeStickyAssignor:
    """Sticky for members that keep their partitions while they join, so that consumption does not stop.

    A partition that moves is unassigned in the round in which its owner loses it. That owner joins again, and
    the next round gives the partition to its new owner. A partition that two members claim in the same
    generation is first taken from both. Earlier partitions are the owned partitions of the subscription.
    """

    name: Final = "cooperative-sticky"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """See `Assignor.assign`. A partition that its owner must revoke first is in no member's list."""
        claims = {m: cooperative_claim(member.subscription) for m, member in subscriptions.items()}
        group = number_group(partitions_per_topic, subscriptions, claims, racks)
        holder = _assign(group)
        for partition, claimants in group.claimants.items():
            taker = holder[partition]
            if taker != group.owner[partition] and any(member != taker for member in claimants):
                holder[partition] = NOBODY
        return group.answer(holder, subscriptions)


def _assign(group: StickyGroup) -> list[int]:
    if not group.members:
        return []
    if group.is_equal() and not group.replica_racks:
        return _EqualAssignment(group).build()
    return assign_exact(group)
