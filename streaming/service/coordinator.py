"""The service: one query on its checkpoint, kept running.

A query ends when the broker is away for long, a batch fails or a Python worker dies twice. It is then started
again from its checkpoint, after a pause that grows; the batch it was in runs again and says the same. What
never ends the service is told in its status.
"""

import importlib.metadata
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import msgspec
import structlog
from kafka.errors import KafkaError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from checkpoints.damage import describe_damage
from checkpoints.disk import describe_full_disk
from checkpoints.folder import Epoch, Folder, FolderError, FolderNotWritable, Identity
from records import kafka_clients
from records.layout import TopicLayout
from state.config import CoordinatorConfig
from streaming.query import pipeline
from streaming.query.operator import ConfigEpoch, Operator
from streaming.query.progress import BatchProgress, ProgressReader
from streaming.query.session import LOOPBACK, Session
from streaming.service.committed_pin import CommittedPin
from streaming.service.failing_batch import describe_damaged_checkpoint, describe_failing_batch
from streaming.service.outage import FIRST_REQUEST_WAIT_S, FirstRequest, end_outage, look_out
from streaming.service.owner import Claim, NotOwner, Ownership, claim_of
from streaming.service.status import Phase, StatusBoard
from streaming.service.ticker import DEFAULT_INTERVAL_MS, Ticker
from streaming.service.topic_watcher import DEFAULT_INTERVAL_MS as DEFAULT_TOPIC_INTERVAL_MS
from streaming.service.topic_watcher import TopicWatcher
from streaming.service.topics import TopicsError, prepare_topics

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
FAILURES_TO_NAME_THE_BATCH = 3
TICKER_ALARM_AGE_S = 10.0
# Without a broker for longer members go unheard: what follows is a takeover, as after a restart.
CUT_OFF_S = 5.0
POLL_S = 0.2
# How often a full disk is tried.
SPACE_POLL_S = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Options:
    """What a coordinator is started with. `settings` are by Kafka's dotted names.

    `skip` are ids of records. `take_over_topics` lets it claim topics that belong to another folder, see
    `streaming.service.owner`. Where gateways are processes of their own, an outage ends when the first
    request comes, `first_request_wait_s` after the start of the query at the latest.
    """

    bootstrap_servers: str
    folder: Path
    layout: TopicLayout = field(default_factory=TopicLayout.named)
    settings: Mapping[str, str] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    ui_host: str = LOOPBACK
    ui_port: int | None = 0
    tick_interval_ms: int = DEFAULT_INTERVAL_MS
    clock_lag_ms: int = 0
    topic_interval_ms: int = DEFAULT_TOPIC_INTERVAL_MS
    replication_factor: int = 1
    take_over_topics: bool = False
    first_request_wait_s: float = FIRST_REQUEST_WAIT_S
    spark: Mapping[str, str] = field(default_factory=dict)


class Coordinator:
    """The coordinator of this process; `status` says when it is ready.

    `start` raises FolderError, TopicsError, NotOwner, ConfigError, JarsUnavailable, JavaNotFound or
    SparkFailed, each with a message that says what to do. `on_failure` is called, in a thread, when Spark's
    JVM has ended or the topics have another owner (`is_deposed`): from then on nothing is coordinated,
    `failure` says why, and all that is left is to `stop`. `on_batch` is called, in a thread, with each batch
    that is committed. `folder` is that of the options, if it is locked already.

    `gateway` opens the gateway of this process, and gives its address; it is entered as soon as the topics
    stand, so that clients can be heard before the outage ends. Without one, gateways are processes of their
    own.
    """

    def __init__(
        self,
        options: Options,
        on_failure: Callable[[], None] = lambda: None,
        on_batch: Callable[[BatchProgress], None] = lambda _: None,
        *,
        folder: Folder | None = None,
        gateway: Callable[[], AbstractContextManager[str]] | None = None,
    ) -> None:
        self.options = options
        self.on_batch = on_batch
        self.failure: str | None = None
        self.is_deposed = False
        self.gateway_address: str | None = None
        self._on_failure = on_failure
        self._open_gateway = gateway
        self._config = CoordinatorConfig().with_settings(options.settings)
        self._folder = folder or Folder(options.folder)
        self._committed_pin = CommittedPin(self._folder, options.layout.requests_topic)
        self.status = StatusBoard(options.folder / "status.json")
        self._stopping = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._disk_alarm: str | None = None
        self._session: Session | None = None
        self._ticker: Ticker | None = None
        self._ownership: Ownership | None = None
        # The epoch above which a clock record is a later owner's; None: whatever clock records say.
        self._owner_epoch: int | None = None
        self._first_request: FirstRequest | None = None
        self._running = ExitStack()

    @property
    def ui_url(self) -> str | None:
        return self._session.ui_url if self._session else None

    def ticker_age_s(self) -> float:
        """Seconds since a clock record was last acknowledged; infinite before the ticker starts."""
        return self._ticker.age_s() if self._ticker is not None else float("inf")

    @property
    def jvm_pid(self) -> int:
        """Process id of Spark's JVM, while it runs."""
        assert self._session is not None
        return self._session.jvm_pid

    def start(self) -> None:
        """Start everything; batches are being committed when the status is READY."""
        with ExitStack() as started:
            try:
                self._start(started)
            except BaseException as error:  # Ctrl-C too
                self.failure = f"the start failed: {_first_line(error) or type(error).__name__}"
                raise
            self._running = started.pop_all()

    def _start(self, started: ExitStack) -> None:
        options = self.options
        lock_fd = self._folder.lock()
        started.callback(self._folder.unlock)
        started.callback(self._say_stopped)
        committed = self._folder.last_batch("commits")
        self.status.enter(Phase.STARTING, "preparing topics and Spark", batch_id=committed)
        found = prepare_topics(options.bootstrap_servers, options.layout, options.replication_factor)
        identity = self._folder.pin(found)
        self._folder.check_committed(options.layout.requests_topic)
        self._take_topics(started, identity)
        self._start_ticker(started)
        self._await_clients(started)
        epochs = self._folder.epochs(self._config.settings(), list(options.skip), code_version())
        self._operator = Operator(options.layout, _config_epochs(epochs, identity))
        self._session = Session(
            log_path=options.folder / "spark.log",
            ui_host=options.ui_host,
            ui_port=options.ui_port,
            hold_fd=lock_fd,
            extra=options.spark,
        )
        started.callback(self._session.stop)
        self._announce(epochs[-1])
        self._start_threads(started)

    def _take_topics(self, started: ExitStack, identity: Identity) -> None:
        options = self.options
        wanted = claim_of(identity, options.folder, options.tick_interval_ms)
        try:
            self._ownership = Ownership(options.bootstrap_servers, options.layout)
            started.callback(self._ownership.close)
            self._ownership.take(wanted, take_over=options.take_over_topics)
        except KafkaError as error:
            raise TopicsError(f"the topics could not be claimed: {error}") from error
        self._owner_epoch = self._ownership.epoch

    def _await_clients(self, started: ExitStack) -> None:
        """Let clients in before Spark is started, or look out for the first request."""
        options = self.options
        if self._open_gateway is not None:
            self.gateway_address = started.enter_context(self._open_gateway())
            return
        try:
            self._first_request = look_out(
                options.bootstrap_servers, options.layout, self._folder, options.tick_interval_ms
            )
        except KafkaError as error:
            raise TopicsError(f"the requests topic cannot be read: {error}") from error

    def _start_ticker(self, started: ExitStack) -> None:
        options = self.options
        self._ticker = Ticker(
            options.bootstrap_servers,
            options.layout.requests_topic,
            options.layout.request_partitions,
            owner_epoch=self._owner_epoch,
            interval_ms=options.tick_interval_ms,
            clock_lag_ms=options.clock_lag_ms,
        )
        self._ticker.start()
        started.callback(self._ticker.stop)
        watcher = TopicWatcher(
            options.bootstrap_servers, options.layout, interval_ms=options.topic_interval_ms
        )
        watcher.start()
        started.callback(watcher.stop)

    def _start_threads(self, started: ExitStack) -> None:
        self._supervisor.start()
        started.callback(self._supervisor.join)
        started.callback(self._stopping.set)

    def stop(self) -> None:
        """End the query (the batch it is in runs again at the next start), the ticker, Spark, and give the
        lock back."""
        self._running.close()

    def _say_stopped(self) -> None:
        self.status.enter(Phase.STOPPED, self.failure or "stopped in order")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _announce(self, epoch: Epoch) -> None:
        """Say on the events topic who decides from now on, and under which configuration."""
        entry = {
            "version": 1,
            "type": "CoordinatorStarted",
            "at_ms": int(time.time() * 1000),
            "from_batch": epoch.from_batch,
            "settings": epoch.settings,
            "skip": epoch.skip,
            "code_version": epoch.code_version,
            "owner_epoch": self._owner_epoch,
        }
        topic = self.options.layout.events_topic
        try:
            producer = kafka_clients.producer(self.options.bootstrap_servers)
            try:
                producer.send(topic, value=msgspec.json.encode(entry)).get(timeout=30)
            finally:
                producer.close(timeout=1)
        except KafkaError as error:
            raise TopicsError(f"the start could not be announced on {topic}: {error}") from error

    def _supervise(self) -> None:
        try:
            self._keep_running()
        except Exception as error:
            if self._stopping.is_set():
                return
            if isinstance(error, NotOwner):
                self.failure = str(error)
                self.is_deposed = True
                log.error("the coordinator has lost its topics", reason=self.failure)
            elif self._session is not None and self._session.has_lost_jvm():
                self.failure = f"Spark's JVM has ended; its log is {self.options.folder / 'spark.log'}"
                log.error("the coordinator failed", reason=self.failure)
            elif isinstance(error, FolderError):
                self.failure = str(error)
                log.error("the coordinator failed", reason=self.failure)
            else:
                self.failure = f"the supervisor ended: {type(error).__name__}: {_first_line(error)}"
                log.exception("the coordinator failed")
            self.status.enter(Phase.STOPPED, self.failure)
            self._on_failure()

    def _keep_running(self) -> None:
        """Start the query, and start it again whenever it ends, until the service stops."""
        failures, failed_batch = 0, -1
        while not self._stopping.is_set():
            error = self._run_query()
            self._committed_pin.take(self._folder.last_batch("commits"))
            if error is None or self._stopping.is_set() or self._waited_for_space(error):
                continue
            batch = self._folder.last_batch("commits") + 1
            failures = failures + 1 if batch == failed_batch else 1
            failed_batch = batch
            pause_s = min(FIRST_PAUSE_S * 2 ** (failures - 1), LONGEST_PAUSE_S)
            self._report_failure(error, batch, failures, pause_s)
            self._pause(pause_s)

    def _waited_for_space(self, error: Exception) -> bool:
        """Where the query ended because a disk is full: wait for space, with an alarm; False where none is.

        A full disk is no failure of the batch, which is planned again, or runs again, when there is space.
        """
        full = self._look_at_disk()
        if full is None:
            return False
        log.error("query stopped until there is space", reason=full, error=_first_line(error))
        self.status.enter(Phase.RESTARTING, full, batch_id=self._folder.last_batch("commits"))
        while full is not None and not self._stopping.is_set():
            self._pause(SPACE_POLL_S)
            full = self._look_at_disk()
        log.info("there is space again" if full is None else "stopped while a disk is full")
        return True

    def _look_at_disk(self) -> str | None:
        assert self._session is not None
        self._disk_alarm = describe_full_disk((self.options.folder, self._session.local_dir))
        return self._disk_alarm

    def _run_query(self) -> PySparkException | KafkaError | FolderNotWritable | None:
        """Run the query until it fails (what with), or the service stops or no broker answers (None).

        Raises NotOwner where the topics have another owner.
        """
        assert self._session is not None
        assert self._ticker is not None
        options = self.options
        try:
            self._wait_for_clients()
            outages = end_outage(options.bootstrap_servers, options.layout, self._folder)
            running = pipeline.start(
                self._session.spark,
                options.bootstrap_servers,
                str(self._folder.spark),
                replace(self._operator, outages=tuple(outages)),
                self._owner_epoch,
            )
            log.info("query started", run_id=running.runId)
            progress = ProgressReader(running)
            while not self._stopping.is_set():
                if running.awaitTermination(POLL_S):  # type: ignore[arg-type]
                    return PySparkException("the query ended by itself")
                self._watch_progress(progress)
                self._watch_ticker()
                if self._ticker.cut_off_s() > CUT_OFF_S:
                    break
                self._watch_owner(running)
            running.stop()
            self._wait_for_broker()
        except Py4JJavaError as error:  # what pyspark does not know, such as Java's IOException
            return PySparkException(error.java_exception.toString())
        except PySparkException as error:
            return self._check_owner(error)
        except (KafkaError, FolderNotWritable) as error:
            return error
        return None

    def _wait_for_clients(self) -> None:
        """At the first start of the query, wait until a client is heard. A bound holds."""
        if self._first_request is None:
            return
        wait_s = self.options.first_request_wait_s
        self.status.enter(
            Phase.STARTING, f"sessions begin with the first request, in {wait_s:.0f} s at the latest"
        )
        with closing(self._first_request) as first:
            has_come = first.wait(wait_s, self._stopping.is_set)
        log.info("the outage ends", because="a request came" if has_come else "no client was heard")
        self._first_request = None

    def _watch_owner(self, running: StreamingQuery) -> None:
        """Stop the query when another coordinator has taken the topics."""
        assert self._ownership is not None
        successor = self._ownership.lost()
        if successor is not None:
            self._depose(successor, running)

    def _check_owner(self, error: PySparkException) -> PySparkException | KafkaError:
        """See whether the query failed on the clock record of a later owner, one that has claimed the topics.

        What only looks like one must not end the service: from then on, claims alone are looked at.
        """
        assert self._ownership is not None
        if pipeline.LATER_OWNER not in str(error):
            return error
        try:
            successor = self._ownership.confirm_lost()
        except KafkaError as unread:
            return unread
        if successor is not None:
            self._depose(successor)
        log.error("a clock record has the epoch of an owner that made no claim; it is not believed")
        self._owner_epoch = None
        return error

    def _depose(self, successor: Claim, running: StreamingQuery | None = None) -> NoReturn:
        if running is not None:
            with suppress(PySparkException):
                running.stop()
        raise NotOwner(
            f"the topics have another owner: {successor}. This coordinator has stopped; no request that "
            "stands behind the first clock record of that one is answered here"
        )

    def _wait_for_broker(self) -> None:
        """Wait until clock records are acknowledged again, or the service stops."""
        assert self._ticker is not None
        if self._ticker.cut_off_s() > CUT_OFF_S:
            log.warning("query stopped until a broker answers")
            self.status.enter(
                Phase.RESTARTING, "no broker answers", batch_id=self._folder.last_batch("commits")
            )
        looked_s = float("-inf")
        while self._ticker.cut_off_s() > CUT_OFF_S and not self._stopping.is_set():
            if time.monotonic() - looked_s > SPACE_POLL_S:
                self._look_at_disk()  # it may be full, and the broker have died of that
                looked_s = time.monotonic()
            self._pause(POLL_S)
        self._disk_alarm = None

    def _pause(self, pause_s: float) -> None:
        end_s = time.monotonic() + pause_s
        while time.monotonic() < end_s and not self._stopping.wait(POLL_S):
            self._watch_ticker()

    def _report_failure(self, error: Exception, batch: int, failures: int, pause_s: float) -> None:
        phase = Phase.RESTARTING
        reason = f"batch {batch} failed, attempt {failures}: {_first_line(error)}"
        if damage := describe_damage(self._folder.spark):
            phase, reason = Phase.FAILING, describe_damaged_checkpoint(batch, damage)
        elif failures >= FAILURES_TO_NAME_THE_BATCH:
            phase = Phase.FAILING
            what, _, _ = str(error).partition("\n=== Streaming Query ===")  # its plan helps nobody here
            reason = describe_failing_batch(self._folder, batch, failures, what)
        self.status.enter(phase, reason, batch_id=batch - 1)
        log.error("query failed", batch=batch, attempt=failures, again_in_s=pause_s, error=reason)

    def _watch_progress(self, progress: ProgressReader) -> None:
        """Look at the batches since the last look."""
        for batch in progress.new():
            if batch.rows_dropped:
                # Requests have no event time, so Spark has no reason to drop one: this is a lost request.
                log.critical("Spark dropped requests", rows=batch.rows_dropped, batch=batch.batch_id)
            self.on_batch(batch)
            self.status.batch_committed(batch.batch_id)
            self._committed_pin.take_often(batch.batch_id)

    def _watch_ticker(self) -> None:
        assert self._ticker is not None
        alarm = self._ticker.alarm
        if alarm is None and self._ticker.age_s() > TICKER_ALARM_AGE_S:
            alarm = f"no clock record was acknowledged for {self._ticker.age_s():.0f} s: time stands still"
        self.status.set_alarm("; ".join(filter(None, (self._disk_alarm, alarm))) or None)


def code_version() -> str:
    """The version of this code, kept with every configuration it ran."""
    return importlib.metadata.version("spark-group-coordinator")


def _config_epochs(epochs: list[Epoch], identity: Identity) -> tuple[ConfigEpoch, ...]:
    base = CoordinatorConfig(member_id_namespace=identity.member_id_namespace)
    return tuple(
        ConfigEpoch(epoch.from_batch, base.with_settings(epoch.settings), frozenset(epoch.skip))
        for epoch in epochs
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
