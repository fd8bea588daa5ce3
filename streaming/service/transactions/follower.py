"""The follower of transactions: it sends outcomes to the groups whose offsets are pending in them.

It reads the open entries from the transactions topic: an entry is the pending offsets of one group and
transaction. It reads the outcomes from the markers topic, on which the brokers record how each transaction
ended. It appends a TransactionMarker to the requests topic for each affected group, so that this topic stays
the only input of a group. The follower stores no state, and two of them do no harm. It repeats the marker to
a group until the entry's tombstone is on the transactions topic.

`ReportedTransactions` does the same earlier, for entries that the replica reports before the query writes
them. A replica is a process that answers requests before the query does.
"""

import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from uuid import UUID

import structlog
from kafka import TopicPartition
from kafka.errors import UnknownTopicOrPartitionError

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.kafka.requests import TransactionMarker
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import TransactionsSummary
from kafka_why.topic_reader import TopicReader, TopicsFollower
from streaming.service.request_appender import RequestAppender
from streaming.service.transactions.pending import (
    Decision,
    MarkersReader,
    PendingTransactions,
    marker_wait_ms,
)

REPORTS_CLIENT_ID = "transactions-reports"
# The maximum of waiting reports. Beyond it the oldest are dropped.
REPORTS_MAX = 10_000
# A reported transaction that stays open for longer is left to `TransactionsFollower`.
PENDING_MAX_S = 30.0
# The maximum duration of a Fetch of markers while transactions are pending. A report that arrives meanwhile
# waits for its end.
REPORTED_WAIT_MS = 20  # of all partitions together (`marker_wait_ms`)
LEAST_REPORTED_WAIT_MS = 1  # of each partition

log = structlog.get_logger()

_Report = tuple[bytes, bytes | None]
"""The key and the value of a record that the query will write to the transactions topic."""


class ReportedPending:
    """The transactions that the replica reported in the last PENDING_MAX_S, for one connection. No IO, no
    clock.
    """

    def __init__(self, pending: PendingTransactions) -> None:
        self.pending = pending
        self._first_report_s: dict[bytes, float] = {}
        """By key of an open transaction: the time of its first report. The earliest is first."""

    def apply(self, key: bytes, value: bytes | None, now_s: float) -> None:
        """Apply a report: a key and a value of the transactions topic, None for a tombstone. Raises
        msgspec.DecodeError.
        """
        self.pending.apply(key, value)
        if value is None:
            self._first_report_s.pop(key, None)
        else:
            self._first_report_s.setdefault(key, now_s)

    def forget_old(self, now_s: float) -> None:
        """Drop the transactions that have been pending for PENDING_MAX_S, and leave them to
        `TransactionsFollower`.
        """
        for key, first_report_s in list(self._first_report_s.items()):
            if now_s - first_report_s < PENDING_MAX_S:
                return  # the others were reported later
            self.apply(key, None, now_s)


class ReportedTransactions(TopicsFollower):
    """A thread that sends groups the outcomes of reported transactions until stopped. It connects at the
    first report.

    A pending transaction is on the transactions topic only after the query's batch. The replica applies the
    requests earlier and reports the transaction at once, so that the group gets the marker sooner. A lost,
    repeated or wrong report changes no outcome, because `TransactionsFollower` sends each group its marker
    anyway, and a group ignores repeated markers.
    """

    _retried_errors = Exception  # until it works again, `TransactionsFollower` does the same, later

    def __init__(self, client_config: ClientConfig, layout: TopicLayout) -> None:
        super().__init__(
            "transactions-reports", "sending outcomes of reported transactions", client_config, layout
        )
        self._reports: deque[_Report] = deque(maxlen=REPORTS_MAX)
        self._is_woken = threading.Event()
        """Set when there may be reports, or the thread is to stop."""

    def report(self, key: bytes, value: bytes | None) -> None:
        """Accept a report: a record that the query's next batch will write to the transactions topic. For a
        tombstone, `value` is None. Safe for threads, and never waits. Reports may be missing or repeated.
        """
        self._reports.append((key, value))
        self._is_woken.set()

    def stop(self) -> None:
        self._stopped.set()
        self._is_woken.set()
        super().stop()

    def _run(self) -> None:
        self._is_woken.wait()
        super()._run()

    def _connect_and_follow(self) -> None:
        with (
            MarkersReader(self._client_config, self._layout.txn_markers_topic) as markers,
            RequestAppender(self._client_config, self._layout) as requests,
        ):
            self._follow(markers, requests)

    def _follow(self, markers: MarkersReader, requests: RequestAppender) -> None:
        """Run until stopped.

        Raises KafkaError, after which the reported transactions are left to `TransactionsFollower`.
        """
        pending = PendingTransactions(markers.find_topic(), Counter())
        reported = ReportedPending(pending)
        while not self._stopped.is_set():
            self._wait_for_report(pending)
            for key, value in self._take_reports():
                try:
                    reported.apply(key, value, time.monotonic())
                except UNREADABLE as error:
                    log.warning("a reported transaction cannot be read", error=str(error))
            reported.forget_old(time.monotonic())
            positions = pending.positions()
            wait_ms = marker_wait_ms(len(positions), REPORTED_WAIT_MS, LEAST_REPORTED_WAIT_MS)
            for partition, position in positions.items():
                pending.add_fetched(partition, markers.fetch(partition, position, wait_ms))
            due = pending.due(time.monotonic())
            requests.append(marker_requests(due, pending.topic_id, REPORTS_CLIENT_ID))
            self._worked()

    def _wait_for_report(self, pending: PendingTransactions) -> None:
        """Wait for a report, unless there are markers to wait for. While transactions are pending, wait for
        PENDING_MAX_S at most, because they are forgotten then.
        """
        if not pending.positions():
            self._is_woken.wait(PENDING_MAX_S if pending else None)

    def _take_reports(self) -> Iterator[_Report]:
        self._is_woken.clear()  # first, so that a later report is read the next time
        while self._reports:
            yield self._reports.popleft()


CLIENT_ID = "transactions-follower"
# The interval of Fetches of the transactions topic while nothing is pending.
_REST_FETCH_MS = 5_000
_REST_POLL_MS = 500
# The maximum duration of a Fetch of markers while transactions are pending.
_POLL_MS = 10
MARKER_WAIT_MS = 100  # of all partitions together (`marker_wait_ms`)
LEAST_MARKER_WAIT_MS = 10  # of each partition
_ALARM_LOG_S = 60.0
# The pause between two checks for a recreated markers topic while transactions are pending.
_TOPIC_CHECK_S = 10.0
# A follower that fails for longer raises an alarm. A broker's restart takes less.
FAILING_ALARM_S = 30.0


class TransactionsFollower(TopicsFollower):
    """A thread of the coordinator's process that follows transactions until stopped.

    It continues when a broker is unreachable. `summary` is the last known state.
    """

    _retried_errors = Exception  # without this thread, offsets stay pending forever

    def __init__(self, client_config: ClientConfig, layout: TopicLayout) -> None:
        super().__init__("transactions-follower", "following transactions", client_config, layout)
        self._failing_since_s: float | None = None
        self._alarms_logged_at_s = float("-inf")
        # The number of decided entries by outcome, including those of earlier connections.
        self._decided: Counter[str] = Counter()
        self.summary = TransactionsSummary()

    def _connect_and_follow(self) -> None:
        with (
            TopicReader(
                self._client_config,
                max_record_bytes=self._layout.response_record_max_bytes,
                timeout_ms=2 * _REST_FETCH_MS,
                fetch_min_bytes=1,
                fetch_max_wait_ms=_REST_FETCH_MS,
            ) as reader,
            MarkersReader(self._client_config, self._layout.txn_markers_topic) as markers,
            RequestAppender(self._client_config, self._layout) as requests,
        ):
            self._follow(reader, markers, requests)

    def _follow(self, reader: TopicReader, markers: MarkersReader, requests: RequestAppender) -> None:
        """Read both topics until stopped, or until the markers topic is replaced. Raises KafkaError."""
        pending = PendingTransactions(markers.find_topic(), self._decided)
        checked_at_s = time.monotonic()
        partitions = partitions_of_all(reader, self._layout)
        reader.start(beginning=partitions)
        ends = reader.ends(partitions)
        is_behind = True
        while not self._stopped.is_set():
            self._apply_records(reader, pending, _POLL_MS if pending else _REST_POLL_MS)
            is_behind = is_behind and not reader.has_read(ends)
            if is_behind:
                continue
            if pending and time.monotonic() - checked_at_s > _TOPIC_CHECK_S:
                if markers.find_topic() != pending.topic_id:
                    log.error("the topic of markers was created again", topic=self._layout.txn_markers_topic)
                    return
                checked_at_s = time.monotonic()
            self._fetch_markers(markers, pending)
            requests.append(marker_requests(pending.due(time.monotonic()), pending.topic_id, CLIENT_ID))
            self.summary = pending.summary(round(time.time() * 1000))
            self._log_alarms()
            self._worked()
            self._failing_since_s = None

    def _apply_records(self, reader: TopicReader, pending: PendingTransactions, timeout_ms: int) -> None:
        """Apply the available records of the transactions topic."""
        for record in reader.poll(timeout_ms):
            try:
                pending.apply(record.key, record.value)
            except UNREADABLE as error:
                log.warning("a pending transaction's record cannot be read", error=str(error))

    def _fetch_markers(self, markers: MarkersReader, pending: PendingTransactions) -> None:
        """Wait a short time for new markers, and add them to `pending`. Raises KafkaError."""
        positions = pending.positions()
        if pending and not positions:
            self._stopped.wait(MARKER_WAIT_MS / 1000)
        wait_ms = marker_wait_ms(len(positions), MARKER_WAIT_MS, LEAST_MARKER_WAIT_MS)
        for partition, position in positions.items():
            pending.add_fetched(partition, markers.fetch(partition, position, wait_ms))

    def _log_alarms(self) -> None:
        """Log that transactions stay pending, once per _ALARM_LOG_S."""
        alarms, now_s = self.summary.alarms, time.monotonic()
        if alarms and now_s - self._alarms_logged_at_s > _ALARM_LOG_S:
            log.error("transactions stay pending", transactions=len(alarms), first=alarms[0])
            self._alarms_logged_at_s = now_s

    def _retry_later(self, error: Exception) -> None:
        """Raise an alarm if the follower has failed for FAILING_ALARM_S."""
        now_s = time.monotonic()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        elif now_s - self._failing_since_s > FAILING_ALARM_S:
            alarm = f"offsets of transactions stay pending, because their outcomes cannot be read: {error!r}"
            self.summary = replace(self.summary, alarms=(alarm,))
        super()._retry_later(error)


def partitions_of_all(reader: TopicReader, layout: TopicLayout) -> list[TopicPartition]:
    """Return the partitions of the transactions topic, which has as many as the requests topic.

    Raises UnknownTopicOrPartitionError if the queried broker does not know all of them: it may have started a
    moment ago, and pending transactions in the unknown partitions would be missed.
    """
    partitions = reader.partitions_of(layout.transactions_topic)
    if len(partitions) < layout.request_partitions:
        raise UnknownTopicOrPartitionError(
            f"{layout.transactions_topic} has {len(partitions)} of {layout.request_partitions} partitions"
        )
    return partitions


_numbers = count(1)  # of this process's requests


def marker_requests(
    decisions: Iterable[Decision], topic_id: UUID, client_id: str
) -> Iterator[TransactionMarker]:
    """Yield a request to the group for each decision. `topic_id` is that of the markers topic. Nothing reads
    the answers.
    """
    for decision in decisions:
        yield TransactionMarker(
            group_id=decision.group_id,
            correlation_id=f"{client_id}-{next(_numbers)}",
            reply_partition=0,
            api_version=0,
            client_id=client_id,
            client_host=socket.gethostname(),
            producer_id=decision.marker.producer_id,
            producer_epoch=decision.marker.producer_epoch,
            txn_partition=decision.partition,
            txn_position=decision.marker.offset,
            txn_topic_id=topic_id,
            first_position=decision.first_position,
            committed=decision.marker.committed,
        )
