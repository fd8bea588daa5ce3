"""The service of `observe`: it prepares the topics, starts Spark and keeps the query running."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import structlog
from kafka.errors import KafkaError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from checkpoints.checkpoint import Checkpoint, new_namespace
from checkpoints.files import FolderError, FolderNotWritable
from checkpoints.folder import Folder
from checkpoints.metadata import Identity
from checkpoints.state_stores import remove_torn_state
from streaming.observing import output_folder, pipeline
from streaming.observing.one_observer import check_topics_are_ours, observer_id
from streaming.observing.operator import SOURCE, ObservingOperator
from streaming.observing.options import DEFAULT_SHARDS, DEFAULT_STATE_PARTITIONS, ObserverOptions
from streaming.observing.rebalance_poller import RebalancePoller
from streaming.query.progress import BatchProgress, ProgressReader
from streaming.query.session import CHECKPOINT_FILE_MANAGER, Session
from streaming.query.storage import storage_at
from streaming.service.pauses import pause_before
from streaming.service.query.failing_batch import describe_failing_batch
from streaming.service.query.spark_keeper import SparkEnded, SparkKeeper
from streaming.service.query.supervision import FAILURES_TO_NAME_THE_BATCH, POLL_S, first_line
from streaming.service.status import Phase, StatusBoard
from streaming.service.topics import DAY_MS, FoundTopics, TopicsError, find_topic, prepare, wanted_settings

# How often a cluster is asked for `__consumer_offsets` that has none: no group has committed or joined yet.
_LOOK_S = 1.0
# A query that has failed and is started again counts as running after so long, or at its first batch.
_PROOF_S = 10.0

# A sighting that is older is of a rebalance that the log has told long ago.
SIGHTINGS_TOPIC = (
    1,
    {
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "delete",
        "retention.ms": str(3 * DAY_MS),
    },
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Query:
    """The query of this observer, which can be started again and again."""

    session: Session
    keeper: SparkKeeper
    checkpoint: Checkpoint
    identity: Identity
    operator: ObservingOperator

    def start(self, options: ObserverOptions) -> StreamingQuery:
        return pipeline.start(
            self.session.spark,
            options.client_config,
            self.checkpoint.spark_uri,
            self.operator,
            partitions=self.identity.request_partitions,
            shards=self.identity.shards,
            batch_interval_ms=options.batch_interval_ms,
            output_dir=options.output_dir,
        )


def _prepare_topics(options: ObserverOptions) -> None:
    """Create and check the observer's topics. Raises TopicsError, also if they are a coordinator's or another
    observer's, and FolderError. Where the observer writes files, make sure of their folder instead.
    """
    if options.output_dir is not None:
        output_folder.claim(options.output_dir, options.folder)
        return
    layout = options.layout
    if find_topic(options.client_config, layout.requests_topic) is not None:
        raise TopicsError(
            f"{layout.requests_topic} exists, so the topics with this prefix are a coordinator's: give "
            "another --prefix"
        )
    wanted = wanted_settings(layout)
    ours = (layout.groups_topic, layout.offsets_topic, layout.events_topic, layout.dead_letters_topic)
    prepare(
        options.client_config,
        {topic: wanted[topic] for topic in ours} | {layout.sightings_topic: SIGHTINGS_TOPIC},
        options.replication_factor,
        options.min_insync_replicas,
    )
    try:
        check_topics_are_ours(options.client_config, layout, options.folder)
    except KafkaError as error:
        raise TopicsError(f"{layout.groups_topic} cannot be read: {error}") from error


class Observer:
    """The observer of this process. `status` shows when it is ready.

    `start` raises FolderError, TopicsError, JarsUnavailable, JavaNotFound or SparkFailed. `on_failure` is
    called in a thread when Spark has ended again and again: then `failure` is the reason, and the caller has
    to `stop` it. `on_batch` is called in a thread with each committed batch.
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
        self._folder = Folder(options.folder)
        self._stopping = threading.Event()
        self._running = ExitStack()
        self._session: Session | None = None
        self._poller: RebalancePoller | None = None

    @property
    def spark_restarts(self) -> int:
        """How often Spark was started again after its JVM had ended."""
        return self._session.restarts if self._session else 0

    def start(self) -> None:
        """Start everything. Batches are being committed once the status is READY."""
        with ExitStack() as started:
            lock_fd = self._folder.lock()
            started.callback(self._folder.unlock)
            started.callback(lambda: self.status.enter(Phase.STOPPED, self.failure or "stopped in order"))
            self.status.enter(Phase.STARTING, "preparing topics and Spark")
            _prepare_topics(self.options)
            self._session = session = started.enter_context(self._spark(lock_fd))
            keeper = SparkKeeper(
                session,
                self._stopping,
                pause=self._stopping.wait,
                say=partial(self.status.enter, Phase.RESTARTING),
            )
            keeper.start()
            thread = threading.Thread(target=self._run, args=(session, keeper), name="observer", daemon=True)
            started.callback(keeper.stop)
            thread.start()
            started.callback(thread.join)
            started.callback(self._stopping.set)
            self._running = started.pop_all()

    def _spark(self, lock_fd: int) -> Session:
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
        self._running.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, session: Session, keeper: SparkKeeper) -> None:
        try:
            found = self._wait_for_source()
            if found is not None:
                query = self._query(found, session, keeper)
                self._start_polling(found)
                keeper.keep(lambda: self._keep_running(query))
        except Exception as error:
            if self._stopping.is_set():
                return
            if isinstance(error, SparkEnded | FolderError):
                self.failure = str(error)
            else:
                self.failure = f"the observer ended: {type(error).__name__}: {first_line(error)}"
            log.exception("the observer failed")
            self.status.enter(Phase.STOPPED, self.failure)
            self._on_failure()
        finally:
            if self._poller is not None:
                self._poller.stop()

    def _wait_for_source(self) -> FoundTopics | None:
        """Wait until the cluster has a coordinator's topic. None if the observer stops meanwhile."""
        while not self._stopping.is_set():
            found = find_topic(self.options.client_config, SOURCE)
            if found is not None:
                return found
            reason = f"no group has joined or committed yet: the cluster has no {SOURCE}"
            self.status.enter(Phase.STARTING, reason)
            self._stopping.wait(_LOOK_S)
        return None

    def _start_polling(self, found: FoundTopics) -> None:
        options = self.options
        if options.poll_interval_ms and options.output_dir is None:  # else nothing is written to the cluster
            self._poller = RebalancePoller(
                options.client_config,
                options.layout.sightings_topic,
                partitions=found.partitions[SOURCE],
                interval_ms=options.poll_interval_ms,
            )
            self._poller.start()

    def _query(self, found: FoundTopics, session: Session, keeper: SparkKeeper) -> _Query:
        """The query on the checkpoint, which belongs to this cluster and topic for ever."""
        options = self.options
        checkpoint = Checkpoint.at(options.folder)
        identity = checkpoint.pin(
            Identity(
                cluster_id=found.cluster_id,
                requests_topic=SOURCE,
                requests_topic_id=found.ids[SOURCE],
                request_partitions=found.partitions[SOURCE],
                member_id_namespace=new_namespace(),
                shards=DEFAULT_SHARDS,
                state_partitions=DEFAULT_STATE_PARTITIONS,
            ),
            options.shards,
            options.state_partitions,
        )
        session.use_state_partitions(identity.state_partitions)
        observer = observer_id(identity.member_id_namespace)
        operator = ObservingOperator(options.client_config, options.layout, observer)
        return _Query(session, keeper, checkpoint, identity, operator)

    def _keep_running(self, query: _Query) -> None:
        """Start the query, and start it again whenever it ends, until the observer stops or Spark ends."""
        if torn := remove_torn_state(query.checkpoint.files):
            log.warning("damaged files of a batch that was cut off are removed", files=[*map(str, torn)])
        failures, failed_batch = 0, -1
        while not self._stopping.is_set():
            error = self._run_query(query)
            if error is None or self._stopping.is_set():
                continue
            query.session.check_running()
            batch = query.checkpoint.last_batch("commits") + 1
            failures = failures + 1 if batch == failed_batch else 1
            failed_batch = batch
            self._report_failure(query.checkpoint, error, batch, failures)
            self._stopping.wait(pause_before(failures))

    def _run_query(self, query: _Query) -> Exception | None:
        """Run the query until it fails, and return the error, or until the observer stops."""
        try:
            running = query.start(self.options)
            log.info("query started", run_id=running.runId)
            ready_s = time.monotonic() + self._proof_s()
            progress = ProgressReader(running)
            while not self._stopping.is_set():
                if self.status.current.phase is not Phase.READY and time.monotonic() >= ready_s:
                    self.status.enter(Phase.READY, "the query runs")
                if running.awaitTermination(POLL_S):  # type: ignore[arg-type]
                    return PySparkException("the query ended by itself")
                for batch in progress.new():
                    query.keeper.worked()
                    if self._poller is not None:
                        self._poller.read_to(batch.end_offsets)
                    self.on_batch(batch)
                    self.status.batch_committed(batch.batch_id)
            running.stop()
        except Py4JJavaError as error:  # what pyspark does not know, such as Java's IOException
            return PySparkException(error.java_exception.toString())
        except (PySparkException, KafkaError, FolderNotWritable) as error:
            return error
        return None

    def _proof_s(self) -> float:
        """How long a query has to run until it counts as running: a cluster at rest has no records, and so no
        batch. The first query counts at once.
        """
        return 0.0 if self.status.current.phase is Phase.STARTING else _PROOF_S

    def _report_failure(self, checkpoint: Checkpoint, error: Exception, batch: int, failures: int) -> None:
        phase, reason = Phase.RESTARTING, f"batch {batch} failed, attempt {failures}: {first_line(error)}"
        if failures >= FAILURES_TO_NAME_THE_BATCH:
            what, _, _ = str(error).partition("\n=== Streaming Query ===")
            phase, reason = Phase.FAILING, describe_failing_batch(checkpoint, batch, failures, what)
        self.status.enter(phase, reason, batch_id=batch - 1)
        log.error("query failed", batch=batch, attempt=failures, error=reason)
