"""The share-state thread: it carries out the tasks of share groups at the cluster's share coordinators.

It reads the tasks from the groups' views on the groups topic, and appends each outcome as a ShareStateResult
to the requests topic. So the log stays the only input of a group, and the query sends no requests to brokers.
The thread stores nothing, and two of them do no harm (docs/decisions/0032).
"""

import time
from collections.abc import Callable

import structlog

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ShareStateSummary
from kafka_why.topic_reader import FollowerThread, TopicReader
from streaming.service.clock.ticker import Ticker
from streaming.service.ownership.owner import silence_ms
from streaming.service.request_appender import BROKER_TIMEOUT_MS, RequestAppender
from streaming.service.share_state.broker_coordinators import BrokerCoordinators
from streaming.service.share_state.open_tasks import NOT_PERMITTED, UNCERTAIN_S, OpenTasks, TaskCounts
from streaming.service.share_state.partition_tasks import NoOutcome, PartitionTask, SharePartition, carry_out

_REST_POLL_MS = 500
_POLL_MS = 50  # while a task is being carried out
# The pause between two checks of the permission while it is missing.
_CHECK_PAUSE_S = 10.0
# The maximum age of the records that a change is based on. A new owner changes nothing for UNCERTAIN_S (row
# SP18).
ROUND_MAX_S = UNCERTAIN_S / 2
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # it also advances while the machine sleeps

log = structlog.get_logger()


class ShareStateThread(FollowerThread):
    """A thread of the coordinator's process that carries out tasks until stopped. It continues when a broker
    is unreachable. `summary` is the last known state.

    `may_change` returns True while this process is the owner of the topics (row SP18). A task that was open
    before the start waits `settle_s`, because a broker may still process requests of the last owner. After a
    pause of the process, records read before it are ignored, because another process may have become the
    owner.
    """

    _retried = Exception  # without this thread, share groups get no partitions

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        may_change: Callable[[], bool],
        *,
        settle_s: float = UNCERTAIN_S,
    ) -> None:
        self._client_config = client_config
        self._layout = layout
        self._may_change = may_change
        super().__init__("share-state", "carrying out the tasks of share groups")
        self.summary = ShareStateSummary()
        self._settle_s, self._settled_s = settle_s, 0.0
        self._round_s = 0.0  # when the round began, by _CLOCK
        self._counts = TaskCounts()
        self._uncertain: dict[SharePartition, float] = {}
        self._coordinators: BrokerCoordinators | None = None
        self._checked_s: float | None = None

    def start(self) -> None:
        self._settled_s = time.monotonic() + self._settle_s
        super().start()

    def _connect_and_follow(self) -> None:
        with (
            TopicReader(
                self._client_config,
                max_record_bytes=self._layout.response_record_max_bytes,
                timeout_ms=BROKER_TIMEOUT_MS,
            ) as reader,
            RequestAppender(self._client_config, self._layout) as requests,
        ):
            try:
                self._follow(reader, requests)
            finally:
                self._disconnect()

    def _follow(self, reader: TopicReader, requests: RequestAppender) -> None:
        """Read the groups topic from its start, and carry out tasks until stopped. Raises KafkaError."""
        tasks = OpenTasks(self._counts, self._uncertain)
        partitions = reader.partitions_of(self._layout.groups_topic)
        reader.start(beginning=partitions)
        ends = reader.ends(partitions)
        is_behind = True
        while not self._stopped.is_set():
            self._round_s = time.clock_gettime(_CLOCK)
            due_s = max(time.monotonic(), self._settled_s) if is_behind else time.monotonic()
            self._apply_records(reader, tasks, due_s)
            is_behind = is_behind and not reader.has_read(ends)
            if not is_behind and self._may_change():
                self._check_permission(tasks)
                self._carry_out(tasks.due(time.monotonic()), tasks)
                for report in tasks.reports(time.monotonic()):
                    requests.append(report.records)
                    tasks.reported(report, time.monotonic(), _wall_ms())
                self._worked()
            self.summary = tasks.summary(_wall_ms())

    def _apply_records(self, reader: TopicReader, tasks: OpenTasks, due_s: float) -> None:
        for record in reader.poll(_POLL_MS if tasks.is_working else _REST_POLL_MS):
            try:
                tasks.apply(record.key, record.value, due_s)
            except UNREADABLE as error:
                log.warning("a view of a group cannot be read", error=str(error))

    def _carry_out(self, items: list[PartitionTask], tasks: OpenTasks) -> None:
        """Carry out the due items. A lost connection is replaced at the next call. Raises KafkaError."""
        if not items:
            return
        results = carry_out(items, self._connected())
        tasks.take(items, results, time.monotonic())
        if any(isinstance(result, NoOutcome) and not result.error_code for result in results.values()):
            self._disconnect()

    def _check_permission(self, tasks: OpenTasks) -> None:
        """Check at the start if the permission is missing, and repeat the check while it is. Raises
        KafkaError, NoAnswer.
        """
        now_s, were_refused = time.monotonic(), self._counts.refused
        if self._checked_s is not None and not (were_refused and now_s - self._checked_s > _CHECK_PAUSE_S):
            return
        self._counts.refused = self._connected().are_refused(self._layout.requests_topic)
        is_first, self._checked_s = self._checked_s is None, now_s
        if self._counts.refused and is_first:
            log.error(NOT_PERMITTED)
        if were_refused and not self._counts.refused:
            log.info("the brokers initialize and delete the state of share groups' partitions again")
            tasks.hurry(now_s)

    def _connected(self) -> BrokerCoordinators:
        if self._coordinators is None:
            self._coordinators = BrokerCoordinators(self._client_config, self._may_still_change)
        return self._coordinators

    def _may_still_change(self) -> bool:
        """Return True if this process is the owner, and has been since the round began."""
        return self._may_change() and time.clock_gettime(_CLOCK) - self._round_s < ROUND_MAX_S

    def _disconnect(self) -> None:
        if self._coordinators is not None:
            self._coordinators.close()
        self._coordinators = None


def is_surely_owner(ticker: Ticker | None) -> bool:
    """Return True if no standby can have taken over, because it waits twice as long without a clock
    record.
    """
    if ticker is None:
        return False
    return ticker.age_s() < silence_ms(ticker.pace.longest_interval_ms) / 2_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
