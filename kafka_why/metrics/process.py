"""The metrics of the service's process: its phase, its backlog, and the work of its threads and replica."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from kafka_why.contract.kafka.history import MarkerOutcome
from kafka_why.contract.service import (
    PHASES,
    ReplicaState,
    ServicePhase,
    ServiceStatus,
    ShareStateSummary,
    TransactionsSummary,
)
from kafka_why.metrics.series import OWN, filled
from kafka_why.service_state import GatewayState

# The outcomes after which offsets are no longer pending in a transaction.
_DECIDED = (MarkerOutcome.COMMIT, MarkerOutcome.ABORT, MarkerOutcome.DROPPED)


@dataclass(frozen=True, slots=True)
class ServiceReadings:
    """The sources of the service's own metrics, read at each scrape. An observer has only the first three."""

    status: Callable[[], ServiceStatus]
    # Time since the ticker last appended clock records, by which the time of the requests topic advances.
    ticker_age_s: Callable[[], float]
    spark_restarts: Callable[[], int]
    transactions: Callable[[], TransactionsSummary] | None = None
    share_state: Callable[[], ShareStateSummary] | None = None
    replica: Callable[[], ReplicaState] | None = None
    gateway: Callable[[], GatewayState] | None = None


class ProcessCollector(Collector):
    """The collector of cheap metrics.

    Because `describe` lists its families, a scrape of only these (`?name[]=`) does not compute the metrics of
    groups.
    """

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def describe(self) -> Iterable[Metric]:
        """Return the same families: the registry reads only their names."""
        return self._families()


def process_metrics(
    readings: ServiceReadings, read_age_s: float, backlog_records: int | None
) -> Iterator[Metric]:
    """Yield the metrics of the process.

    `read_age_s` is the age of the last read of the topics. `backlog_records` is None if unknown.
    """
    yield filled(
        GaugeMetricFamily(
            f"{OWN}_backlog_records", "Records of the query's source that are not yet handled."
        ),
        () if backlog_records is None else [((), backlog_records)],
    )
    yield from _service_metrics(readings, read_age_s)
    if readings.transactions is not None:
        yield from _transactions_metrics(readings.transactions())
    if readings.share_state is not None:
        yield from _share_state_metrics(readings.share_state())
    if readings.replica is not None:
        yield from _replica_metrics(readings.replica())


def _gauges(*rows: tuple[str, str, float]) -> Iterator[Metric]:
    """Yield gauges without labels. A row has a name, a description and a value."""
    return (GaugeMetricFamily(f"{OWN}_{name}", description, value) for name, description, value in rows)


def _service_metrics(readings: ServiceReadings, read_age_s: float) -> Iterator[Metric]:
    status = readings.status()
    yield filled(
        GaugeMetricFamily(f"{OWN}_phase", "1 for the service's current phase.", labels=("phase",)),
        (((phase.value,), int(phase is status.phase)) for phase in ServicePhase),
    )
    yield from _gauges(
        ("alarm", "1 while an operator must act.", int(status.alarm is not None)),
        ("last_batch_id", "Id of the last committed batch.", status.batch_id),
    )
    yield CounterMetricFamily(
        f"{OWN}_spark_restarts", "Starts of Spark after its JVM had ended.", readings.spark_restarts()
    )
    yield from _gauges(
        ("ticker_age_seconds", "Seconds since time was last attested.", readings.ticker_age_s()),
        (
            "topics_read_age_seconds",
            "Seconds since the metrics last read the coordinator's topics.",
            read_age_s,
        ),
    )


def _transactions_metrics(summary: TransactionsSummary) -> Iterator[Metric]:
    yield from _gauges(
        (
            "transactions_pending",
            "TxnOffsetCommits with offsets that are pending in a transaction.",
            summary.pending,
        ),
        (
            "transactions_oldest_age_seconds",
            "Age of the oldest pending TxnOffsetCommit, 0 if there is none.",
            summary.oldest_age_ms / 1000,
        ),
        (
            "transactions_follower_lag",
            "Records of the topic of markers that are not read yet, while offsets are pending.",
            summary.lag,
        ),
    )
    counts = dict(summary.decided)
    yield filled(
        CounterMetricFamily(
            f"{OWN}_transactions_decided",
            "TxnOffsetCommits whose offsets are no longer pending, by outcome.",
            labels=("outcome",),
        ),
        (((outcome.value,), counts.get(outcome.value, 0)) for outcome in _DECIDED),
    )


def _share_state_metrics(summary: ShareStateSummary) -> Iterator[Metric]:
    """Yield the metrics of share groups' tasks (row SM4)."""
    yield from _gauges(
        ("share_state_tasks", "Tasks for the share coordinators that are open.", summary.tasks),
        (
            "share_state_oldest_age_seconds",
            "Age of the oldest open task, 0 if there is none.",
            summary.oldest_age_ms / 1000,
        ),
    )
    yield filled(
        CounterMetricFamily(
            f"{OWN}_share_state_partitions",
            "Partitions whose outcome was appended, by what was done: their state was initialized, adopted "
            "with a later state epoch, or deleted.",
            labels=("done",),
        ),
        (((done,), getattr(summary, done)) for done in ("initialized", "adopted", "deleted")),
    )
    yield filled(
        CounterMetricFamily(
            f"{OWN}_share_state_failures",
            "Failed attempts for a partition, by error code; lost: no response came.",
            labels=("code",),
        ),
        (((code,), count) for code, count in summary.failures),
    )
    yield SummaryMetricFamily(
        f"{OWN}_share_state_task_duration_seconds",
        "From the request for a task to its outcomes on the requests topic.",
        count_value=summary.reported_tasks,
        sum_value=summary.reported_ms / 1000,
    )


def _replica_metrics(state: ReplicaState) -> Iterator[Metric]:
    """Yield the metrics of the replica. If the replica is off, all are 0."""
    yield filled(
        GaugeMetricFamily(f"{OWN}_replica_phase", "1 for the replica's current phase.", labels=("phase",)),
        (((phase,), int(phase == state.phase)) for phase in PHASES),
    )
    for name, description, count in (
        ("answers", "Early answers appended.", state.answers),
        ("compared", "Early answers compared with the query's.", state.compared),
        ("differences", "Early answers that differed from the query's.", state.differences),
        ("seedings", "Replicas started from the query's state.", state.seedings),
    ):
        yield CounterMetricFamily(f"{OWN}_replica_{name}", description, count)
    yield from _gauges(
        ("replica_lag_records", "Records of the requests topic not yet applied.", state.lag_records),
        (
            "replica_lag_seconds",
            "Age of the last record applied, 0 if it was the newest.",
            state.lag_ms / 1000,
        ),
        ("replica_lead_seconds", "Seconds since the query last committed a batch.", state.lead_s),
        ("replica_lead_bytes", "Size of the early answers that wait for the query's.", state.lead_bytes),
        ("replica_groups", "Groups in the replica's memory.", state.groups),
    )
