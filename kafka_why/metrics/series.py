"""The choice of groups and rows with their own series, for all metrics whose labels clients name.

Clients create groups, members and committed offsets, and name most of them. Without a limit, one client could
create any number of series.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kafka_why.contract.kafka.snapshot import MemberSnapshot
from kafka_why.lag.definitions import Ownership, Partition, PartitionLag, Troubles

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
    # The number of durations within each bound that exceed the next smaller bound.
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


# The metrics of lags: those of kafka_exporter by partition, and the coordinator's own by topic.


EXPORTER = "kafka_consumergroup"
OWN = "group_coordinator"

_OF_TOPIC = ("consumergroup", "topic")
_OF_PARTITION = (*_OF_TOPIC, "partition")
_OF_MEMBER = ("consumergroup", "member_id", "client_id", "client_host")


@dataclass(frozen=True, slots=True)
class GroupLags:
    """The lags of one group by partition, with the owners, the harmful lags and the members."""

    lags: Mapping[Partition, PartitionLag]
    ownership: Ownership
    troubles: Troubles
    members: Collection[MemberSnapshot] = ()


_TROUBLES: dict[str, tuple[str, Callable[[Troubles], Collection[Partition]]]] = {
    "stuck_partitions": (
        "Partitions whose committed offset stays while records arrive and their owner keeps its session.",
        lambda found: found.stuck,
    ),
    "partitions_falling_behind": (
        "Partitions whose lag rises although the group commits.",
        lambda found: found.falling_behind,
    ),
    "partitions_without_owner": (
        "Partitions with records that wait and no member that holds them.",
        lambda found: found.without_owner,
    ),
}


@dataclass(slots=True)
class LagTotals:
    """The sums of the lags of several groups."""

    records: int = 0
    ms: int | None = None  # greatest lag in time; None if none is known
    troubles: Counter[str] = field(default_factory=Counter)

    def add(self, of_group: GroupLags) -> None:
        """Add a group."""
        for lag in of_group.lags.values():
            self.records += lag.records or 0
            if lag.ms is not None:
                self.ms = max(lag.ms, self.ms or 0)
        for name, (_, of_trouble) in _TROUBLES.items():
            self.troubles[name] += len(of_trouble(of_group.troubles))


def lag_gauges(
    groups: Mapping[str, GroupLags],
    others: LagTotals | None = None,
    *,
    with_members: bool,
    rows_max: int = SeriesBounds().rows,
) -> Iterator[Metric]:
    """Yield the gauges of groups with committed offsets, and the total of `others`.

    At most `rows_max` partitions have series, with their topics: of each group, those that it committed
    first.
    """
    shown = first_rows({g: list(groups[g].lags) for g in sorted(groups)}, rows_max)
    topics = {g: sorted({topic for topic, _ in partitions}) for g, partitions in shown.items()}
    offsets = {g: {p: lag.offset for p, lag in of.lags.items()} for g, of in groups.items()}
    records = {
        g: {p: lag.records for p, lag in of.lags.items() if lag.records is not None}
        for g, of in groups.items()
    }
    yield from _by_partition("current_offset", "committed offset", offsets, shown)
    each, total = _by_partition("lag", "records between the committed offset and the end", records, shown)
    seconds = _lag_seconds(groups, topics)
    troubles = {name: _trouble(name, groups, topics) for name in _TROUBLES}
    if others is not None:
        add_others(total, [others.records], "")
        add_others(seconds, [None if others.ms is None else others.ms / 1000], "")
        for name, gauge in troubles.items():
            add_others(gauge, [others.troubles[name]], "")
    yield from (each, total, seconds, *troubles.values())
    committed = sum(len(of_group.lags) for of_group in groups.values())
    yield without_series("partitions", "Committed offsets", committed - sum(map(len, shown.values())))
    if with_members:
        yield from _member_gauges(groups, rows_max)


def _by_partition(
    name: str,
    meaning: str,
    values: Mapping[str, Mapping[Partition, int]],
    shown: Mapping[str, Sequence[Partition]],
) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    """Return two gauges: each shown partition, and the sum of all partitions by topic."""
    each = GaugeMetricFamily(f"{EXPORTER}_{name}", f"Per partition: {meaning}.", labels=_OF_PARTITION)
    total = GaugeMetricFamily(f"{EXPORTER}_{name}_sum", f"Per topic, the sum: {meaning}.", labels=_OF_TOPIC)
    for group_id, partitions in shown.items():
        known = values[group_id]
        sums: Counter[str] = Counter()
        for (topic, _), value in known.items():
            sums[topic] += value
        shown_topics = sorted(sums.keys() & {topic for topic, _ in partitions})
        filled(each, (((group_id, t, str(n)), known[t, n]) for t, n in sorted(known.keys() & {*partitions})))
        filled(total, (((group_id, topic), sums[topic]) for topic in shown_topics))
    return each, total


def _lag_seconds(groups: Mapping[str, GroupLags], topics: Mapping[str, Collection[str]]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(
        f"{OWN}_lag_seconds", "The greatest lag in time of a topic's partitions.", labels=_OF_TOPIC
    )
    for group_id, shown in topics.items():
        greatest: dict[str, int] = {}
        for (topic, _), lag in groups[group_id].lags.items():
            if lag.ms is not None:
                greatest[topic] = max(lag.ms, greatest.get(topic, 0))
        known = sorted(greatest.keys() & set(shown))
        filled(gauge, (((group_id, topic), greatest[topic] / 1000) for topic in known))
    return gauge


def _trouble(
    name: str, groups: Mapping[str, GroupLags], topics: Mapping[str, Collection[str]]
) -> GaugeMetricFamily:
    """Return the gauge of one kind of harmful lag: its number of partitions by topic."""
    meaning, of_trouble = _TROUBLES[name]
    gauge = GaugeMetricFamily(f"{OWN}_{name}", meaning, labels=_OF_TOPIC)
    for group_id, shown in topics.items():
        counts = Counter(topic for topic, _ in of_trouble(groups[group_id].troubles))
        filled(gauge, (((group_id, topic), counts[topic]) for topic in shown))
    return gauge


def _member_gauges(groups: Mapping[str, GroupLags], rows_max: int) -> Iterator[Metric]:
    records = GaugeMetricFamily(
        f"{OWN}_member_lag", "Per member: records that wait at its partitions.", labels=_OF_MEMBER
    )
    seconds = GaugeMetricFamily(
        f"{OWN}_member_lag_seconds", "Per member: the greatest lag in time.", labels=_OF_MEMBER
    )
    shown = first_rows(
        {g: [m for m in groups[g].members if fits(*_names(m))] for g in sorted(groups)}, rows_max
    )
    for group_id, members in shown.items():
        of_group = groups[group_id]
        by_member: dict[str, list[PartitionLag]] = {}
        for where, lag in of_group.lags.items():
            by_member.setdefault(of_group.ownership.holders.get(where, ""), []).append(lag)
        for member in members:
            lags = by_member.get(member.member_id, [])
            records.add_metric((group_id, *_names(member)), sum(lag.records or 0 for lag in lags))
            known = [lag.ms for lag in lags if lag.ms is not None]
            if known:
                seconds.add_metric((group_id, *_names(member)), max(known) / 1000)
    yield from (records, seconds)
    all_members = sum(len(of_group.members) for of_group in groups.values())
    yield without_series("members", "Members", all_members - sum(map(len, shown.values())))


def _names(member: MemberSnapshot) -> tuple[str, str, str]:
    return member.member_id, member.client_id, member.client_host
