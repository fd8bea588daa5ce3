"""The choice of groups and rows with their own series, for all metrics whose labels clients name.

Clients create groups, members and committed offsets, and name most of them. Without a limit, one client could
create any number of series.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

DEFAULT_GROUPS = 1_000
ROWS_PER_GROUP = 20
"""The number of partitions with series for each group in the limit, and the number of members."""
LABEL_MAX_CHARS = 256
"""The maximum length of a client's name in a label. Names of topics are shorter."""

_OTHERS = ""
"""The label value of the series for all groups without their own. Prometheus treats it as an absent label."""

T = TypeVar("T")
F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)


@dataclass(frozen=True, slots=True)
class SeriesBounds:
    """The limits of series."""

    groups: int = DEFAULT_GROUPS
    pattern: Any = None  # RE2; groups whose whole id matches have priority

    @property
    def rows(self) -> int:
        """The number of partitions of all groups that have series, and of members."""
        return self.groups * ROWS_PER_GROUP


@dataclass(frozen=True, slots=True)
class SeriesSelection:
    """The groups that have their own series at one scrape, and the number of those without."""

    group_ids: frozenset[str] = frozenset()
    others: int = 0

    def own(self, groups: Mapping[str, T]) -> list[tuple[str, T]]:
        """Return those of `groups` that have series, sorted by id."""
        return [(group_id, groups[group_id]) for group_id in sorted(self.group_ids & groups.keys())]

    def rest(self, groups: Mapping[str, T]) -> list[T]:
        """Return the given groups that have no series."""
        if not self.others:
            return []
        return [group for group_id, group in groups.items() if group_id not in self.group_ids]


@dataclass(slots=True)
class SeriesGroups:
    """The candidates for series of their own, in order of arrival. Those that match the pattern come first.

    A group keeps its series until it ends, or until a matching group needs the slot. A free slot goes to the
    next group.
    """

    bounds: SeriesBounds
    _matching: dict[str, None] = field(default_factory=dict)
    _others: dict[str, None] = field(default_factory=dict)
    _unfit: set[str] = field(default_factory=set)

    def add(self, group_id: str) -> None:
        """Add a group. A known group keeps its position."""
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
    """Return True if clients' names are short enough for labels."""
    return all(len(label) <= LABEL_MAX_CHARS for label in labels)


def first_rows(rows: Mapping[str, list[T]], rows_max: int) -> dict[str, list[T]]:
    """Return the first rows of each group, at most `rows_max` in total. All groups have the same limit."""
    share = _fair_share(map(len, rows.values()), rows_max)
    return {group_id: of_group[:share] for group_id, of_group in rows.items()}


def _fair_share(sizes: Iterable[int], total: int) -> int:
    """Return the row limit per group with which all groups together have at most `total` rows."""
    ascending = sorted(sizes)
    for position, size in enumerate(ascending):
        share = total // (len(ascending) - position)
        if size > share:
            return share
        total -= size
    return ascending[-1] if ascending else 0


def without_series(name: str, meaning: str, number: int) -> Metric:
    """Return a gauge of the groups or rows that have no series."""
    return GaugeMetricFamily(
        f"group_coordinator_{name}_without_series", f"{meaning} without their own series.", number
    )


def filled(family: F, series: Iterable[tuple[Sequence[str], float]]) -> F:
    """Add `series` to the family, each with its label values and its number. Return the family."""
    for labels, number in series:
        family.add_metric(labels, number)
    return family


def add_others(
    family: GaugeMetricFamily,
    values: Iterable[float | None],
    *labels: str,
    of_all: Callable[[list[float]], float] = sum,
) -> GaugeMetricFamily:
    """Add one series for all groups without their own. Return the family.

    It has the sum of these groups' `values`, or the result of `of_all`, without unknown values. `labels`
    follow the group's label.
    """
    known = [value for value in values if value is not None]
    return filled(family, [((_OTHERS, *labels), of_all(known))] if known else ())


# Durations as a histogram.


# From an assignment without moves to members that take the default max.poll.interval.ms, in seconds.
BOUNDS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@dataclass(slots=True)
class DurationCounts:
    """A histogram of durations since the start of this process."""

    whole_ms: int = 0
    # By bound: durations within it that exceed the next smaller bound.
    within: Counter[float] = field(default_factory=Counter)

    def add(self, took_ms: int) -> None:
        self.whole_ms += took_ms
        self.within[next((b for b in BOUNDS_S if took_ms <= b * 1000), float("inf"))] += 1

    def metric(self, name: str, meaning: str) -> Metric:
        """Return the histogram as a Prometheus metric, in seconds."""
        buckets: list[tuple[str, float]] = []
        for bound in (*BOUNDS_S, float("inf")):
            below = buckets[-1][1] if buckets else 0
            buckets.append(("+Inf" if bound == float("inf") else str(bound), below + self.within[bound]))
        family = HistogramMetricFamily(name, meaning)
        family.add_metric((), buckets, self.whole_ms / 1000)
        return family
