"""`group-coordinator observe`: watches the groups of the cluster's own coordinator."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from cli.coordinator_parameters import SHARDS, SPARK_CONF, series_options
from kafka_why.cli.output import (
    StopEvent,
    exit_on_signals,
    show,
    show_stderr,
    stop_on_signals,
    watching_threads,
)
from kafka_why.cli.parameters import HOST, WholeNumber, as_object, cluster_options, shared_fields
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import DEFAULT_REQUEST_PARTITIONS, TopicLayout
from kafka_why.contract.service import ServicePhase
from kafka_why.local_files import DEFAULT_DATA_DIR
from kafka_why.metrics.batch_progress import BatchProgress
from kafka_why.metrics.process import ServiceReadings
from kafka_why.metrics.series import SeriesBounds
from kafka_why.metrics.service import Metrics
from streaming.observing.pipeline import COUNTS
from streaming.observing.service import (
    DEFAULT_BATCH_INTERVAL_MS,
    DEFAULT_POLL_INTERVAL_MS,
    DEFAULT_PREFIX,
    DEFAULT_STATE_PARTITIONS,
    FOLDER_BATCH_INTERVAL_MS,
    POLL_INTERVAL_MAX_MS,
    Observer,
    ObserverOptions,
    ObserverSettings,
)

_PROGRESS_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveOptions(ObserverSettings):
    """The options of `observe`, named as click passes them. `ObserverOptions` explains them."""

    client_config: ClientConfig
    data_dir: Path
    prefix: str
    partitions: int
    batch_interval_ms: int | None
    metrics_host: str
    metrics_port: int
    series: SeriesBounds

    def observer_options(self) -> ObserverOptions:
        """Return the options of the observer."""
        return ObserverOptions(
            self.client_config,
            self.data_dir / "observer",
            TopicLayout.observed(self.prefix, self.partitions),
            batch_interval_ms=self._batch_interval_ms(),
            **shared_fields(ObserverSettings, self),
        )

    def _batch_interval_ms(self) -> int:
        if self.batch_interval_ms is not None:
            return self.batch_interval_ms
        return DEFAULT_BATCH_INTERVAL_MS if self.output_dir is None else FOLDER_BATCH_INTERVAL_MS


@click.command()
@cluster_options("The cluster whose groups are observed. The observer's topics are created there.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="Folder of the checkpoint.",
)
@click.option(
    "--prefix",
    default=DEFAULT_PREFIX,
    show_default=True,
    help="Prefix of the names of the observer's topics.",
)
@click.option(
    "--partitions",
    type=WholeNumber(1),
    default=DEFAULT_REQUEST_PARTITIONS,
    show_default=True,
    help="Partitions of each of the observer's topics.",
)
@click.option(
    "--shards", type=SHARDS, help="Shards of each partition of __consumer_offsets. A new checkpoint pins it."
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write Parquet files to this folder, and nothing to the cluster. There are no metrics then.",
)
@click.option(
    "--batch-interval-ms",
    type=WholeNumber(0),
    help=f"Interval of the batches. [default: {DEFAULT_BATCH_INTERVAL_MS}, with --output-dir "
    f"{FOLDER_BATCH_INTERVAL_MS}]",
)
@click.option(
    "--poll-interval-ms",
    type=WholeNumber(0, POLL_INTERVAL_MAX_MS),
    default=DEFAULT_POLL_INTERVAL_MS,
    show_default=True,
    help="Interval at which brokers are polled for classic groups that are rebalancing. 0: no polls.",
)
@click.option("--replication-factor", type=WholeNumber(1), help="Replicas of new topics; default: up to 3.")
@click.option(
    "--min-insync-replicas", type=WholeNumber(1), help="min.insync.replicas of new topics; default: 2 of 3."
)
@click.option("--metrics-host", type=HOST, default="127.0.0.1", show_default=True)
@click.option(
    "--metrics-port",
    type=WholeNumber(0, 65_535),
    default=0,
    help="Port of the metrics; default: a free one.",
)
@series_options
@click.option(
    "--state-partitions",
    type=WholeNumber(1, 1_000),
    help="Partitions of the state, which tasks process in parallel. A new checkpoint pins it. "
    f"[default: {DEFAULT_STATE_PARTITIONS}]",
)
@SPARK_CONF
@as_object(ObserveOptions, "options")
def observe(options: ObserveOptions) -> None:
    """Watch the groups of the cluster's own coordinator until Ctrl-C, without changing them.

    `why`, `groups list`, `groups describe`, `assign --from-group` and `page` then show these groups, if they
    are given the same --prefix. With --output-dir, only SQL and `why --from-dir` read its files.
    """
    stop = StopEvent()
    exit_on_signals()
    observer = Observer(options.observer_options(), on_failure=stop.set)
    with ExitStack() as stack:
        stack.enter_context(watching_threads(stop.fail))
        metrics = _observer_metrics(options, observer)
        if metrics is not None:
            stack.enter_context(metrics)
        show_stderr(f"starting the observer on {options.client_config}")
        observer.on_batch = _ProgressReporter(observer.on_batch).on_batch
        stack.enter_context(observer)
        if metrics is not None:
            metrics.follow()
        stop_on_signals(stop)
        _wait_until_ready(observer, stop)
        if not stop.is_set():
            to = f"files in {options.output_dir}" if metrics is None else f"topics {options.prefix}-*"
            where = "" if metrics is None else f", metrics {metrics.url}"
            show(f"ready: {to}{where}, data in {options.data_dir}")
        stop.wait()
        observer.failure = observer.failure or stop.failure
        if observer.failure is not None:
            raise click.ClickException(observer.failure)
        show_stderr("stopping")


def _observer_metrics(options: ObserveOptions, observer: Observer) -> Metrics | None:
    """Return the observer's metrics, which count its batches from now on, or None with --output-dir."""
    if options.output_dir is not None:
        # The metrics are read from the observer's topics, and it writes files instead.
        return None
    metrics = Metrics(
        observer.options.client_config,
        observer.options.layout,
        options.metrics_host,
        options.metrics_port,
        ServiceReadings(
            status=lambda: observer.status.current,
            ticker_age_s=lambda: float("nan"),
            spark_restarts=lambda: observer.spark_restarts,
        ),
        log_rebalances=False,
        series=options.series,
    )
    observer.on_batch = metrics.observe_batch
    return metrics


def _wait_until_ready(observer: Observer, stop: threading.Event) -> None:
    """Wait until the observer is ready or `stop` is set. Show each reason why it is not ready yet."""
    last_shown = ""
    while not stop.is_set() and not observer.status.wait_for(ServicePhase.READY, timeout_s=0.2):
        reason = observer.status.current.reason
        if reason != last_shown:
            show_stderr(reason)
            last_shown = reason


class _ProgressReporter:
    """A reporter of how much of a backlog was read, and of records of unknown types."""

    def __init__(self, on_batch: Callable[[BatchProgress], None]) -> None:
        self._on_batch = on_batch
        self._records = self._unknown_records = self._reported_unknown = 0
        self._reported_s = float("-inf")

    def on_batch(self, batch: BatchProgress) -> None:
        """Handle a committed batch, and pass it on."""
        self._on_batch(batch)
        counts = batch.observed_metrics.get(COUNTS, {})
        self._records += counts.get("read", 0)
        self._unknown_records += counts.get("unknown", 0)
        now_s = time.monotonic()
        if now_s - self._reported_s < _PROGRESS_INTERVAL_S:
            return
        if batch.backlog:
            show_stderr(f"{self._records:,} records read, {batch.backlog:,} to read")
            self._reported_s = now_s
        if self._unknown_records != self._reported_unknown:
            show_stderr(f"records of unknown types so far: {self._unknown_records:,}")
            self._reported_unknown, self._reported_s = self._unknown_records, now_s
