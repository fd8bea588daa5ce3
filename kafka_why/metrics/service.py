"""The metrics of one coordinator, fed from the topics and the query and served over HTTP, and the log of its
rebalances. A thread follows the output topics.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import structlog
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.lag.lag_poller import LagPoller
from kafka_why.lifetimes import Startable
from kafka_why.metrics.batch_progress import BatchProgress
from kafka_why.metrics.collector import MetricsStateCollector
from kafka_why.metrics.http import HealthCheck, HttpPort
from kafka_why.metrics.metrics_state import MetricsState
from kafka_why.metrics.process import ProcessCollector, ServiceReadings, process_metrics
from kafka_why.metrics.series import OWN, SeriesBounds
from kafka_why.service_state import BatchesState, ServiceState, durations
from kafka_why.topic_reader import Record, TopicReader, TopicsFollower, reader_and_admin

_POLL_MS = 500
log = structlog.get_logger()


class MetricsFollower(TopicsFollower):
    """A thread that feeds `metrics_state` until stopped.

    It reads all groups and offsets, and new records of other topics. It calls `on_entry` with every new
    history entry. After an outage of the broker, it reads the missed records.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        metrics_state: MetricsState,
        on_entry: Callable[[HistoryEntry], None],
    ) -> None:
        self._metrics_state = metrics_state
        self._on_entry = on_entry
        super().__init__("metrics-follower", "reading for the metrics", client_config, layout)
        self._read_at_s = float("nan")
        self._lag_poller = LagPoller(metrics_state.lags)

    def start(self) -> None:
        """Start to read."""
        self._read_at_s = time.monotonic()
        super().start()

    def _connect_and_follow(self) -> None:
        # No scraper needs fresher numbers.
        with reader_and_admin(self._client_config, self._layout, in_bulk=True) as (reader, admin):
            self._follow(reader, admin, self._assign(reader))

    def _assign(self, reader: TopicReader) -> dict[TopicPartition, int]:
        """Assign the topics to the reader. Return the ends of the compacted topics."""
        layout = self._layout
        tables = reader.partitions_of(layout.groups_topic, layout.offsets_topic)
        reader.start(
            beginning=tables,
            end=reader.partitions_of(layout.events_topic, layout.responses_topic, layout.dead_letters_topic),
        )
        return reader.ends(tables)

    def _follow(
        self, reader: TopicReader, admin: KafkaAdminClient, unreached_ends: dict[TopicPartition, int]
    ) -> None:
        while not self._stopped.is_set():
            try:
                for record in reader.poll(_POLL_MS):
                    self._apply(record)
                # Metrics are complete once the compacted topics are read to the ends they had at the start.
                if unreached_ends and reader.has_read(unreached_ends):
                    unreached_ends = {}
                if not unreached_ends:
                    self._metrics_state.mark_complete()
                    self._lag_poller.poll(admin)
            except KafkaError as error:
                self._retry_later(error)
            else:
                self._worked()

    def _apply(self, record: Record) -> None:
        try:
            entry = self._metrics_state.apply(record.topic, record.key, record.value, record.headers)
        except UNREADABLE as error:
            log.warning("a record cannot be read", topic=record.topic, error=str(error))
        else:
            if entry is not None:
                self._on_entry(entry)


BATCH_BUCKETS_S = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60)
REBALANCE_BUCKETS_S = (0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 45, 60, 120, 300, 600)


class BatchMetrics:
    """Metrics of the query's batches."""

    def __init__(self, registry: CollectorRegistry, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self._total_dropped = 0
        self._last_duration_s = float("nan")
        self._watermark_s: float | None = None  # None before the first batch with a watermark
        self._last_batch_at_s: float | None = None  # None before the first batch
        self._durations = Histogram(
            f"{OWN}_batch_duration_seconds",
            "From the beginning of a batch to its commit.",
            registry=registry,
            buckets=BATCH_BUCKETS_S,
        )
        self._rows_counter = Counter(
            f"{OWN}_batch_input_rows", "Records read, including clock records.", registry=registry
        )
        self._dropped_counter = Counter(
            f"{OWN}_rows_dropped_by_watermark", "Requests that Spark dropped as late.", registry=registry
        )
        for name, description, read in (
            (
                "event_time_lag_seconds",
                "Seconds that the watermark is behind the clock.",
                self._event_time_lag_s,
            ),
            (
                "last_batch_duration_seconds",
                "Duration of the last committed batch.",
                lambda: self._last_duration_s,
            ),
            ("last_batch_age_seconds", "Seconds since a batch was last committed.", self._batch_age_s),
        ):
            Gauge(f"{OWN}_{name}", description, registry=registry).set_function(read)

    def observe(self, batch: BatchProgress) -> None:
        """Count one batch."""
        self._durations.observe(batch.total_ms / 1000)
        self._last_duration_s = batch.total_ms / 1000
        self._total_dropped += batch.rows_dropped
        self._last_batch_at_s = self._wall_s()
        self._rows_counter.inc(batch.num_input_rows)
        self._dropped_counter.inc(batch.rows_dropped)
        if batch.watermark_ms:
            self._watermark_s = batch.watermark_ms / 1000

    def state(self) -> BatchesState:
        """Return the figures of all batches since the start of this process."""
        (family,) = self._durations.collect()
        bucket_counts = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
        (sum_s,) = (sample.value for sample in family.samples if sample.name.endswith("_sum"))
        return BatchesState(
            last_ms=_to_ms(self._last_duration_s),
            age_ms=_to_ms(self._batch_age_s()),
            durations=durations(BATCH_BUCKETS_S, bucket_counts, sum_s),
            time_lag_ms=_to_ms(self._event_time_lag_s()),
            rows_dropped=self._total_dropped,
        )

    def _event_time_lag_s(self) -> float:
        return float("nan") if self._watermark_s is None else self._wall_s() - self._watermark_s

    def _batch_age_s(self) -> float:
        return float("nan") if self._last_batch_at_s is None else self._wall_s() - self._last_batch_at_s


class RebalanceMetrics:
    """The durations of rebalances, by the log's timestamps."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._began_ms: dict[str, int] = {}
        self._durations = Histogram(
            f"{OWN}_rebalance_duration_seconds",
            "From the beginning of a rebalance to the assignment, in the log's time.",
            registry=registry,
            buckets=REBALANCE_BUCKETS_S,
        )

    def observe(self, event: HistoryEntry) -> None:
        """Count one history entry. A rebalance that restarts before it ends counts as one."""
        match event.type:
            # An observed classic group's rebalance has no known beginning.
            case EntryType.PREPARING_REBALANCE if not event.observed:
                self._began_ms.setdefault(event.group_id, event.at_ms)
            case EntryType.STABLE if event.group_id in self._began_ms:
                self._durations.observe((event.at_ms - self._began_ms.pop(event.group_id)) / 1000)
            case EntryType.EMPTY | EntryType.GROUP_DELETED | EntryType.GROUP_CONVERTED:
                self._began_ms.pop(event.group_id, None)


def service_state(
    readings: ServiceReadings, batches: BatchesState, backlog_records: int | None
) -> ServiceState:
    """Return the state of the service. `backlog_records` is None if unknown."""
    return ServiceState(
        status=readings.status(),
        spark_restarts=readings.spark_restarts(),
        ticker_age_ms=_to_ms(readings.ticker_age_s()),
        backlog_records=backlog_records,
        batches=batches,
        replica=None if readings.replica is None else readings.replica(),
        transactions=None if readings.transactions is None else readings.transactions(),
        gateway=None if readings.gateway is None else readings.gateway(),
    )


def _to_ms(seconds: float) -> int | None:
    return None if math.isnan(seconds) else max(round(seconds * 1000), 0)


class Metrics(Startable):
    """The server of one coordinator's metrics, until stopped.

    `log_rebalances` logs Kafka's sentences, `with_members` adds series of single members, and `series` limits
    the series of groups. `collectors` and `checks` (by path) are served, too: see `kafka_why.metrics.http`.

    `start` opens the port. Call it before the coordinator starts, because that may take a minute on a
    cluster, and scrapes and checks must be answered meanwhile. It raises WebUnavailable if the port cannot be
    bound. Port 0 means any free port. `follow` reads the topics, which exist once the coordinator has
    started. `observe_batch` may be called at any time.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        host: str,
        port: int,
        readings: ServiceReadings,
        *,
        log_rebalances: bool,
        with_members: bool = False,
        series: SeriesBounds | None = None,
        collectors: Sequence[Collector] = (),
        checks: Mapping[str, HealthCheck] | None = None,
    ) -> None:
        self._readings = readings
        self._host = host
        self._port = port
        self._log_rebalances = log_rebalances
        self._metrics_state = MetricsState(layout, series)
        self._follower = MetricsFollower(client_config, layout, self._metrics_state, self._observe_entry)
        self._registry = CollectorRegistry()
        of_topics = MetricsStateCollector(
            self._metrics_state, with_members=with_members, is_observed=layout.is_observed
        )
        for collector in (of_topics, ProcessCollector(self._process_metrics), *collectors):
            self._registry.register(collector)
        self._checks = checks
        self._http: HttpPort | None = None
        self._is_following = False
        self._batches = BatchMetrics(self._registry)
        self._rebalances = RebalanceMetrics(self._registry)

    @property
    def url(self) -> str:
        """Return the URL to scrape. Call it after `start`."""
        assert self._http is not None
        return self._http.url

    def start(self) -> None:
        self._http = HttpPort(self._host, self._port, self._registry, self._checks, self._encoded_state)

    def follow(self) -> None:
        """Start to read the groups, their offsets, and new history entries."""
        self._follower.start()
        self._is_following = True

    def stop(self) -> None:
        if self._http is not None:
            self._http.close()
        if self._is_following:
            self._follower.stop()

    def observe_batch(self, batch: BatchProgress) -> None:
        """Count one committed batch."""
        self._metrics_state.observe_batch(batch)
        self._batches.observe(batch)

    def _process_metrics(self) -> Iterator[Metric]:
        backlog_records = self._metrics_state.backlog_records()
        return process_metrics(self._readings, self._follower.read_age_s(), backlog_records)

    def _encoded_state(self) -> bytes:
        backlog_records = self._metrics_state.backlog_records()
        return msgspec.json.encode(service_state(self._readings, self._batches.state(), backlog_records))

    def _observe_entry(self, event: HistoryEntry) -> None:
        self._rebalances.observe(event)
        if self._log_rebalances:
            log_sentence(event)


# The sentences by which Kafka's operators follow a rebalance, as structured log lines. Source of the wording:
# GroupMetadataManager of Apache Kafka. The number of members is omitted if the entry was shortened.


def log_sentence(event: HistoryEntry) -> None:
    """Log Kafka's sentence for the entry, if any."""
    text = kafka_sentence(event)
    if text is not None:
        log.info(text, **_fields(event))


def kafka_sentence(event: HistoryEntry) -> str | None:
    """Return Kafka's log sentence for the entry, or None if Kafka logs nothing about it."""
    group, generation = event.group_id, event.generation
    match event.type:
        case EntryType.PREPARING_REBALANCE:
            return (
                f"Preparing to rebalance group {group} in state {event.to_state} "
                f"with old generation {generation} (reason: {event.reason})"
            )
        case EntryType.COMPLETING_REBALANCE:
            size = f" with {len(event.members)} members" if event.members is not None else ""
            return f"Stabilized group {group} generation {generation}{size}"
        case EntryType.GROUP_EPOCH_BUMPED:
            return f"[GroupId {group}] Bumped group epoch to {generation} (reason: {event.reason})"
        case EntryType.TARGET_ASSIGNMENT_COMPUTED:
            return (
                f"[GroupId {group}] Computed a new target assignment for epoch {generation} "
                f"with '{event.assignor_name}' assignor"
            )
        case EntryType.STABLE if event.group_type == "classic":
            size = f" The group has {len(event.assignments)} members." if event.assignments else ""
            return (
                f"Assignment received from leader {event.leader_id} for group {group} "
                f"for generation {generation}.{size}"
            )
    return None


def _fields(event: HistoryEntry) -> dict[str, object]:
    """Return the fields of a log line about the entry, without those that it does not have."""
    fields = {
        "group": event.group_id,
        "generation": event.generation,
        "reason": event.reason,
        "member": event.member_id,
        "client_reason": event.client_reason,
        "waiting_for": event.waiting_for or None,
        "leader": event.leader_id,
        "rule": event.rule,
        "cause": event.cause,
        "at_ms": event.at_ms,
    }
    return {name: value for name, value in fields.items() if value is not None}
