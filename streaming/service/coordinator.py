"""The service of a coordinator. `Coordinator._start` lists its parts. Spark's JVM starts while the topics are
claimed. The query starts after everything else, because its start ends the outage, in which no session
expires: clients can reach a gateway before that. `Supervisor` keeps the query running.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial

from checkpoints.checkpoint import Checkpoint, check_answered, code_version
from checkpoints.metadata import Identity
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.service import (
    NO_REPLICA_STATE,
    NOT_STARTED,
    ReplicaState,
    ServicePhase,
    ShareStateSummary,
    TransactionsSummary,
)
from kafka_why.lifetimes import Startable
from kafka_why.local_files import ServiceFolder
from kafka_why.metrics.batch_progress import BatchProgress
from state.config import CoordinatorConfig
from streaming.query.operator import Operator
from streaming.query.session import Session
from streaming.query.storage import storage_at
from streaming.service.can_continue import check_topic, reporting_losses
from streaming.service.clock.pace import DeadlinePace, MembersPace
from streaming.service.clock.ticker import NOTHING_ATTESTED_MS, MembersWatcher, Ticker
from streaming.service.outages.outage import FirstRequest, end_replicas_before, watch_for_first_request
from streaming.service.ownership.lease import Lease, StandbyThread
from streaming.service.ownership.owner import NotOwner
from streaming.service.query.coordinating import Continuity, CoordinatorsQuery, QueryCallbacks
from streaming.service.query.spark_keeper import Rehearsal, starting_spark
from streaming.service.query.supervision import Supervisor, first_line
from streaming.service.replica.process import ReplicaListener
from streaming.service.replica.supervision import Replica
from streaming.service.share_state.thread import ShareStateThread, is_surely_owner
from streaming.service.starts import Options, StartTimes, announce, begin_epoch, config_epochs
from streaming.service.status import ReplicaWatch, StatusBoard
from streaming.service.topic_watch.watcher import TopicWatcher
from streaming.service.topics import LogAndState, as_topics_error, prepare_topics
from streaming.service.transactions.follower import ReportedTransactions, TransactionsFollower


class Coordinator(Startable):
    """The coordinator of this process. `status` shows when it is ready.

    `start` raises FolderError, TopicsError, NotOwner, ConfigError, JarsUnavailable, JavaNotFound or
    SparkFailed, each with a message that says what to do. `on_failure` is called in a thread when the query
    can run no more (`Supervisor`), or when the wait of a standby fails. `failure` is then the reason,
    `is_deposed` is True if that is another owner of the topics, and the caller has to `stop` the coordinator.
    `on_batch` is called in a thread with each committed batch. `folder` is the handle of the options' folder
    if the caller has locked it already.

    `gateway` opens the gateway of this process and yields its address. It is entered as soon as the topics
    exist, so that clients can connect before the outage ends. It is None if gateways are separate processes.
    """

    def __init__(
        self,
        options: Options,
        on_failure: Callable[[], None] = lambda: None,
        on_batch: Callable[[BatchProgress], None] = lambda _: None,
        *,
        folder: ServiceFolder | None = None,
        gateway: Callable[[], AbstractContextManager[str | None]] | None = None,
    ) -> None:
        self.options = options
        self.on_batch = on_batch
        self.failure: str | None = None
        self.is_deposed = False
        self.gateway_address: str | None = None
        self._on_failure = on_failure
        self._gateway = gateway
        self._config = CoordinatorConfig().with_settings(options.settings)
        self._folder = folder or ServiceFolder(options.folder)
        self._storage = storage_at(options.checkpoint or str(options.folder))
        self.status = StatusBoard(options.folder / "status.json")
        self._session: Session | None = None
        self._ticker: Ticker | None = None
        # The replica announces deadlines. Without one, groups' views show if a deadline may come.
        self._pace = (
            DeadlinePace(options.tick_interval_ms, self._knows_deadlines, batch_records=options.batch_records)
            if options.replica
            else MembersPace(
                options.layout.request_partitions,
                options.tick_interval_ms,
                rest_interval_ms=options.rest_interval_ms,
            )
        )
        self._lease: Lease | None = None
        self._first_request: FirstRequest | None = None
        self._started_parts = ExitStack()
        self._stopping = threading.Event()
        self._times = StartTimes()
        self._transactions = TransactionsFollower(options.client_config, options.layout)
        self._reported_transactions = ReportedTransactions(options.client_config, options.layout)
        self._share_state = ShareStateThread(
            options.client_config, options.layout, lambda: is_surely_owner(self._ticker)
        )
        self._replica: Replica | None = None

    @property
    def ui_url(self) -> str | None:
        return self._session.ui_url if self._session else None

    @property
    def start_times_s(self) -> dict[str, float]:
        """The seconds from the start until the end of each completed stage."""
        return dict(self._times.ends_s)

    def ticker_age_s(self) -> float:
        """Return the seconds since the last acknowledged clock record, NaN before the ticker starts."""
        return self._ticker.age_s() if self._ticker is not None else float("nan")

    def replica(self) -> ReplicaState:
        """Return the state of the replica, also before it is created, or if this coordinator runs none."""
        if self._replica is None:
            return NOT_STARTED if self.options.replica else NO_REPLICA_STATE
        return self._replica.state

    def transactions(self) -> TransactionsSummary:
        """Return a summary of the transactions whose outcome groups do not know yet."""
        return self._transactions.summary

    def share_state(self) -> ShareStateSummary:
        """Return a summary of the tasks of share groups that are open at the cluster's share coordinators."""
        return self._share_state.summary

    @property
    def spark_restarts(self) -> int:
        """The number of restarts of Spark after its JVM had ended."""
        return self._session.restarts if self._session else 0

    @property
    def jvm_pid(self) -> int:
        """The process id of Spark's JVM while it runs."""
        assert self._session is not None
        return self._session.jvm_pid

    def start(self) -> None:
        """Start all parts. Batches are committed once the status is READY."""
        with ExitStack() as started:
            try:
                self._start(started)
            except BaseException as error:  # including Ctrl-C
                self.failure = f"the start failed: {first_line(error) or type(error).__name__}"
                raise
            self._started_parts = started.pop_all()

    def _start(self, started: ExitStack) -> None:
        """Start the parts, in this order. `started` stops them in the reverse order.

        1. The lock of the folder, the status, and the watch on the replica's state.
        2. The topics and the checkpoint.
        3. Spark's JVM, in a thread, because it takes seconds. A remote checkpoint needs it in 2.
        4. The claim on the topics, the threads that append to them, and the gateway. A standby has only its
           gateway so far.
        5. The replica.
        6. The query under its supervisor. A standby waits in a thread until it can do 4 and 6.
        """
        options = self.options
        lock_fd = self._folder.lock()
        started.callback(self._folder.unlock)
        started.callback(lambda: self.status.enter(ServicePhase.STOPPED, self.failure or "stopped in order"))
        if options.replica:
            started.enter_context(ReplicaWatch(self.replica, self.status, self._stopping.is_set))
        self.status.enter(ServicePhase.STARTING, "preparing topics and Spark")
        with ExitStack() as until_spark_runs:

            @cache  # only the first call starts Spark: for a remote checkpoint in step 2, otherwise in 3
            def starting_session() -> Future[Session]:
                manager = self._storage.file_manager
                return until_spark_runs.enter_context(starting_spark(options, manager, lock_fd, self._times))

            checkpoint = Checkpoint(self._storage.open(lambda: starting_session().result().spark))
            ours = LogAndState(options.client_config, options.layout, checkpoint)
            until_spark_runs.enter_context(reporting_losses(ours, options.folder))
            identity = self._prepare_topics(checkpoint)
            ours = ours.with_topic_sizes()
            self._times.end_of("topics")
            starting_session()
            if not options.standby:
                with self._claiming(started) as lease:
                    lease.acquire(checkpoint, identity)
                self._start_threads(started)
            self._open_gateway(started, ours)
            self._times.end_of("gateway")
            self._session = session = starting_session().result()
            session.use_state_partitions(identity.state_partitions)
        started.callback(session.close)
        self._start_replica(started, ours, session)
        if options.standby:
            take_over = partial(self._take_over_when_free, ours, identity, session)
            started.enter_context(StandbyThread(take_over, self._end_standby))
        else:
            self._start_query(started, ours, identity, session)

    def _prepare_topics(self, checkpoint: Checkpoint) -> Identity:
        """Create or check the topics, and return the identity of the checkpoint's state on them."""
        options = self.options
        check_topic(options.client_config, checkpoint)  # before a topic that is lost is created again
        topics_identity = prepare_topics(
            options.client_config, options.layout, options.replication_factor, options.min_insync_replicas
        )
        return checkpoint.pin(topics_identity, options.shards, options.state_partitions)

    @contextmanager
    def _claiming(self, started: ExitStack) -> Iterator[Lease]:
        """Yield the lease on the topics, for the block to acquire it. It ends with `started`. A KafkaError of
        the block becomes a TopicsError.
        """
        options = self.options
        with as_topics_error("the topics could not be claimed"):
            self._lease = lease = Lease(
                options.client_config,
                options.layout,
                options.folder,
                is_shared=options.checkpoint is not None,
                tick_interval_ms=self._pace.longest_interval_ms,
                take_over=options.take_over_topics,
            )
            started.callback(lease.close)
            started.callback(self._release, lease)
            yield lease
        self._times.end_of("claim")

    def _release(self, lease: Lease) -> None:
        """Release the topics, unless another coordinator has them or no broker answers."""
        if self._ticker is not None and not self._ticker.cut_off_s() and not self.is_deposed:
            lease.release()

    def _start_threads(self, started: ExitStack) -> None:
        """Start the threads that append to the topics, which have been claimed."""
        options, config, layout = self.options, self.options.client_config, self.options.layout
        self._ticker = Ticker(
            config,
            layout.requests_topic,
            layout.request_partitions,
            owner_epoch=self._owner_epoch,
            interval_ms=options.tick_interval_ms,
            clock_lag_ms=options.clock_lag_ms,
            pace=self._pace,
        )
        started.enter_context(self._ticker)
        if isinstance(self._pace, MembersPace):
            started.enter_context(MembersWatcher(config, layout, self._pace))
        started.enter_context(TopicWatcher(config, layout, interval_ms=options.topic_interval_ms))
        started.enter_context(self._transactions)
        started.enter_context(self._reported_transactions)
        started.enter_context(self._share_state)

    def _open_gateway(self, started: ExitStack, ours: LogAndState) -> None:
        """Open the gateway of this process, or watch for the first request, which ends the outage."""
        if self._gateway is not None:
            self.gateway_address = started.enter_context(self._gateway())
        elif not self.options.standby:
            with as_topics_error("the requests topic cannot be read"):
                self._first_request = watch_for_first_request(ours, self._pace.longest_interval_ms)

    def _start_replica(self, started: ExitStack, ours: LogAndState, session: Session) -> None:
        """Start the replica as a standby, which does not answer before its promotion, unless the checkpoint
        is new.

        Reading the state takes as long as starting the query, so both run at once.
        """
        if not isinstance(self._pace, DeadlinePace):
            return
        self._replica = Replica(
            ours,
            self.options.folder,
            ReplicaListener(
                self._reported_transactions.report, self._pace.deadline_at, self._pace.want_batch
            ),
            now_ms=lambda: NOTHING_ATTESTED_MS if self._ticker is None else self._ticker.attested_ms,
        )
        if self.options.standby or ours.checkpoint.record().epochs:
            self._replica.stand_by(lambda: session.spark)
            started.callback(self._replica.end)

    def _knows_deadlines(self) -> bool:
        """Return True while the replica announces deadlines, which it does while it answers."""
        return self._replica is not None and self._replica.is_answering()

    def _take_over_when_free(
        self,
        ours: LogAndState,
        identity: Identity,
        session: Session,
        started: ExitStack,
        stopping: threading.Event,
    ) -> None:
        """Wait until the topics are free, claim them, and start the parts that a standby lacks, unless
        `stopping` is set before. `started` stops them.
        """
        options = self.options
        rehearsal = Rehearsal(session, options.client_config, ours.layout, options.folder, stopping)

        def check_each_poll() -> None:
            rehearsal.check()
            if self._replica is not None:
                self._replica.reseed_outdated_standby()

        with reporting_losses(ours, options.folder), rehearsal, self._claiming(started) as lease:
            has_claimed = lease.acquire_when_free(
                ours.checkpoint,
                identity,
                stopping,
                on_reason=partial(self.status.enter, ServicePhase.STANDBY),
                check=check_each_poll,
                claimed=partial(self.status.enter, ServicePhase.STARTING, "taking over"),
            )
            if has_claimed:
                # The rehearsal ends only after these starts, so that the replica answers clients meanwhile.
                self._start_threads(started)
                self._start_query(started, ours, identity, session)

    def _end_standby(self, error: Exception) -> None:
        """Report that the wait of a standby, or its takeover, has failed."""
        self.status.enter(ServicePhase.STOPPED, first_line(error))
        self._end(first_line(error), error)

    def _start_query(
        self, started: ExitStack, ours: LogAndState, identity: Identity, session: Session
    ) -> None:
        """End earlier replicas, store the configuration of this start, promote a standby's replica, and start
        the query under its supervisor.
        """
        options = self.options
        checkpoint, layout, epoch = ours.checkpoint, ours.layout, self._owner_epoch
        with as_topics_error("the early answers cannot be read"):
            first_of_this_owner = ReplicaId(epoch, number=1)
            acted = end_replicas_before(ours, first_of_this_owner)
        check_answered(checkpoint, code_version(), is_ahead=acted.horizon_ms > acted.read_ms)
        epochs = begin_epoch(checkpoint, layout.requests_topic, self._config.settings(), options.skip, acted)
        continuity = Continuity(ours, self._replica, epoch, acted, self._first_request)
        if self._replica is not None:
            self._replica.set_owner_epoch(epoch)
            if options.standby:
                continuity.promote(lambda: session.spark)
        announce(options.client_config, layout, epochs[-1], epoch)
        assert self._ticker is not None
        assert self._lease is not None
        query = CoordinatorsQuery(
            options,
            ours,
            self.status,
            operator=Operator(layout, config_epochs(epochs, identity), shards=identity.shards),
            session=session,
            ticker=self._ticker,
            continuity=continuity,
            lease=self._lease,
            times=self._times,
            callbacks=QueryCallbacks(
                alarms=lambda: (self.transactions().alarm, self.replica().alarm, self.share_state().alarm),
                on_batch=lambda batch: self.on_batch(batch),
            ),
        )
        started.enter_context(Supervisor(query, checkpoint, self.status, session, self._end))
        started.callback(query.settle)

    @property
    def _owner_epoch(self) -> int:
        """The epoch of this coordinator's claim on the topics."""
        assert self._lease is not None
        return self._lease.ownership.epoch

    def _end(self, reason: str, error: Exception) -> None:
        self.failure, self.is_deposed = reason, isinstance(error, NotOwner)
        self._on_failure()

    def stop(self) -> None:
        """Stop all parts, and release the folder's lock. The query's current batch runs again at the next
        start.
        """
        self._stopping.set()
        self._started_parts.close()
