"""Kafka's StickyAssignor (KIP-54) and CooperativeStickyAssignor (KIP-429). For members with different topics,
`level` moves partitions until no chain of moves makes the loads more even.
"""

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
from kafka_why.sticky.api import NO_RACKS, NOBODY, StickyGroup, number_group
from kafka_why.sticky.min_cost_flow import minimise_cost
from kafka_why.sticky.pools import Pools, members_in


def fill(pools: Pools) -> None:
    """Leave owned partitions with their owners. Give each free partition to its least loaded subscriber.

    If some subscribers are near (their rack has a replica), only these count. Partitions with the fewest
    subscribers come first, as in Kafka, because they have the least choice.
    """
    group = pools.group
    for partition, owner in enumerate(group.owner):
        if owner != NOBODY:
            pools.move(partition, owner)
    subscribers = [pools.near[kind] | pools.far[kind] for kind in pools.kind_of]
    free = [partition for partition, owner in enumerate(group.owner) if owner == NOBODY]
    for partition in sorted(free, key=lambda partition: subscribers[partition].bit_count()):
        candidates = pools.near[pools.kind_of[partition]] or subscribers[partition]
        pools.move(partition, pools.least_loaded(candidates))


def level(pools: Pools) -> None:
    """Move partitions until no chain of moves leads to a member whose load is lower by two or more.

    The loads are then as even as the subscriptions allow, by each of these measures: the sum of squares, the
    sum of all pairwise differences and, for every load, the number of partitions that members hold above it.
    """
    _make_single_moves(pools)
    open_members = pools.everyone  # members that a chain may still include
    top_load = len(pools.at_load) - 1
    while top_load >= 2:
        sources = pools.at_load[top_load] & open_members
        if not sources:
            top_load -= 1
            continue
        chain, reached = _find_chain(pools, sources, top_load - 2, open_members)
        for partition, member in chain:
            pools.move(partition, member)
        if not chain:
            # No chain leads from these members to a member with a load of `top_load - 2` or less.
            open_members &= ~reached


def _make_single_moves(pools: Pools) -> None:
    """Make all single moves that even out the loads.

    They are fast, and most of the work if one member has far too many partitions.
    """
    for top_load in range(len(pools.at_load) - 1, 1, -1):
        for member in members_in(pools.at_load[top_load]):
            kinds = pools.held[member]
            subscribers = 0
            for kind in kinds:
                subscribers |= pools.near[kind] | pools.far[kind]
            target = pools.least_loaded(subscribers)
            if pools.load[target] > top_load - 2:
                continue
            target_bit = 1 << target
            takeable = [kind for kind in kinds if (pools.near[kind] | pools.far[kind]) & target_bit]
            partition = min(
                (pools.cheapest_to_take(member, kind) for kind in takeable),
                key=lambda partition: pools.cost(partition, target) - pools.cost(partition, member),
            )
            pools.move(partition, target)


def _find_chain(
    pools: Pools, sources: int, target_load: int, open_members: int
) -> tuple[list[tuple[int, int]], int]:
    """Find the shortest chain of moves from one of `sources` to a member with at most `target_load`.

    Return the chain and 0. If there is none, return [] and the members that chains from `sources` reach,
    including `sources`. Sets of members are bit masks, as in `Pools`. A chain is a list of (partition, new
    holder), from its end to its start.
    """
    targets = 0
    for members in pools.at_load[: target_load + 1]:
        targets |= members
    unseen = open_members & ~sources
    came_from: dict[
        int, tuple[int, int]
    ] = {}  # by member, the one before it, and the kind that this one gives
    kinds_seen: set[int] = set()
    queue = deque(members_in(sources))
    while queue:
        member = queue.popleft()
        for kind in pools.held[member]:
            if kind in kinds_seen:
                continue
            kinds_seen.add(kind)
            newly_seen = (pools.near[kind] | pools.far[kind]) & unseen
            unseen ^= newly_seen
            for other in members_in(newly_seen):
                came_from[other] = (member, kind)
                queue.append(other)
            if ends := newly_seen & targets:
                return _walk_back(pools, came_from, pools.least_loaded(ends)), 0
    return [], open_members & ~unseen


def _walk_back(pools: Pools, came_from: dict[int, tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Return the chain that ends at the member `end`."""
    chain = []
    while end in came_from:
        member, kind = came_from[end]
        chain.append((pools.cheapest_to_take(member, kind), end))
        end = member
    return chain


class _EqualAssignment:
    """A builder of the assignment for members with the same topics (Kafka's ConstrainedAssignmentBuilder).

    Every member gets the same number of partitions or one more, and as many partitions as this allows stay
    with their owners. If several members own too many, the first ones by member id may keep an extra
    partition. (In Kafka, these are the first ones in a hash table.) Racks are ignored.
    """

    def __init__(self, group: StickyGroup) -> None:
        self._group = group
        self._holder = [NOBODY] * group.size  # by partition
        self._load = [0] * len(group.members)
        # Each member gets `_min_quota` partitions, and `_extras_left` members get one more.
        self._min_quota, self._extras_left = divmod(group.size, len(group.members))
        self._max_quota = self._min_quota + (self._extras_left > 0)
        # Members below their quota, and members at their quota that may get an extra partition.
        self._below: list[int] = []
        self._at_min: deque[int] = deque()

    def build(self) -> list[int]:
        """Return the new holder of each partition. The group must have members."""
        self._keep_owned()
        self._distribute([partition for partition, holder in enumerate(self._holder) if holder == NOBODY])
        return self._holder

    def _keep_owned(self) -> None:
        """Leave each member as many of its owned partitions as its quota allows."""
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
        """Return the partitions that each member owns.

        As in Kafka, they are in the order of numbers within topics.
        """
        group = self._group
        owned: list[list[int]] = [[] for _ in group.members]
        for partition, owner in enumerate(group.owner):
            if owner != NOBODY:
                owned[owner].append(partition)
        number = [partition - group.first[topic] for partition, topic in enumerate(group.topic_of())]
        for partitions in owned:
            partitions.sort(key=number.__getitem__)
        return owned

    def _distribute(self, partitions: list[int]) -> None:
        """Give partitions in turns to members below their quota, then one each to members at their quota."""
        turn = 0
        for partition in partitions:
            if not self._below:
                self._give(self._at_min.popleft(), [partition])
                continue
            turn %= len(self._below)
            member = self._below[turn]
            self._give(member, [partition])
            if self._load[member] < self._min_quota:
                turn += 1
            else:
                del self._below[turn]
                self._at_min.append(member)

    def _give(self, member: int, partitions: list[int]) -> None:
        self._load[member] += len(partitions)
        for partition in partitions:
            self._holder[partition] = member


def assign_exact(group: StickyGroup) -> list[int]:
    """Return the new holder of each partition, for members that may have different topics or racks.

    Every topic of the group must have a subscriber. This algorithm reaches Kafka's aims exactly, in Kafka's
    order: 1. The loads are as even as the subscriptions allow. 2. As many partitions as possible are near
    their member. 3. As few partitions as possible move away from their owner. 4. Of the moved partitions, as
    many as possible go back to their previous owner.

    Kafka's algorithm (AbstractStickyAssignor's GeneralAssignmentBuilder) moves single partitions until no
    single move helps, and reverts all moves if they have not improved the balance. So Kafka's assignment is
    never more even than this one. If both are equally even, this one does not move more partitions.
    """
    pools = Pools(group)
    fill(pools)
    level(pools)
    minimise_cost(pools)
    return pools.holder


class StickyAssignor:
    """An assignor that assigns as evenly as the subscriptions allow, and moves as few partitions as possible.

    A member's earlier partitions are its `Claim`. If two members claim a partition, the claim of the higher
    generation counts. Two claims in the same generation void each other. A near rack has priority over the
    owner, as in Kafka.

    If members have the same topics and racks make no difference, the algorithm is Kafka's own, step by step.
    Otherwise it is `assign_exact`. There Kafka's algorithm may leave loads uneven or move more than
    necessary. It gives members partitions that they no longer subscribe to, and at every rebalance it takes
    partitions that are near no member from their owners.
    """

    name: Final = "sticky"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """Assign as in `Assignor.assign`."""
        claims = {m: sticky_claim(member.subscription) for m, member in subscriptions.items()}
        group = number_group(partitions_per_topic, subscriptions, claims, racks)
        return group.by_name(_assign(group), subscriptions)


class CooperativeStickyAssignor:
    """A sticky assignor for members that keep their partitions while they join.

    So consumption continues. A partition that moves is unassigned in the first rebalance, in which its owner
    gives it up. The owner then joins again, and the second rebalance gives the partition to its new owner. If
    two members claim a partition in the same generation, it is first taken from both. A member's earlier
    partitions are the owned partitions in its subscription.
    """

    name: Final = "cooperative-sticky"

    def assign(
        self,
        partitions_per_topic: Mapping[str, int],
        subscriptions: Mapping[MemberId, MemberSubscription],
        racks: PartitionRacks = NO_RACKS,
    ) -> dict[MemberId, list[TopicPartition]]:
        """Assign as in `Assignor.assign`, but omit partitions that their owner must revoke first."""
        claims = {m: cooperative_claim(member.subscription) for m, member in subscriptions.items()}
        group = number_group(partitions_per_topic, subscriptions, claims, racks)
        holder = _assign(group)
        for partition, claimants in group.claimants.items():
            new_holder = holder[partition]
            if new_holder != group.owner[partition] and any(member != new_holder for member in claimants):
                holder[partition] = NOBODY
        return group.by_name(holder, subscriptions)


def _assign(group: StickyGroup) -> list[int]:
    """Return the new holder of each partition."""
    if not group.members:
        return []
    if group.is_equal() and not group.replica_racks:
        return _EqualAssignment(group).build()
    return assign_exact(group)
