"""The choice of groups and rows with their own series, for all metrics whose labels clients name.

A row is a partition with a committed offset, or a member. Clients create groups, members and committed
offsets, and name most of them. Without a limit, one client could create any number of series.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeVar

from prometheus_client import disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kafka_why.contract.kafka.snapshot import MemberSnapshot
from kafka_why.grouping import grouped
from kafka_why.lag.definitions import HarmfulLags, Ownership, Partition, PartitionLag

# Otherwise each counter and histogram would have one more series, which nothing here reads.
disable_created_metrics()  # type: ignore[no-untyped-call]

DEFAULT_GROUPS = 1_000
ROWS_PER_GROUP = 20
"""The factor from the maximum number of groups with series to that of rows (see `SeriesBounds.rows`)."""
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
        """The maximum number of partitions with series, in all groups together, and the same for members."""
        return self.groups * ROWS_PER_GROUP


@dataclass(frozen=True, slots=True)
class SeriesSelection:
    """The groups that have their own series at one scrape, and the number of all other groups (`others`)."""

    group_ids: frozenset[str] = frozenset()
    others: int = 0

    def own(self, groups: Mapping[str, T]) -> list[tuple[str, T]]:
        """Return the given groups that have series, sorted by id."""
        return [(group_id, groups[group_id]) for group_id in sorted(self.group_ids & groups.keys())]

    def rest(self, groups: Mapping[str, T]) -> list[T]:
        """Return the given groups that have no series."""
        if not self.others:
            return []
        return [group for group_id, group in groups.items() if group_id not in self.group_ids]


@dataclass(slots=True)
class SeriesGroups:
    """The candidates for series of their own, in order of arrival. Groups that match the pattern come first.

    A group keeps its series until it ends, or until a matching group needs the slot. The next group gets a
    free slot.
    """

    bounds: SeriesBounds
    _matching: dict[str, None] = field(default_factory=dict)
    _others: dict[str, None] = field(default_factory=dict)
    _unfit: set[str] = field(default_factory=set)  # ids that cannot be labels: too long or empty

    def add(self, group_id: str) -> None:
        """Add a group. A known group keeps its position."""
        if group_id == _OTHERS or not fits(group_id):
            self._unfit.add(group_id)
        elif group_id not in self._matching and group_id not in self._others:
            pattern = self.bounds.pattern
            is_matching = pattern is not None and pattern.fullmatch(group_id) is not None
            candidates = self._matching if is_matching else self._others
            candidates[group_id] = None

    def remove(self, group_id: str) -> None:
        """Remove a group that has ended."""
        self._matching.pop(group_id, None)
        self._others.pop(group_id, None)
        self._unfit.discard(group_id)

    def selection(self) -> SeriesSelection:
        """Return the first candidates that have their own series, as many as the bounds allow."""
        selected = frozenset(islice(chain(self._matching, self._others), self.bounds.groups))
        total = len(self._matching) + len(self._others) + len(self._unfit)
        return SeriesSelection(selected, others=total - len(selected))


def fits(*labels: str) -> bool:
    """Return True if clients' names are short enough for labels."""
    return all(len(label) <= LABEL_MAX_CHARS for label in labels)


def first_rows(rows: Mapping[str, list[T]], rows_max: int) -> dict[str, list[T]]:
    """Return the first rows of each group, at most `rows_max` in total. All groups have the same limit."""
    limit = _fair_limit(map(len, rows.values()), rows_max)
    return {group_id: of_group[:limit] for group_id, of_group in rows.items()}


def _fair_limit(sizes: Iterable[int], total: int) -> int:
    """Return a row limit per group, so that all groups together have at most `total` rows.

    Rows that the small groups do not need raise the limit of the larger groups.
    """
    ascending = sorted(sizes)
    for position, size in enumerate(ascending):
        limit = total // (len(ascending) - position)  # of this group and of all larger ones
        if size > limit:
            return limit
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

    Its number is the sum of the groups' `values`, or their `of_all`. Values of None are ignored. `labels`
    follow the group's label.
    """
    known_values = [value for value in values if value is not None]
    return filled(family, [((_OTHERS, *labels), of_all(known_values))] if known_values else ())


def group_gauge(
    name: str,
    meaning: str,
    groups: Mapping[str, T],
    selection: SeriesSelection,
    number_of: Callable[[T], float | None],
) -> GaugeMetricFamily:
    """Return a gauge of each group's number, and of the sum for the groups without their own series.

    A group whose number is None has no series.
    """
    numbers = ((group_id, number_of(group)) for group_id, group in selection.own(groups))
    series = (((group_id,), number) for group_id, number in numbers if number is not None)
    family = filled(GaugeMetricFamily(name, meaning, labels=("consumergroup",)), series)
    return add_others(family, map(number_of, selection.rest(groups)))


# From an assignment without moves, up to members that need the default max.poll.interval.ms (300 s).
DURATION_BUCKETS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


EXPORTER = "kafka_consumergroup"
OWN = "group_coordinator"

# The labels of a group's topic, partition or member.
_TOPIC_LABELS = ("consumergroup", "topic")
_PARTITION_LABELS = (*_TOPIC_LABELS, "partition")
_MEMBER_LABELS = ("consumergroup", "member_id", "client_id", "client_host")


@dataclass(frozen=True, slots=True)
class GroupLags:
    """The lags of one group by partition, with the owners, the harmful lags and the members."""

    lags: Mapping[Partition, PartitionLag]
    ownership: Ownership
    harmful_lags: HarmfulLags
    members: Collection[MemberSnapshot] = ()


# By the name of a metric, its description and the partitions that it counts.
_HARMFUL_LAGS: dict[str, tuple[str, Callable[[HarmfulLags], Collection[Partition]]]] = {
    "stuck_partitions": (
        "Partitions whose committed offset stays while records arrive and their owner keeps its session.",
        lambda harmful: harmful.stuck,
    ),
    "partitions_falling_behind": (
        "Partitions whose lag rises although the group commits.",
        lambda harmful: harmful.falling_behind,
    ),
    "partitions_without_owner": (
        "Partitions with records that wait and no member that holds them.",
        lambda harmful: harmful.without_owner,
    ),
}


@dataclass(slots=True)
class LagTotals:
    """The sums of the lags of several groups."""

    records: int = 0
    ms: int | None = None  # greatest lag in time; None if none is known
    harmful_lags: Counter[str] = field(default_factory=Counter)

    def add(self, of_group: GroupLags) -> None:
        """Add a group."""
        for lag in of_group.lags.values():
            self.records += lag.records or 0
            if lag.ms is not None:
                self.ms = max(lag.ms, self.ms or 0)
        for name, (_, partitions_of) in _HARMFUL_LAGS.items():
            self.harmful_lags[name] += len(partitions_of(of_group.harmful_lags))


def lag_gauges(
    groups: Mapping[str, GroupLags],
    others: LagTotals | None = None,
    *,
    with_members: bool,
    rows_max: int = SeriesBounds().rows,
) -> Iterator[Metric]:
    """Yield the gauges of groups with committed offsets, and the total of `others`.

    At most `rows_max` partitions, and the topics of these, have series. Each group's partitions are selected
    in the order in which it first committed them.
    """
    shown_partitions = first_rows({g: list(groups[g].lags) for g in sorted(groups)}, rows_max)
    topics = {g: sorted({topic for topic, _ in partitions}) for g, partitions in shown_partitions.items()}
    offsets = {g: {p: lag.offset for p, lag in group.lags.items()} for g, group in groups.items()}
    records = {
        g: {p: lag.records for p, lag in group.lags.items() if lag.records is not None}
        for g, group in groups.items()
    }
    yield from _by_partition("current_offset", "committed offset", offsets, shown_partitions)
    each, sums = _by_partition(
        "lag", "records between the committed offset and the end", records, shown_partitions
    )
    seconds = _lag_seconds(groups, topics)
    harmful_lags = {name: _harmful_lag_gauge(name, groups, topics) for name in _HARMFUL_LAGS}
    if others is not None:
        # Their label `topic` is empty, too.
        add_others(sums, [others.records], "")
        add_others(seconds, [None if others.ms is None else others.ms / 1000], "")
        for name, gauge in harmful_lags.items():
            add_others(gauge, [others.harmful_lags[name]], "")
    yield from (each, sums, seconds, *harmful_lags.values())
    committed = sum(len(of_group.lags) for of_group in groups.values())
    yield without_series(
        "partitions", "Committed offsets", committed - sum(map(len, shown_partitions.values()))
    )
    if with_members:
        yield from _member_gauges(groups, rows_max)


def _by_partition(
    name: str,
    meaning: str,
    values: Mapping[str, Mapping[Partition, int]],
    shown: Mapping[str, Sequence[Partition]],
) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    """Return two gauges: each shown partition, and the sum of all partitions by topic."""
    each = GaugeMetricFamily(f"{EXPORTER}_{name}", f"Per partition: {meaning}.", labels=_PARTITION_LABELS)
    total = GaugeMetricFamily(
        f"{EXPORTER}_{name}_sum", f"Per topic, the sum: {meaning}.", labels=_TOPIC_LABELS
    )
    for group_id, partitions in shown.items():
        by_partition = values[group_id]
        sums: Counter[str] = Counter()
        for (topic, _), value in by_partition.items():
            sums[topic] += value
        shown_topics = sorted(sums.keys() & {topic for topic, _ in partitions})
        shown_partitions = sorted(by_partition.keys() & {*partitions})
        filled(each, (((group_id, t, str(n)), by_partition[t, n]) for t, n in shown_partitions))
        filled(total, (((group_id, topic), sums[topic]) for topic in shown_topics))
    return each, total


def _lag_seconds(groups: Mapping[str, GroupLags], topics: Mapping[str, Collection[str]]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(
        f"{OWN}_lag_seconds", "The greatest lag in time of a topic's partitions.", labels=_TOPIC_LABELS
    )
    for group_id, shown in topics.items():
        greatest_ms: dict[str, int] = {}  # by topic
        for (topic, _), lag in groups[group_id].lags.items():
            if lag.ms is not None:
                greatest_ms[topic] = max(lag.ms, greatest_ms.get(topic, 0))
        with_lag = sorted(greatest_ms.keys() & set(shown))
        filled(gauge, (((group_id, topic), greatest_ms[topic] / 1000) for topic in with_lag))
    return gauge


def _harmful_lag_gauge(
    name: str, groups: Mapping[str, GroupLags], topics: Mapping[str, Collection[str]]
) -> GaugeMetricFamily:
    """Return the gauge of one kind of harmful lag: its number of partitions by topic."""
    description, partitions_of = _HARMFUL_LAGS[name]
    gauge = GaugeMetricFamily(f"{OWN}_{name}", description, labels=_TOPIC_LABELS)
    for group_id, shown in topics.items():
        counts = Counter(topic for topic, _ in partitions_of(groups[group_id].harmful_lags))
        filled(gauge, (((group_id, topic), counts[topic]) for topic in shown))
    return gauge


def _member_gauges(groups: Mapping[str, GroupLags], rows_max: int) -> Iterator[Metric]:
    records = GaugeMetricFamily(
        f"{OWN}_member_lag", "Per member: records that wait at its partitions.", labels=_MEMBER_LABELS
    )
    seconds = GaugeMetricFamily(
        f"{OWN}_member_lag_seconds", "Per member: the greatest lag in time.", labels=_MEMBER_LABELS
    )
    shown_members = first_rows(
        {g: [m for m in groups[g].members if fits(*_member_labels(m))] for g in sorted(groups)}, rows_max
    )
    for group_id, members in shown_members.items():
        of_group = groups[group_id]
        holders = of_group.ownership.holders
        by_member = grouped((holders.get(partition, ""), lag) for partition, lag in of_group.lags.items())
        for member in members:
            lags = by_member.get(member.member_id, [])
            records.add_metric((group_id, *_member_labels(member)), sum(lag.records or 0 for lag in lags))
            known_ms = [lag.ms for lag in lags if lag.ms is not None]
            if known_ms:
                seconds.add_metric((group_id, *_member_labels(member)), max(known_ms) / 1000)
    yield from (records, seconds)
    all_members = sum(len(of_group.members) for of_group in groups.values())
    yield without_series("members", "Members", all_members - sum(map(len, shown_members.values())))


def _member_labels(member: MemberSnapshot) -> tuple[str, str, str]:
    return member.member_id, member.client_id, member.client_host
