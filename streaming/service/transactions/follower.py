"""The follower of transactions: it sends groups the outcomes of the transactions of their pending offsets.

It reads the open entries from the transactions topic and the outcomes from the markers topic. It appends a
TransactionMarker to the requests topic for each affected group, so that this topic stays the only input of a
group. The follower stores no state, and two of them do no harm. It repeats the marker to a group until the
entry's tombstone is on the transactions topic. Entries that are reported before they are on the topic are
decided by `ReportedTransactions`.
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
from kafka_why.topic_reader import FollowerThread, TopicReader
from streaming.service.request_appender import RequestAppender
from streaming.service.transactions.pending import (
    Decision,
    MarkersReader,
    PendingTransactions,
    marker_wait_ms,
)

# Outcomes for pending transactions that are reported before they are on the transactions topic.
#
# A pending transaction is on the topic after the query's batch. The replica applies the requests earlier, and
# reports the transaction at once, so that the group gets the marker sooner. Nothing depends on reports: the
# follower of the topic sends each group its marker anyway, and a group ignores repeated markers. So a lost,
# repeated or wrong report changes no outcome.


REPORTS_CLIENT_ID = "transactions-reports"
# The maximum of waiting reports. Beyond it the oldest are dropped.
REPORTS_MAX = 10_000
# A transaction that stays open for longer is left to the follower of the topic.
PENDING_MAX_S = 30.0
# The maximum duration of a Fetch of markers while transactions are pending. A report that arrives meanwhile
# waits for its end.
REPORTED_WAIT_MS = 20
LEAST_REPORTED_WAIT_MS = 1

log = structlog.get_logger()

_Report = tuple[bytes, bytes | None]


class EarlyPending:
    """The reported transactions of the last PENDING_MAX_S, for one connection. No IO, no clock."""

    def __init__(self, pending: PendingTransactions) -> None:
        self.pending = pending
        self._since_s: dict[bytes, float] = {}
        """The time of each first report, the earliest first."""

    def apply(self, key: bytes, value: bytes | None, now_s: float) -> None:
        """Apply a report. Raises msgspec.DecodeError."""
        self.pending.apply(key, value)
        if value is None:
            self._since_s.pop(key, None)
        else:
            self._since_s.setdefault(key, now_s)

    def forget_old(self, now_s: float) -> None:
        """Drop the transactions that have been pending for PENDING_MAX_S, and leave them to the follower of
        the topic.
        """
        for key, since_s in list(self._since_s.items()):
            if now_s - since_s < PENDING_MAX_S:
                return
            self.apply(key, None, now_s)


class ReportedTransactions(FollowerThread):
    """A thread that sends groups the outcomes of reported transactions until stopped. It connects at the
    first report.
    """

    _retried = Exception  # the follower of the topic does the same, later

    def __init__(self, client_config: ClientConfig, layout: TopicLayout) -> None:
        super().__init__("transactions-reports", "sending outcomes of reported transactions")
        self._client_config = client_config
        self._layout = layout
        self._reports: deque[_Report] = deque(maxlen=REPORTS_MAX)
        self._is_woken = threading.Event()
        """Set when there may be reports, or the thread is to stop."""

    def report(self, key: bytes, value: bytes | None) -> None:
        """Accept a report: a record that will be on the transactions topic, None for a tombstone. Safe for
        threads, and never waits.
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

        Raises KafkaError, after which the reported transactions are left to the follower of the topic.
        """
        pending = PendingTransactions(markers.find_topic(), Counter())
        early = EarlyPending(pending)
        while not self._stopped.is_set():
            self._wait(pending)
            for key, value in self._take_reports():
                try:
                    early.apply(key, value, time.monotonic())
                except UNREADABLE as error:
                    log.warning("a reported transaction cannot be read", error=str(error))
            early.forget_old(time.monotonic())
            positions = pending.positions()
            wait_ms = marker_wait_ms(len(positions), REPORTED_WAIT_MS, LEAST_REPORTED_WAIT_MS)
            for partition, position in positions.items():
                pending.read(partition, markers.fetch(partition, position, wait_ms))
            due = pending.due(time.monotonic())
            requests.append(marker_requests(due, pending.topic_id, REPORTS_CLIENT_ID))
            self._worked()

    def _wait(self, pending: PendingTransactions) -> None:
        """Wait for a report, unless there are markers to wait for."""
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
MARKER_WAIT_MS = 100
LEAST_MARKER_WAIT_MS = 10
_ALARM_LOG_S = 60.0
# The pause between two checks for a recreated markers topic while transactions are pending.
_TOPIC_CHECK_S = 10.0
# A follower that fails for longer raises an alarm. A broker's restart takes less.
FAILING_ALARM_S = 30.0


class TransactionsFollower(FollowerThread):
    """A thread of the coordinator's process that follows transactions until stopped.

    It continues when a broker is unreachable. `summary` is the last known state.
    """

    _retried = Exception  # without this thread, offsets stay pending forever

    def __init__(self, client_config: ClientConfig, layout: TopicLayout) -> None:
        self._client_config = client_config
        self._layout = layout
        super().__init__("transactions-follower", "following transactions")
        self._failing_since_s: float | None = None
        self._alarms_logged_at_s = float("-inf")
        self._decided: Counter[str] = Counter()  # including earlier connections
        self.summary = TransactionsSummary()
        self._reported = ReportedTransactions(client_config, layout)

    def report(self, key: bytes, value: bytes | None) -> None:
        """Report a record that the query's next batch will write to the transactions topic.

        Its group gets the marker sooner. Safe for threads, and never waits. Reports may be missing or
        repeated.
        """
        self._reported.report(key, value)

    def start(self) -> None:
        super().start()
        self._reported.start()

    def stop(self) -> None:
        super().stop()
        self._reported.stop()

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
            self._read(markers, pending)
            requests.append(marker_requests(pending.due(time.monotonic()), pending.topic_id, CLIENT_ID))
            self.summary = pending.summary(round(time.time() * 1000))
            self._log_alarms()
            self._worked()
            self._failing_since_s = None

    def _apply_records(self, reader: TopicReader, pending: PendingTransactions, timeout_ms: int) -> None:
        for record in reader.poll(timeout_ms):
            try:
                pending.apply(record.key, record.value)
            except UNREADABLE as error:
                log.warning("a pending transaction's record cannot be read", error=str(error))

    def _read(self, markers: MarkersReader, pending: PendingTransactions) -> None:
        """Wait a short time for new markers. Raises KafkaError."""
        positions = pending.positions()
        if pending and not positions:
            self._stopped.wait(MARKER_WAIT_MS / 1000)
        wait_ms = marker_wait_ms(len(positions), MARKER_WAIT_MS, LEAST_MARKER_WAIT_MS)
        for partition, position in positions.items():
            pending.read(partition, markers.fetch(partition, position, wait_ms))

    def _log_alarms(self) -> None:
        alarms, now_s = self.summary.alarms, time.monotonic()
        if alarms and now_s - self._alarms_logged_at_s > _ALARM_LOG_S:
            log.error("transactions stay pending", transactions=len(alarms), first=alarms[0])
            self._alarms_logged_at_s = now_s

    def _retry_later(self, error: Exception) -> None:
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
    moment ago, and pending transactions in the others would be missed.
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
    """Yield the request to the group for each decision. `topic_id` is that of the markers topic. The answers
    are not read.
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
