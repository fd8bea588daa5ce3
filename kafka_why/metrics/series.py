"""The choice of what has series of its own, for all metrics whose labels clients name.

Clients make groups, members and committed offsets, and the names of most of them. Without a bound, a client
that makes groups makes series without end.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

DEFAULT_GROUPS = 1_000
ROWS_PER_GROUP = 20
"""Partitions, and as many members, that have series, for each group that may have some."""
LABEL_MAX_CHARS = 256
"""Of an id in a label. Kafka's own names, those of topics, are shorter."""

_OTHERS = ""
"""The label value of what has no series of its own. Prometheus takes it for a label that is absent."""

T = TypeVar("T")
F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)


@dataclass(frozen=True, slots=True)
class SeriesBounds:
    """Bounds of series. Groups whose whole id `pattern` matches, of RE2, come before all others."""

    groups: int = DEFAULT_GROUPS
    pattern: Any = None

    @property
    def rows(self) -> int:
        """The number of partitions of all groups, and as many members, that have series."""
        return self.groups * ROWS_PER_GROUP


@dataclass(frozen=True, slots=True)
class SeriesSelection:
    """The groups that have series of their own at one scrape, and the number of those that have none."""

    group_ids: frozenset[str] = frozenset()
    others: int = 0

    def own(self, groups: Mapping[str, T]) -> list[tuple[str, T]]:
        """Return those of the groups that have series, sorted by their ids."""
        return [(group_id, groups[group_id]) for group_id in sorted(self.group_ids & groups.keys())]

    def rest(self, groups: Mapping[str, T]) -> list[T]:
        """Return those of the groups that have no series."""
        if not self.others:
            return []
        return [group for group_id, group in groups.items() if group_id not in self.group_ids]


@dataclass(slots=True)
class SeriesGroups:
    """Chooses the groups that have series: those that the pattern matches, then the others, in the order in
    which they were first seen. So a group keeps its series until it ends, or one that the pattern matches
    needs its place, and the next one gets a place that is free.
    """

    bounds: SeriesBounds
    _matching: dict[str, None] = field(default_factory=dict)
    _others: dict[str, None] = field(default_factory=dict)
    _unfit: set[str] = field(default_factory=set)

    def add(self, group_id: str) -> None:
        """Add a group. One that is there keeps its place."""
        if group_id == _OTHERS or not fits(group_id):
            self._unfit.add(group_id)
        elif group_id not in self._matching and group_id not in self._others:
            pattern = self.bounds.pattern
            is_matching = pattern is not None and pattern.fullmatch(group_id) is not None
            (self._matching if is_matching else self._others)[group_id] = None

    def remove(self, group_id: str) -> None:
        self._matching.pop(group_id, None)
        self._others.pop(group_id, None)
        self._unfit.discard(group_id)

    def selection(self) -> SeriesSelection:
        chosen = frozenset(islice(chain(self._matching, self._others), self.bounds.groups))
        total = len(self._matching) + len(self._others) + len(self._unfit)
        return SeriesSelection(chosen, total - len(chosen))


def fits(*labels: str) -> bool:
    """Return True if names that clients gave are short enough for labels."""
    return all(len(label) <= LABEL_MAX_CHARS for label in labels)


def first_rows(rows: Mapping[str, list[T]], rows_max: int) -> dict[str, list[T]]:
    """Return the first rows of each group, at most `rows_max` of all.

    No group has more of them than another that lacks some: a group with many takes no row from the others.
    """
    share = _fair_share(map(len, rows.values()), rows_max)
    return {group_id: of_group[:share] for group_id, of_group in rows.items()}


def _fair_share(sizes: Iterable[int], total: int) -> int:
    """Return the greatest number of rows that each group may have if all together have at most `total`."""
    ascending = sorted(sizes)
    for position, size in enumerate(ascending):
        share = total // (len(ascending) - position)
        if size > share:
            return share
        total -= size
    return ascending[-1] if ascending else 0


def without_series(name: str, meaning: str, number: int) -> Metric:
    """Return the number of what has no series of its own."""
    return GaugeMetricFamily(
        f"group_coordinator_{name}_without_series", f"{meaning} without series of their own.", number
    )


def filled(family: F, series: Iterable[tuple[Sequence[str], float]]) -> F:
    """Return the family with these series: the values of the labels, and the number of each."""
    for labels, number in series:
        family.add_metric(labels, number)
    return family


def add_others(
    family: GaugeMetricFamily,
    values: Iterable[float | None],
    *labels: str,
    of_all: Callable[[list[float]], float] = sum,
) -> GaugeMetricFamily:
    """Return the family with one series for the groups that have none: the sum of their values, or what
    `of_all` makes of them.

    `labels` are those after the group's. Values that are not known are left out.
    """
    known = [value for value in values if value is not None]
    return filled(family, [((_OTHERS, *labels), of_all(known))] if known else ())


# Durations as a histogram.


# From an assignment without moves to members that take the default max.poll.interval.ms, in seconds.
BOUNDS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(slots=True)
class DurationCounts:
    """Durations since the start of this process. `within` counts those within a bound and no smaller one."""

    whole_ms: int = 0
    within: Counter[float] = field(default_factory=Counter)

    def add(self, took_ms: int) -> None:
        self.whole_ms += took_ms
        self.within[next((b for b in BOUNDS_S if took_ms <= b * 1000), float("inf"))] += 1

    def metric(self, name: str, meaning: str) -> Metric:
        """Return the histogram, in seconds."""
        buckets: list[tuple[str, float]] = []
        for bound in (*BOUNDS_S, float("inf")):
            below = buckets[-1][1] if buckets else 0
            buckets.append(("+Inf" if bound == float("inf") else str(bound), below + self.within[bound]))
        family = HistogramMetricFamily(name, meaning)
        family.add_metric((), buckets, self.whole_ms / 1000)
        return family
