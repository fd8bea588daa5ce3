"""The service behind `observe`. It prepares the topics, starts Spark and keeps the query running."""

from collections.abc import Callable
from contextlib import ExitStack

from checkpoints.checkpoint import Checkpoint
from kafka_why.contract.service import ServicePhase
from kafka_why.lifetimes import Startable
from kafka_why.metrics.batch_progress import BatchProgress
from kafka_why.service_folder import ServiceFolder
from streaming.observing import output_folder
from streaming.observing.one_observer import check_topics_are_ours
from streaming.observing.query import ObserverOptions, ObserversQuery
from streaming.query.session import CHECKPOINT_FILE_MANAGER, Session
from streaming.query.storage import storage_at
from streaming.service.query.supervision import Supervisor
from streaming.service.retention import least_retentions
from streaming.service.status import StatusBoard
from streaming.service.topics import (
    SIGHTINGS_TOPIC,
    TopicsError,
    as_topics_error,
    find_topic,
    prepare,
    wanted_settings,
)


def _prepare_topics(options: ObserverOptions) -> None:
    """Create and check the observer's topics. Raises TopicsError, also if they are a coordinator's or another
    observer's, and FolderError. If the observer writes files, claim their folder instead.
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
    called in a thread when Spark keeps ending. `failure` is the reason, and the caller has to `stop` the
    observer. `on_batch` is called in a thread with each committed batch.
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
        self._running = ExitStack()
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
            self._session = session = started.enter_context(self._spark(lock_fd))
            checkpoint = Checkpoint.at(self.options.folder)
            checkpoint.own(checkpoint.newest_owner() + 1)  # the folder's lock excludes others
            query = ObserversQuery(
                self.options, checkpoint, self.status, session, lambda batch: self.on_batch(batch)
            )
            started.callback(query.close)
            started.enter_context(Supervisor(query, checkpoint, self.status, session, self._end))
            self._running = started.pop_all()

    def _end(self, reason: str, error: Exception) -> None:
        self.failure = reason
        self._on_failure()

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
