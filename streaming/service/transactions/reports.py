"""Outcomes for pending transactions that are reported before they are on the transactions topic.

The topic gets a pending transaction with the query's batch. Whoever applies the requests earlier may report
it at once. Then its marker is looked for at once, too, and the group gets it. Reports are only early: the
follower of the topic (`streaming.service.transactions.follower`) tells each group in any case, a group takes
a marker any number of times, and a report that is lost, repeated or wrong decides nothing that the topic
would not.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterator

import structlog

from kafka_why.background_thread import BackgroundThread
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.outage_warning import OutageWarning
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.layout import TopicLayout
from streaming.service.transactions.markers import MarkersReader, marker_wait_ms
from streaming.service.transactions.pending import PendingTransactions
from streaming.service.transactions.requests import MarkerRequests

CLIENT_ID = "transactions-reports"
# Reports that wait to be taken. With more of them the oldest are dropped.
REPORTS_MAX = 10_000
# A transaction that stays open for longer is left to the follower of the topic.
KEPT_S = 30.0
_RETRY_PAUSE_S = 1.0
# While something is pending: the wait for a marker is a Fetch that the broker holds, and a report that comes
# meanwhile waits for it.
MARKER_WAIT_MS = 20
LEAST_MARKER_WAIT_MS = 1

log = structlog.get_logger()

_Report = tuple[bytes, bytes | None]


class EarlyPending:
    """The reported transactions of the last `KEPT_S`, for one connection. No IO, no clock."""

    def __init__(self, pending: PendingTransactions) -> None:
        self.pending = pending
        self._since_s: dict[bytes, float] = {}
        """When each was reported for the first time, the earliest first."""

    def apply(self, key: bytes, value: bytes | None, now_s: float) -> None:
        """Take a report. Raises msgspec.DecodeError."""
        self.pending.apply(key, value)
        if value is None:
            self._since_s.pop(key, None)
        else:
            self._since_s.setdefault(key, now_s)

    def forget_old(self, now_s: float) -> None:
        """Leave what has been pending for too long to the topic."""
        for key, since_s in list(self._since_s.items()):
            if now_s - since_s < KEPT_S:
                return
            self.apply(key, None, now_s)


class ReportedTransactions(BackgroundThread):
    """Tells groups the outcomes of reported transactions until stopped. It connects at the first report."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout) -> None:
        super().__init__("transactions-reports")
        self._client_config = client_config
        self._layout = layout
        self._reports: deque[_Report] = deque(maxlen=REPORTS_MAX)
        self._is_woken = threading.Event()
        """Set when there may be reports, or the thread is to stop."""
        self._warning = OutageWarning("telling early how transactions ended")

    def report(self, key: bytes, value: bytes | None) -> None:
        """Take a report: a record as it will be on the transactions topic, None for a tombstone. Safe for
        threads, and never waits.
        """
        self._reports.append((key, value))
        self._is_woken.set()

    def stop(self) -> None:
        """See `BackgroundThread`."""
        self._stopped.set()
        self._is_woken.set()
        super().stop()

    def _run(self) -> None:
        self._is_woken.wait()
        while not self._stopped.is_set():
            try:
                with (
                    MarkersReader(self._client_config, self._layout.txn_markers_topic) as markers,
                    MarkerRequests(self._client_config, self._layout, CLIENT_ID) as requests,
                ):
                    self._follow(markers, requests)
            except Exception as error:  # noqa: BLE001 - the follower of the topic does the same, later
                self._warning.failed(error)
                self._stopped.wait(_RETRY_PAUSE_S)

    def _follow(self, markers: MarkersReader, requests: MarkerRequests) -> None:
        """Work until stopped. Raises KafkaError, after which what was reported is left to the topic."""
        pending = PendingTransactions(markers.find_topic(), Counter())
        early = EarlyPending(pending)
        while not self._stopped.is_set():
            self._wait(pending)
            for key, value in self._taken():
                try:
                    early.apply(key, value, time.monotonic())
                except UNREADABLE as error:
                    log.warning("a reported transaction cannot be read", error=str(error))
            early.forget_old(time.monotonic())
            positions = pending.positions()
            wait_ms = marker_wait_ms(len(positions), MARKER_WAIT_MS, LEAST_MARKER_WAIT_MS)
            for partition, position in positions.items():
                pending.read(partition, markers.fetch(partition, position, wait_ms))
            requests.append(pending.due(time.monotonic()), pending.topic_id)
            self._warning.worked()

    def _wait(self, pending: PendingTransactions) -> None:
        """Wait for a report, unless there are markers to wait for."""
        if not pending.positions():
            self._is_woken.wait(KEPT_S if pending else None)

    def _taken(self) -> Iterator[_Report]:
        self._is_woken.clear()  # before the look: a report that comes from now on is seen the next time
        while self._reports:
            yield self._reports.popleft()
