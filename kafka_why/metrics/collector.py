"""Prometheus metric families from numbers, under the names that Kafka's operators know.

Kafka's own metrics are named as the JMX exporter writes them in lower case: `kafka.coordinator.group:type=
GroupMetadataManager,name=NumGroups` is kafka_coordinator_group_groupmetadatamanager_numgroups. The JMX
exporter leaves Kafka's counts untyped, and so does this module; PromQL computes the rates. Names and labels
that begin with kafka_consumergroup_ are those of danielqsj/kafka_exporter. Names that begin with rocketmq_
are those of RocketMQ 5's broker. Metrics that none of them has begin with group_coordinator_.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.kafka.states import DEAD, GroupState
from kafka_why.contract.kafka.transactions import MarkerOutcome
from kafka_why.contract.rocketmq.snapshot import GroupSnapshot as RocketMqGroup
from kafka_why.contract.service.status import ServicePhase, ServiceStatus
from kafka_why.contract.service.transactions import TransactionsSummary
from kafka_why.metrics.consumer_groups import CONSUMER, consumer_group_gauges, epoch_counts
from kafka_why.metrics.lags import EXPORTER, lag_gauges
from kafka_why.metrics.lags import OWN as OWN
from kafka_why.metrics.metrics_state import MetricsState, Numbers
from kafka_why.metrics.rocketmq import rocketmq_gauges
from kafka_why.metrics.series import Selection, add_others, without_series

MANAGER = "kafka_coordinator_group_groupmetadatamanager"
COORDINATOR = "kafka_server_group_coordinator_metrics"

DECIDED = (MarkerOutcome.COMMIT, MarkerOutcome.ABORT, MarkerOutcome.DROPPED)


class MetricsStateCollector(Collector):
    """Metrics from the contents of the topics. `with_members` makes series of single members, too. An
    observer's topics have no responses, and so not how many offsets were committed, expired and deleted.
    """

    def __init__(
        self, metrics_state: MetricsState, *, with_members: bool = False, is_observed: bool = False
    ) -> None:
        self._metrics_state = metrics_state
        self._with_members = with_members
        self._is_observed = is_observed

    def collect(self) -> Iterator[Metric]:
        numbers = self._metrics_state.numbers()
        if not self._is_observed:
            yield from _offset_counts(numbers)
        yield _kafkas_count("group_completed_rebalance", "Completed rebalances", numbers.classic_rebalances)
        yield from _own_counts(numbers)
        yield from epoch_counts(numbers.of_epochs)
        if numbers.groups is None or numbers.rocketmq_groups is None or numbers.lags is None:
            return
        yield from _group_gauges([group for group in numbers.groups.values() if not group.consumer])
        selection = numbers.selection
        yield from consumer_group_gauges(numbers.groups, selection)
        yield _members(numbers.groups, selection)
        yield from rocketmq_gauges(numbers.rocketmq_groups, selection)
        yield from _by_protocol(numbers.groups, numbers.rocketmq_groups)
        yield without_series("groups", "Groups", selection.others)
        yield GaugeMetricFamily(f"{MANAGER}_numoffsets", "Committed offsets.", numbers.offsets)
        yield from lag_gauges(
            numbers.lags,
            numbers.other_lags,
            with_members=self._with_members,
            rows_max=self._metrics_state.bounds.rows,
        )


def _offset_counts(numbers: Numbers) -> Iterator[Metric]:
    yield _kafkas_count("offset_commit", "Offsets committed", numbers.offsets_committed)
    yield _kafkas_count("offset_expiration", "Offsets expired", numbers.offsets_expired)
    yield _kafkas_count("offset_deletion", "Offsets deleted by request", numbers.offsets_deleted)


def _kafkas_count(name: str, meaning: str, value: int) -> Metric:
    return UnknownMetricFamily(f"{COORDINATOR}_{name}_count", f"{meaning}.", value)


def _own_counts(numbers: Numbers) -> Iterator[Metric]:
    for name, meaning, labels, counts in (
        ("history_entries", "Entries of the events topic.", ("protocol", "type"), numbers.entries),
        ("dead_letters", "Records of the dead-letter topic.", ("reason",), _by_one(numbers.dead_letters)),
        ("rebalances", "Completed rebalances of a group.", ("consumergroup",), _by_one(numbers.rebalances)),
        (
            "responses",
            "Responses by type of request and error code.",
            ("type", "error_code"),
            numbers.answers,
        ),
        ("rocketmq_pushes", "Messages pushed to RocketMQ's clients.", ("type",), _by_one(numbers.pushes)),
    ):
        family = CounterMetricFamily(f"{OWN}_{name}", meaning, labels=labels)
        for values, count in sorted(counts.items()):
            family.add_metric(values, count)
        yield family
    for name, meaning, count in (
        ("history_duplicates", "History entries that were read more than once.", numbers.duplicates),
        (
            "rocketmq_expired_connections",
            "Consumers' connections that a scan removed because they were silent.",
            numbers.expired_connections,
        ),
    ):
        yield CounterMetricFamily(f"{OWN}_{name}", meaning, count)


def _by_one(counts: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(value,): count for value, count in counts.items()}


def _group_gauges(groups: Sequence[GroupSnapshot]) -> Iterator[Metric]:
    states = Counter(group.state for group in groups)
    yield GaugeMetricFamily(f"{MANAGER}_numgroups", "Classic groups.", len(groups))
    for state in (*GroupState, DEAD):
        name = f"{MANAGER}_numgroups{state.lower()}"
        yield GaugeMetricFamily(name, f"Groups in state {state}.", states[state])


def _members(groups: Mapping[str, GroupSnapshot], selection: Selection) -> Metric:
    members = GaugeMetricFamily(f"{EXPORTER}_members", "Members of a group.", labels=("consumergroup",))
    for group_id, group in selection.own(groups):
        if group.has_members:
            members.add_metric((group_id,), len(group.members))
    add_others(members, (len(group.members) for group in selection.rest(groups) if group.has_members))
    return members


def _by_protocol(
    groups: Mapping[str, GroupSnapshot], rocketmq: Mapping[str, RocketMqGroup]
) -> Iterator[Metric]:
    counts = GaugeMetricFamily(f"{COORDINATOR}_group_count", "Groups by protocol.", labels=("protocol",))
    types = Counter(group.group_type for group in groups.values())
    for type_ in ("classic", CONSUMER, *sorted(types.keys() - {"classic", CONSUMER})):
        counts.add_metric((type_,), types[type_])
    counts.add_metric(("rocketmq",), len(rocketmq))
    yield counts
    reasons = [*(group.quarantined for group in groups.values()), *(g.quarantined for g in rocketmq.values())]
    quarantined = sum(reason is not None for reason in reasons)
    yield GaugeMetricFamily(f"{OWN}_quarantined_groups", "Groups whose deadlines are stopped.", quarantined)


class CheapCollector(Collector):
    """A collector whose families cost nothing to make. They are known by name, so a scrape that names some
    (`?name[]=`) makes no metrics of groups.
    """

    def describe(self) -> Iterable[Metric]:
        """See `Collector`."""
        return self.collect()


class BacklogCollector(CheapCollector):
    """The backlog of the query."""

    def __init__(self, metrics_state: MetricsState) -> None:
        self._metrics_state = metrics_state

    def collect(self) -> Iterator[Metric]:
        backlog = GaugeMetricFamily(
            f"{OWN}_backlog_records", "Records of the query's source that are not yet handled."
        )
        records = self._metrics_state.backlog_records()
        if records is not None:
            backlog.add_metric((), records)
        yield backlog


class TransactionsCollector(CheapCollector):
    """Transactions whose outcome the groups do not have yet, as their follower saw them last."""

    def __init__(self, summary: Callable[[], TransactionsSummary]) -> None:
        self._summary = summary

    def collect(self) -> Iterator[Metric]:
        summary = self._summary()
        yield GaugeMetricFamily(
            f"{OWN}_transactions_pending",
            "TxnOffsetCommits with offsets that are pending in a transaction.",
            summary.pending,
        )
        yield GaugeMetricFamily(
            f"{OWN}_transactions_oldest_age_seconds",
            "Age of the oldest pending one, 0 if there is none.",
            summary.oldest_age_ms / 1000,
        )
        yield GaugeMetricFamily(
            f"{OWN}_transactions_follower_lag",
            "Offsets of the topic of markers that are not read yet, while something is pending.",
            summary.lag,
        )
        decided = CounterMetricFamily(
            f"{OWN}_transactions_decided",
            "TxnOffsetCommits whose offsets are pending no longer, by outcome.",
            labels=("outcome",),
        )
        counts = dict(summary.decided)
        for outcome in DECIDED:
            decided.add_metric((outcome.value,), counts.get(outcome.value, 0))
        yield decided


class ServiceCollector(CheapCollector):
    """The service's state: its phase, and the ages in seconds of the attested time and of these metrics."""

    def __init__(
        self,
        status: Callable[[], ServiceStatus],
        ticker_age_s: Callable[[], float],
        read_age_s: Callable[[], float],
        spark_restarts: Callable[[], int],
    ) -> None:
        self._status = status
        self._spark_restarts = spark_restarts
        self._ticker_age_s = ticker_age_s
        self._read_age_s = read_age_s

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        phases = GaugeMetricFamily(f"{OWN}_phase", "1 for the service's current phase.", labels=("phase",))
        for phase in ServicePhase:
            phases.add_metric((phase.value,), int(phase is status.phase))
        yield phases
        yield GaugeMetricFamily(
            f"{OWN}_alarm", "1 while an operator must act.", int(status.alarm is not None)
        )
        yield GaugeMetricFamily(f"{OWN}_last_batch_id", "Id of the last committed batch.", status.batch_id)
        yield CounterMetricFamily(
            f"{OWN}_spark_restarts", "Starts of Spark after its JVM had ended.", self._spark_restarts()
        )
        yield GaugeMetricFamily(
            f"{OWN}_ticker_age_seconds", "Seconds since time was last attested.", self._ticker_age_s()
        )
        yield GaugeMetricFamily(
            f"{OWN}_topics_read_age_seconds", "Seconds since these topics were read.", self._read_age_s()
        )
