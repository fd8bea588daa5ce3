"""The partitions that each member holds while a group is being balanced, and their costs.

A set of members is an int with one bit for each member, so a union of thousands of members is one operation.
"""

from collections.abc import Iterator
from typing import Final

from kafka_why.sticky.api import NOBODY, StickyGroup

# Partitions by holding value (`Pools.holding_value`). A dict whose values are None is an ordered set.
_Pool = dict[int, dict[int, None]]

AWAY: Final = 0
"""The holding value of a partition at a member that is neither its owner nor its previous owner."""


def members_in(mask: int) -> Iterator[int]:
    """Yield the members of a set in ascending order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class Pools:
    """The partitions of each member by kind. Partitions of one kind have the same subscribers and racks.

    The cost of a partition at a member is a number. Three facts add to the cost: the member is on another
    rack; the member is not its owner; the member is not its previous owner, either. One such fact outweighs
    any number of the later ones. For a partition without owners only the rack counts.
    """

    def __init__(self, group: StickyGroup) -> None:
        self.group = group
        self.move_cost: Final = group.size + 1
        self.rack_cost: Final = self.move_cost * (group.size + 1)
        self.everyone: Final = (1 << len(group.members)) - 1
        self.holder = [NOBODY] * group.size  # by partition
        self.load = [0] * len(group.members)  # by member, its number of partitions
        self.at_load = [self.everyone]  # by load, the members with that load
        self.kind_of: list[int] = []  # by partition
        self.near: list[int] = []  # by kind, the subscribers that are near
        self.far: list[int] = []  # by kind, the other subscribers
        # By member and kind, its partitions by holding value.
        self.held: list[dict[int, _Pool]] = [{} for _ in group.members]
        # By member, its partitions that cost less at another member: their owner or previous owner.
        self.misplaced: list[dict[int, None]] = [{} for _ in group.members]
        self._find_kinds()

    def _find_kinds(self) -> None:
        """Find the kind of each partition, and the near and far subscribers of each kind."""
        group = self.group
        subscribers = [0] * len(group.topics)
        for member, topics in enumerate(group.topics_of):
            for topic in topics:
                subscribers[topic] |= 1 << member
        if not group.replica_racks:
            self.kind_of, self.near, self.far = group.topic_of(), subscribers, [0] * len(subscribers)
            return
        kinds: dict[tuple[int, frozenset[str]], int] = {}
        for topic, mask in enumerate(subscribers):
            for partition in range(group.first[topic], group.first[topic + 1]):
                racks = group.replica_racks[partition]
                if (topic, racks) not in kinds:
                    kinds[topic, racks] = len(self.near)
                    near = sum(1 << m for m in members_in(mask) if group.is_near(m, partition))
                    self.near.append(near)
                    self.far.append(mask & ~near)
                self.kind_of.append(kinds[topic, racks])

    def least_loaded(self, mask: int) -> int:
        """Return the first member in `mask` with the lowest load. `mask` has at least one member."""
        for members in self.at_load:
            if candidates := members & mask:
                return (candidates & -candidates).bit_length() - 1  # the lowest bit
        raise ValueError("no members")

    def base_cost(self, partition: int) -> int:
        """Return the cost, without racks, at a member that is no owner or previous owner."""
        if self.group.owner[partition] != NOBODY:
            return self.move_cost
        return int(self.group.previous[partition] != NOBODY)

    def holding_value(self, partition: int, member: int) -> int:
        """Return by how much the cost at `member` is below `base_cost`, or AWAY (0)."""
        if member == self.group.owner[partition]:
            return self.move_cost
        return 1 if member == self.group.previous[partition] else AWAY

    def rack_cost_at(self, kind: int, member: int) -> int:
        """Return `rack_cost` if the member is on another rack than partitions of this kind, else 0."""
        is_far = self.far[kind] >> member & 1
        return self.rack_cost * is_far

    def cost(self, partition: int, member: int) -> int:
        """Return the cost of this partition at this member."""
        kind = self.kind_of[partition]
        return (
            self.base_cost(partition)
            - self.holding_value(partition, member)
            + self.rack_cost_at(kind, member)
        )

    def better_holders(self, partition: int) -> list[int]:
        """Return the owner and the previous owner of the partition, without its holder."""
        owner, previous = self.group.owner[partition], self.group.previous[partition]
        excluded = (NOBODY, self.holder[partition])
        if owner in excluded and previous in excluded:  # the usual case: the owner holds the partition
            return []
        return sorted({owner, previous}.difference(excluded))

    def cheapest_to_take(self, member: int, kind: int) -> int:
        """Return the member's partition of this kind that is cheapest to take. It must have one."""
        pool = self.held[member][kind]
        return next(reversed(pool[min(pool)]))  # the last one of the lowest holding value

    def move(self, partition: int, member: int) -> None:
        """Give a partition to a member, and take it from its holder, if any."""
        holder = self.holder[partition]
        if holder != NOBODY:
            self._take(partition, holder)
        self.holder[partition] = member
        holding_value = self.holding_value(partition, member)
        pool = self.held[member].setdefault(self.kind_of[partition], {})
        pool.setdefault(holding_value, {})[partition] = None
        if self.better_holders(partition):
            self.misplaced[member][partition] = None
        self._set_load(member, self.load[member] + 1)

    def _take(self, partition: int, holder: int) -> None:
        """Take a partition from its holder."""
        kind, holding_value = self.kind_of[partition], self.holding_value(partition, holder)
        pool = self.held[holder][kind]
        del pool[holding_value][partition]
        if not pool[holding_value]:
            del pool[holding_value]
        if not pool:
            del self.held[holder][kind]
        self.misplaced[holder].pop(partition, None)
        self._set_load(holder, self.load[holder] - 1)

    def _set_load(self, member: int, load: int) -> None:
        member_bit = 1 << member
        self.at_load[self.load[member]] ^= member_bit
        if load == len(self.at_load):
            self.at_load.append(0)
        self.at_load[load] |= member_bit
        self.load[member] = load
