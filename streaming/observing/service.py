"""The service behind `observe`. It prepares the topics, starts Spark and keeps its query running."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql.streaming import StreamingQuery

from checkpoints.checkpoint import Checkpoint, new_namespace
from checkpoints.metadata import Identity
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ServicePhase
from kafka_why.lifetimes import Startable
from kafka_why.local_files import ServiceFolder
from kafka_why.metrics.batch_progress import BatchProgress
from streaming.observing import output_folder, pipeline
from streaming.observing.operator import SOURCE, ObservingOperator, check_topics_are_ours, observer_id
from streaming.observing.rebalance_poller import RebalancePoller
from streaming.query.session import CHECKPOINT_FILE_MANAGER, LOOPBACK, Session
from streaming.query.storage import storage_at
from streaming.service.query.supervision import SupervisedQuery, Supervisor
from streaming.service.retention import least_retentions
from streaming.service.status import StatusBoard
from streaming.service.topics import (
    SIGHTINGS_TOPIC,
    FoundTopics,
    TopicsError,
    as_topics_error,
    find_topic,
    prepare,
    wanted_settings,
)

DEFAULT_PREFIX = "group-observer"
DEFAULT_BATCH_INTERVAL_MS = 1_000
# The interval of batches of an observer that writes files. It is long because each batch writes up to four
# files.
FOLDER_BATCH_INTERVAL_MS = 60_000
DEFAULT_POLL_INTERVAL_MS = 1_000
POLL_INTERVAL_MAX_MS = 5_000
# The shards of each partition of `__consumer_offsets`, which has 50 partitions. Each shard with records costs
# a batch 1.4 ms, and the groups of a shard are read and written together.
DEFAULT_SHARDS = 4
# Two tasks read a backlog in parallel. Each costs a batch two passes of a Python worker.
DEFAULT_STATE_PARTITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverSettings:
    """The options of an observer without its cluster, folder and topics. It writes to its topics, or to
    `output_dir`.
    """

    # The number of shards of a partition (`streaming.query.admission`). None: the checkpoint's number, or the
    # default for a new checkpoint. The same holds for `state_partitions`.
    shards: int | None = None
    state_partitions: int | None = None  # the partitions in which Spark keeps the state
    poll_interval_ms: int = DEFAULT_POLL_INTERVAL_MS  # between polls for rebalancing groups; 0: no polls
    replication_factor: int | None = None  # of new topics
    min_insync_replicas: int | None = None  # of new topics
    output_dir: Path | None = None  # for Parquet files
    spark: Mapping[str, str] = field(default_factory=dict)  # further settings of Spark


@dataclass(frozen=True, slots=True)
class ObserverOptions(ObserverSettings):
    """The options of an observer."""

    client_config: ClientConfig
    folder: Path  # the data folder, with the checkpoint
    layout: TopicLayout = field(default_factory=lambda: TopicLayout.observed(DEFAULT_PREFIX, 1))
    batch_interval_ms: int = DEFAULT_BATCH_INTERVAL_MS  # between the beginnings of batches
    ui_host: str = LOOPBACK
    ui_port: int | None = None  # None: no UI


# The pause between two polls for `__consumer_offsets` on a cluster that does not have it yet, because no
# group has committed or joined.
_RETRY_S = 1.0
# A query that is restarted after a failure counts as running after this time, or at its first batch.
_READY_AFTER_S = 10.0
_ANEW = "the observer then reads the topic from its beginning, and the histories of all groups begin anew"


@dataclass(frozen=True, slots=True)
class _PinnedSource:
    """The query's source, `__consumer_offsets` of one cluster, and its operator.

    The checkpoint is pinned to that topic, with these numbers of partitions and shards, because its offsets
    and its state fit no other.
    """

    partitions: int
    shards: int
    operator: ObservingOperator


class ObserversQuery(SupervisedQuery):
    """The query of one observer. It waits for `__consumer_offsets`, and pins the checkpoint to it."""

    source = SOURCE
    service = "observer"
    remedy = (
        "stop the observer, move its folder away, and delete its topics or give another --prefix: "
        f"{_ANEW} (docs/observe.md, 'A damaged checkpoint')"
    )

    def __init__(
        self,
        options: ObserverOptions,
        checkpoint: Checkpoint,
        status: StatusBoard,
        session: Session,
        on_batch: Callable[[BatchProgress], None],
    ) -> None:
        self._options = options
        self._checkpoint = checkpoint
        self._status = status
        self._session = session
        self._on_batch = on_batch
        self._source: _PinnedSource | None = None  # None until the cluster has `__consumer_offsets`
        self._poller: RebalancePoller | None = None  # None until then, or if it is turned off
        self._ready_s = float("inf")  # when the query counts as ready without a batch

    def start(self, stopping: threading.Event) -> StreamingQuery | None:
        """Wait until the cluster has `__consumer_offsets`, then start the query. Return None if `stopping` is
        set meanwhile.
        """
        if self._source is None:
            topics = self._wait_for_source(stopping)
            if topics is None:
                return None
            self._source = self._pin(topics)
            self._start_polling(self._source.partitions)
        source = self._source
        self._checkpoint.check_committed(SOURCE)
        running = pipeline.start(
            self._session.spark,
            self._options.client_config,
            self._checkpoint.spark_uri,
            source.operator,
            partitions=source.partitions,
            shards=source.shards,
            batch_interval_ms=self._options.batch_interval_ms,
            output_dir=self._options.output_dir,
        )
        # On an idle cluster no batch makes the status READY. The first query is ready at once, a restarted
        # one only when it has not failed for a while.
        ready_after_s = 0.0 if self._status.current.phase is ServicePhase.STARTING else _READY_AFTER_S
        self._ready_s = time.monotonic() + ready_after_s
        return running

    def _wait_for_source(self, stopping: threading.Event) -> FoundTopics | None:
        """Wait until the cluster has `__consumer_offsets`, and return its entry. Return None if `stopping` is
        set meanwhile.
        """
        while not stopping.is_set():
            reason = f"no group has joined or committed yet: the cluster has no {SOURCE}"
            try:
                found = find_topic(self._options.client_config, SOURCE)
                if found.ids:
                    return found
            except TopicsError as error:
                reason = str(error)
            if self._status.current.reason != reason:
                self._status.enter(ServicePhase.STARTING, reason)
            stopping.wait(_RETRY_S)
        return None

    def _pin(self, source: FoundTopics) -> _PinnedSource:
        """Pin the checkpoint to this cluster and topic. Raises FolderError if it is pinned to others."""
        options = self._options
        identity = self._checkpoint.pin(
            Identity(
                cluster_id=source.cluster_id,
                requests_topic=SOURCE,
                requests_topic_id=source.ids[SOURCE],
                request_partitions=source.partitions[SOURCE],
                member_id_namespace=new_namespace(),
                shards=DEFAULT_SHARDS,
                state_partitions=DEFAULT_STATE_PARTITIONS,
            ),
            options.shards,
            options.state_partitions,
            to_change=f"Give another --data-dir and another --prefix: {_ANEW}",
        )
        self._session.use_state_partitions(identity.state_partitions)
        observer = observer_id(identity.member_id_namespace)
        operator = ObservingOperator(options.client_config, options.layout, observer)
        return _PinnedSource(identity.request_partitions, identity.shards, operator)

    def _start_polling(self, partitions: int) -> None:
        """Start the poller for rebalancing groups, unless it is turned off."""
        options = self._options
        # With an output folder the observer writes nothing to the cluster, so no sightings either.
        if options.poll_interval_ms and options.output_dir is None:
            self._poller = RebalancePoller(
                options.client_config,
                options.layout.sightings_topic,
                partitions=partitions,
                interval_ms=options.poll_interval_ms,
            )
            self._poller.start()

    def committed(self, batch: BatchProgress) -> None:
        """Pass the offsets that the batch has read to the poller, and the batch to `on_batch`."""
        if self._poller is not None:
            self._poller.set_read_offsets(batch.end_offsets)
        self._on_batch(batch)

    def close(self) -> None:
        """Stop the poller. The supervisor must have stopped before."""
        if self._poller is not None:
            self._poller.stop()

    def watch(self) -> None:
        """Report the status READY when the query has run long enough without a batch."""
        if self._status.current.phase is not ServicePhase.READY and time.monotonic() >= self._ready_s:
            self._status.enter(ServicePhase.READY, "the query runs")


def _prepare_topics(options: ObserverOptions) -> None:
    """Create and check the observer's topics, or claim the folder for its files.

    Raises FolderError. Raises TopicsError, for example if the topics are a coordinator's or another
    observer's.
    """
    if options.output_dir is not None:
        output_folder.claim_folder(options.output_dir, options.folder)
        return
    layout = options.layout
    if find_topic(options.client_config, layout.requests_topic).ids:
        raise TopicsError(
            f"{layout.requests_topic} exists, so the topics with this prefix are a coordinator's: give "
            "another --prefix"
        )
    wanted = wanted_settings(layout)
    ours = (layout.groups_topic, layout.offsets_topic, layout.events_topic, layout.dead_letters_topic)
    prepare(
        options.client_config,
        {topic: wanted[topic] for topic in ours} | {layout.sightings_topic: SIGHTINGS_TOPIC},
        least_retentions(layout),
        options.replication_factor,
        options.min_insync_replicas,
    )
    with as_topics_error(f"{layout.groups_topic} cannot be read"):
        check_topics_are_ours(options.client_config, layout, options.folder)


class Observer(Startable):
    """The observer of this process. `status` shows when it is ready.

    `start` raises FolderError, TopicsError, JarsUnavailable, JavaNotFound or SparkFailed. `on_failure` is
    called in a thread when the query can run no more (`Supervisor`). `failure` is then the reason, and the
    caller has to `stop` the observer. `on_batch` is called in a thread with each committed batch.
    """

    def __init__(
        self,
        options: ObserverOptions,
        on_failure: Callable[[], None] = lambda: None,
        on_batch: Callable[[BatchProgress], None] = lambda _: None,
    ) -> None:
        self.options = options
        self.on_batch = on_batch
        self.failure: str | None = None
        self.status = StatusBoard(options.folder / "status.json")
        self._on_failure = on_failure
        self._folder = ServiceFolder(options.folder, "observer")
        self._started_parts = ExitStack()
        self._session: Session | None = None

    @property
    def spark_restarts(self) -> int:
        """The number of restarts of Spark after the end of its JVM."""
        return self._session.restarts if self._session else 0

    def start(self) -> None:
        """Start everything. Batches are being committed once the status is READY."""
        with ExitStack() as started:
            lock_fd = self._folder.lock()
            started.callback(self._folder.unlock)
            started.callback(
                lambda: self.status.enter(ServicePhase.STOPPED, self.failure or "stopped in order")
            )
            self.status.enter(ServicePhase.STARTING, "preparing topics and Spark")
            _prepare_topics(self.options)
            self._session = session = started.enter_context(self._start_spark(lock_fd))
            checkpoint = Checkpoint.at(self.options.folder)
            checkpoint.own(checkpoint.newest_owner() + 1)  # the folder's lock excludes others
            query = ObserversQuery(
                self.options, checkpoint, self.status, session, lambda batch: self.on_batch(batch)
            )
            started.callback(query.close)
            started.enter_context(Supervisor(query, checkpoint, self.status, session, self._end))
            self._started_parts = started.pop_all()

    def _end(self, reason: str, error: Exception) -> None:
        self.failure = reason
        self._on_failure()

    def _start_spark(self, lock_fd: int) -> Session:
        options = self.options
        file_manager = storage_at(str(options.folder)).file_manager
        return Session(
            log_path=options.folder / "spark.log",
            app_name="group-observer",
            ui_host=options.ui_host,
            ui_port=options.ui_port,
            hold_fd=lock_fd,
            temporary_folder=options.folder / "tmp",
            extra={CHECKPOINT_FILE_MANAGER: file_manager, **options.spark},
        )

    def stop(self) -> None:
        """Stop the query, Spark and the rest. The batch that was running runs again at the next start."""
        self._started_parts.close()
