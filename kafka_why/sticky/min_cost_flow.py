"""Undoes needless moves. Minimum-cost flow finds the cheapest of all assignments with equally even loads.

A residual cycle is a cycle of members. Each member gives a partition to the next one. The cycle does not
change the loads, or swaps two loads that differ by one. An assignment has minimum cost when no residual cycle
of negative cost is left (Klein's cycle cancelling).
"""

from collections import defaultdict, deque
from typing import NamedTuple

from kafka_why.sticky.pools import Pools, members_in


class _Step(NamedTuple):
    """An edge of the residual graph: `giver` gives `taker` a partition.

    If `kind` and `partition` are None, the giver's load rises by one instead, and the taker's load falls by
    one.
    """

    giver: int
    taker: int
    kind: int | None = None  # the giver's cheapest partition of this kind
    partition: int | None = None


def minimise_cost(pools: Pools) -> None:
    """Cancel cycles of negative cost until there are none. The loads stay equally even."""
    while _Search(pools).cancel_negative_cycles():
        pass


class _Search:
    """A search for cycles of negative cost, by label correcting. All labels are 0 initially.

    A cycle is cancelled as soon as it is found. Its members then leave the search, because the costs of their
    edges have changed.
    """

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        # By member, the lowest cost of a path to it so far. A negative label means that the path saves cost.
        self._label = [0] * len(pools.load)
        self._members_at = {0: pools.everyone}  # by label
        self._predecessor: dict[int, _Step] = {}  # by member, the last edge of this path
        self._settled = 0  # the set of members that have left the search
        # The lowest label of the paths that reached each kind of partition, and each load.
        self._kind_label: defaultdict[int, int] = defaultdict(int)
        self._load_label: defaultdict[int, int] = defaultdict(int)
        has_racks = bool(pools.group.replica_racks)
        # Without racks, a cycle saves cost only if a member in it gives a misplaced partition.
        self._queue = deque(m for m, misplaced in enumerate(pools.misplaced) if has_racks or misplaced)
        self._queued = set(self._queue)

    def cancel_negative_cycles(self) -> bool:
        """Cancel cycles that share no member. Return False if there was none: the cost is minimal."""
        while self._queue:
            member = self._queue.popleft()
            self._queued.discard(member)
            self._relax_kinds(member)
            self._relax_misplaced(member)
            self._relax_loads(member)
        return self._settled != 0

    def _relax_kinds(self, member: int) -> None:
        """Relax the edges by which the member gives its cheapest partition of each kind."""
        pools = self._pools
        for kind, pool in tuple(pools.held[member].items()):
            if self._is_settled(member):
                return
            # Giving up the cheapest partition costs its holding value, which is the pool's lowest key.
            label = self._label[member] + min(pool) - pools.rack_cost_at(kind, member)
            if label < self._kind_label[kind]:
                self._kind_label[kind] = label
                self._reach(pools.near[kind], label, member, kind=kind)
                self._reach(pools.far[kind], label + pools.rack_cost, member, kind=kind)

    def _relax_misplaced(self, member: int) -> None:
        """Relax the edges by which the member gives a partition back to its owner or previous owner."""
        pools = self._pools
        for partition in tuple(pools.misplaced[member]):
            if self._is_settled(member):
                return
            cost = pools.cost(partition, member)
            for better in pools.better_holders(partition):
                label = self._label[member] + pools.cost(partition, better) - cost
                self._reach(1 << better, label, member, partition=partition)

    def _relax_loads(self, member: int) -> None:
        """Relax the edges to members whose load is higher by one. Such an edge swaps the two loads."""
        load, label = self._pools.load[member], self._label[member]
        if label < self._load_label[load] and load + 1 < len(self._pools.at_load):
            self._load_label[load] = label
            self._reach(self._pools.at_load[load + 1], label, member)

    def _reach(
        self, takers: int, label: int, giver: int, *, kind: int | None = None, partition: int | None = None
    ) -> None:
        """Lower the labels of `takers` to `label` by edges from `giver`. Cancel a cycle that they close."""
        if self._is_settled(giver):
            return
        takers &= ~self._settled
        for current_label, members in self._members_at.items():
            if current_label <= label:
                takers &= ~members
        for taker in members_in(takers):
            step = _Step(giver, taker, kind, partition)
            if cycle := self._find_cycle(step):
                self._push_flow(cycle)
                return
            taker_bit = 1 << taker
            self._members_at[self._label[taker]] ^= taker_bit
            self._members_at[label] = self._members_at.get(label, 0) | taker_bit
            self._label[taker] = label
            self._predecessor[taker] = step
            if taker not in self._queued:
                self._queued.add(taker)
                self._queue.append(taker)

    def _find_cycle(self, step: _Step) -> list[_Step]:
        """Return the cycle of negative cost that this edge closes, or []."""
        steps = [step]
        member = step.giver
        while member != step.taker:
            if member not in self._predecessor or self._is_settled(member):
                return []
            steps.append(self._predecessor[member])
            member = steps[-1].giver
        return steps

    def _is_settled(self, member: int) -> bool:
        """Return True if the member has left the search."""
        return bool(self._settled >> member & 1)

    def _push_flow(self, cycle: list[_Step]) -> None:
        """Make the moves of a cycle, and remove its members from the search."""
        moves = []
        for step in cycle:
            self._settled |= 1 << step.taker
            if step.partition is not None:
                moves.append((step.partition, step.taker))
            elif step.kind is not None:
                moves.append((self._pools.cheapest_to_take(step.giver, step.kind), step.taker))
        for partition, member in moves:
            self._pools.move(partition, member)
