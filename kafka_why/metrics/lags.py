"""The metrics of lags: those of kafka_exporter by partition, and the coordinator's own by topic.

A group has one series per topic, so the metrics of harmful lags have as many series as
`kafka_consumergroup_lag_sum`. Members change their ids often, so their series are optional.
`kafka_why.metrics.series` limits the number of both.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import GaugeMetricFamily, Metric

from kafka_why.contract.kafka.snapshot import MemberSnapshot
from kafka_why.lag.definitions import Ownership, Partition, PartitionLag, Troubles
from kafka_why.metrics.series import SeriesBounds, add_others, filled, first_rows, fits, without_series

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
        yield from _of_members(groups, rows_max)


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


def _of_members(groups: Mapping[str, GroupLags], rows_max: int) -> Iterator[Metric]:
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
