"""Levels the loads of members with different topics until no chain of moves improves them."""

from collections import deque

from kafka_why.sticky.group import NOBODY
from kafka_why.sticky.pools import Pools, members_in


def fill(pools: Pools) -> None:
    """Leave every owned partition with its owner. Give each other one to the least loaded of its near members
    (`StickyGroup.is_near`), or of all its subscribers if none is near.

    Topics with few subscribers go first, as in Kafka, because they have the least choice.
    """
    group = pools.group
    for partition, owner in enumerate(group.owner):
        if owner != NOBODY:
            pools.move(partition, owner)
    subscribers = [pools.near[kind] | pools.far[kind] for kind in pools.kind_of]
    free = [partition for partition, owner in enumerate(group.owner) if owner == NOBODY]
    for partition in sorted(free, key=lambda partition: subscribers[partition].bit_count()):
        mask = pools.near[pools.kind_of[partition]] or subscribers[partition]
        pools.move(partition, pools.least_loaded(mask))


def level(pools: Pools) -> None:
    """Move partitions until no chain of moves leads from a member to one that holds at least two fewer.

    The loads are then as even as the subscriptions allow by each of these measures: for every load, the
    number of partitions that members hold above it; the sum of squares; the sum of all pairwise differences.
    """
    _shed(pools)
    open_members = pools.everyone
    top = len(pools.at_load) - 1
    while top >= 2:
        sources = pools.at_load[top] & open_members
        if not sources:
            top -= 1
            continue
        chain, seen = _find_chain(pools, sources, top - 2, open_members)
        for partition, member in chain:
            pools.move(partition, member)
        if not chain:
            # A chain that reaches one of these members stays among them, and none of them has so few.
            open_members &= ~seen


def _shed(pools: Pools) -> None:
    """Make the single moves: they are fast, and most of the work if one member has far too many."""
    for top in range(len(pools.at_load) - 1, 1, -1):
        for member in members_in(pools.at_load[top]):
            kinds = pools.held[member]
            wide = 0
            for kind in kinds:
                wide |= pools.near[kind] | pools.far[kind]
            target = pools.least_loaded(wide)
            if pools.load[target] > top - 2:
                continue
            bit = 1 << target
            fitting = [kind for kind in kinds if (pools.near[kind] | pools.far[kind]) & bit]
            partition = min(
                (pools.cheapest_to_take(member, kind) for kind in fitting),
                key=lambda partition: pools.cost(partition, target) - pools.cost(partition, member),
            )
            pools.move(partition, target)


def _find_chain(
    pools: Pools, sources: int, floor: int, open_members: int
) -> tuple[list[tuple[int, int]], int]:
    """Find the shortest chain of moves from one of `sources` to a member with a load of `floor` or less.

    Returns the chain and the members that chains reach. The chain is a list of (partition, new holder) from
    its end to its start, empty if there is none.
    """
    low = 0
    for members in pools.at_load[: floor + 1]:
        low |= members
    unseen = open_members & ~sources
    came_from: dict[int, tuple[int, int]] = {}
    kinds_seen: set[int] = set()
    queue = deque(members_in(sources))
    while queue:
        member = queue.popleft()
        for kind in pools.held[member]:
            if kind in kinds_seen:
                continue
            kinds_seen.add(kind)
            found = (pools.near[kind] | pools.far[kind]) & unseen
            unseen ^= found
            for other in members_in(found):
                came_from[other] = (member, kind)
                queue.append(other)
            if ends := found & low:
                return _walk_back(pools, came_from, pools.least_loaded(ends)), 0
    return [], open_members & ~unseen


def _walk_back(pools: Pools, came_from: dict[int, tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Return the chain that ends at `end`, as partitions with their new holders."""
    chain = []
    while end in came_from:
        member, kind = came_from[end]
        chain.append((pools.cheapest_to_take(member, kind), end))
        end = member
    return chain
