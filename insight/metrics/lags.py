"""The metrics of lags: those of kafka_exporter by partition, and the coordinator's own by topic.

A group has a series of each of its topics, so what hurts has as many series as `kafka_consumergroup_lag_sum`.
Members come and go under new names, so their series are made on request only.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from insight.lag.definitions import PartitionLag, Troubles
from insight.lag.log import Partition
from insight.lag.owners import MemberRow, Ownership

EXPORTER = "kafka_consumergroup"
OWN = "group_coordinator"

_OF_TOPIC = ("consumergroup", "topic")
_OF_PARTITION = (*_OF_TOPIC, "partition")
_OF_MEMBER = ("consumergroup", "member_id", "client_id", "client_host")


@dataclass(frozen=True, slots=True)
class GroupLags:
    """The lags of one group by partition, who holds what, what hurts, and the members."""

    lags: Mapping[Partition, PartitionLag]
    ownership: Ownership
    troubles: Troubles
    members: Collection[MemberRow] = ()

    @property
    def topics(self) -> list[str]:
        """The topics with a committed offset, sorted."""
        return sorted({topic for topic, _ in self.lags})


_TROUBLES: dict[str, tuple[str, Callable[[Troubles], Collection[Partition]]]] = {
    "stuck_partitions": (
        "Partitions whose committed offset stands while records come and their owner keeps its session.",
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


def lag_gauges(groups: Mapping[str, GroupLags], *, with_members: bool) -> Iterator[Metric]:
    """Yield the gauges of all groups with committed offsets."""
    offsets = {g: {p: lag.offset for p, lag in of.lags.items()} for g, of in groups.items()}
    records = {
        g: {p: lag.records for p, lag in of.lags.items() if lag.records is not None}
        for g, of in groups.items()
    }
    yield from _by_partition("current_offset", "committed offset", offsets)
    yield from _by_partition("lag", "records between the committed offset and the end", records)
    yield _lag_seconds(groups)
    for name, (meaning, of_trouble) in _TROUBLES.items():
        gauge = GaugeMetricFamily(f"{OWN}_{name}", meaning, labels=_OF_TOPIC)
        for group_id, of_group in sorted(groups.items()):
            counts = Counter(topic for topic, _ in of_trouble(of_group.troubles))
            for topic in of_group.topics:
                gauge.add_metric((group_id, topic), counts[topic])
        yield gauge
    if with_members:
        yield from _of_members(groups)


def _by_partition(
    name: str, meaning: str, values: Mapping[str, Mapping[Partition, int]]
) -> tuple[Metric, Metric]:
    """Yield a gauge of every partition, and its sum by topic."""
    each = GaugeMetricFamily(f"{EXPORTER}_{name}", f"Per partition: {meaning}.", labels=_OF_PARTITION)
    total = GaugeMetricFamily(f"{EXPORTER}_{name}_sum", f"Per topic, the sum: {meaning}.", labels=_OF_TOPIC)
    for group_id, by_partition in sorted(values.items()):
        sums: Counter[str] = Counter()
        for (topic, partition), value in sorted(by_partition.items()):
            each.add_metric((group_id, topic, str(partition)), value)
            sums[topic] += value
        for topic, value in sums.items():
            total.add_metric((group_id, topic), value)
    return each, total


def _lag_seconds(groups: Mapping[str, GroupLags]) -> Metric:
    gauge = GaugeMetricFamily(
        f"{OWN}_lag_seconds", "The greatest lag in time of a topic's partitions.", labels=_OF_TOPIC
    )
    for group_id, of_group in sorted(groups.items()):
        greatest: dict[str, int] = {}
        for (topic, _), lag in of_group.lags.items():
            if lag.ms is not None:
                greatest[topic] = max(lag.ms, greatest.get(topic, 0))
        for topic, ms in sorted(greatest.items()):
            gauge.add_metric((group_id, topic), ms / 1000)
    return gauge


def _of_members(groups: Mapping[str, GroupLags]) -> tuple[Metric, Metric]:
    records = GaugeMetricFamily(
        f"{OWN}_member_lag", "Per member: records that wait at its partitions.", labels=_OF_MEMBER
    )
    seconds = GaugeMetricFamily(
        f"{OWN}_member_lag_seconds", "Per member: the greatest lag in time.", labels=_OF_MEMBER
    )
    for group_id, of_group in sorted(groups.items()):
        by_member: dict[str, list[PartitionLag]] = {}
        for where, lag in of_group.lags.items():
            by_member.setdefault(of_group.ownership.holders.get(where, ""), []).append(lag)
        for member in of_group.members:
            labels = (group_id, member.member_id, member.client_id, member.client_host)
            lags = by_member.get(member.member_id, [])
            records.add_metric(labels, sum(lag.records or 0 for lag in lags))
            known = [lag.ms for lag in lags if lag.ms is not None]
            if known:
                seconds.add_metric(labels, max(known) / 1000)
    return records, seconds
