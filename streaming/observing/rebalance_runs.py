"""What looks at the brokers show of rebalancing groups, as records of the sightings topic, without any IO.

Times are seconds of a monotonic clock.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct, field

from kafka_why.contract.sightings import MEMBERS_MAX, SeenMember, SightingRecord, sighting_key
from kafka_why.observed.consumer_offsets.partition import partition_of_offsets

GROUPS_MAX = 2_000
"""The largest number of groups that are followed at a time."""
# The query has read so many ends of a partition sooner or later, and the first of them tells enough.
_ENDS_MAX = 64
# A run that is over is forgotten if the query has not read up to its end after so long.
_FORGET_S = 600.0


class Seen(NamedTuple):
    """A rebalancing group: its state, and its members if it was described and has not too many."""

    state: str
    members: tuple[SeenMember, ...] | None


class _Run(Struct):
    """A group that was seen rebalancing at each look from `first_s` to `seen_s`. It was not at `before_s`."""

    name: str
    first_s: float
    before_s: float
    seen_s: float
    seen: Seen
    over_s: float | None = None


class _Ends(Struct):
    """Ends of a partition of `__consumer_offsets`, by time. The query had read up to one of `read_s`."""

    waiting: list[tuple[float, int]] = field(default_factory=list)
    read_s: float | None = None


class RebalanceRuns:
    """Follows rebalancing groups over complete looks at all brokers. The source has so many `partitions`."""

    def __init__(self, partitions: int, new_name: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._partitions = partitions
        self._new_name = new_name
        self._runs: dict[str, _Run] = {}
        self._over: dict[str, _Run] = {}
        # Groups that were rebalancing already when they could first be followed: since when is not known.
        self._unbounded: frozenset[str] = frozenset()
        self._before_s: float | None = None
        self._ends: dict[int, _Ends] = {}

    def choose(self, listed: set[str]) -> list[str]:
        """Return the groups that are followed of those listed, first those that are followed already."""
        return sorted(listed, key=lambda group_id: (group_id not in self._runs, group_id))[:GROUPS_MAX]

    def look(
        self, asked_s: float, answered_s: float, listed: set[str], seen: Mapping[str, Seen], *, is_whole: bool
    ) -> None:
        """Take a look: the groups that were listed as rebalancing, and of those chosen what was seen.

        `is_whole`: every broker has answered. `asked_s` is before the first question.
        """
        chosen = set(self.choose(listed))
        for group_id in sorted(seen.keys() & chosen - self._unbounded):
            self._see(group_id, answered_s, seen[group_id])
        if is_whole:
            gone = self._runs.keys() - {g for g in chosen if g in seen}
            for group_id in gone:
                run = self._runs.pop(group_id)
                run.over_s = answered_s
                self._over[group_id] = run
            rebalancing = listed - (chosen - seen.keys())
            self._unbounded = frozenset(rebalancing - self._runs.keys())
            self._before_s = asked_s
        self._forget(answered_s)

    def _see(self, group_id: str, at_s: float, seen: Seen) -> None:
        run = self._runs.get(group_id)
        if run is not None:
            run.seen_s, run.seen = at_s, seen
        elif self._before_s is not None:
            self._runs[group_id] = _Run(self._new_name(), at_s, self._before_s, at_s, seen)

    def _forget(self, now_s: float) -> None:
        late = [g for g, run in self._over.items() if run.over_s is None or now_s - run.over_s > _FORGET_S]
        for group_id in late:
            del self._over[group_id]
        needed = self.partitions()
        self._ends = {number: ends for number, ends in self._ends.items() if number in needed}

    def partitions(self) -> set[int]:
        """The partitions of `__consumer_offsets` whose ends are needed."""
        return {self._partition(group_id) for group_id in (*self._runs, *self._over)}

    def _partition(self, group_id: str) -> int:
        return partition_of_offsets(group_id, self._partitions)

    def ended(self, asked_s: float, ends: Mapping[int, int], read: Mapping[int, int]) -> None:
        """Take the ends of partitions, asked for at this time, and how far the query has read them."""
        for number, end in ends.items():
            of_partition = self._ends.setdefault(number, _Ends())
            if len(of_partition.waiting) < _ENDS_MAX:
                of_partition.waiting.append((asked_s, end))
        for number, of_partition in self._ends.items():
            so_far = read.get(number, -1)
            while of_partition.waiting and of_partition.waiting[0][1] <= so_far:
                of_partition.read_s = of_partition.waiting.pop(0)[0]

    def records(self, now_s: float, seen_s: float) -> Iterator[tuple[bytes, SightingRecord]]:
        """Yield the key and the record of each group that was seen at `seen_s`, and of each whose rebalance
        is over, once the query has read up to that.
        """
        for group_id, run in self._runs.items():
            if run.seen_s == seen_s:
                yield self._record(group_id, run, now_s, run.seen_s)
        for group_id, run in list(self._over.items()):
            assert run.over_s is not None
            read_s = self._read_s(group_id)
            if read_s is not None and read_s >= run.over_s:
                del self._over[group_id]
                yield self._record(group_id, run, now_s, run.over_s)

    def _read_s(self, group_id: str) -> float | None:
        ends = self._ends.get(self._partition(group_id))
        return None if ends is None else ends.read_s

    def _record(self, group_id: str, run: _Run, now_s: float, seen_s: float) -> tuple[bytes, SightingRecord]:
        read_s, members = self._read_s(group_id), run.seen.members
        is_over = run.over_s is not None
        return sighting_key(group_id, self._partition(group_id)), SightingRecord(
            run=run.name,
            state=run.seen.state,
            first_ago_ms=_ms(now_s - run.first_s),
            seen_ago_ms=_ms(now_s - seen_s),
            within_ms=_ms(run.first_s - run.before_s),
            read_ago_ms=None if read_s is None else _ms(now_s - read_s),
            is_over=is_over,
            members=None if is_over or members is None or len(members) > MEMBERS_MAX else members,
        )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
