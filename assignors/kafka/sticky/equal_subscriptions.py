"""Sticky for members that all have the same topics (AbstractStickyAssignor's ConstrainedAssignmentBuilder).

Every member gets the same number of partitions or one more, and as many partitions as that allows stay where
they were. Where Kafka follows the order of a hash table (which of the members that own too many may keep the
extra partition), this rule follows the order of member ids. Racks are ignored: see
`assignors.kafka.sticky.assignor`.
"""

from collections import deque

from assignors.kafka.sticky.group import NOBODY, StickyGroup


def assign_equal(group: StickyGroup) -> list[int]:
    """Return the new holder of each partition. The group has members, and all have the same topics."""
    return _EqualAssignment(group).build()


class _EqualAssignment:
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
        self._keep_owned()
        self._give_around([partition for partition, holder in enumerate(self._holder) if holder == NOBODY])
        return self._holder

    def _keep_owned(self) -> None:
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
        """By member: the partitions it may keep, lowest numbers (over all its topics) first, as in Kafka."""
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
