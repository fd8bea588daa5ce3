"""Polls of a group while its story is played, as of `why --source polling --follow`."""

import threading

from kafka.errors import KafkaError

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.now import now_ms
from kafka_why.why.history import HistoryUnavailable
from kafka_why.why.live_sources import Polling
from kafka_why.why.report import Report, report
from tests.harness.waiting import wait_until


class Polls:
    """Polls of a group from its beginning until `close`, in their own thread."""

    def __init__(self, client_config: ClientConfig, group_id: str) -> None:
        self._client_config, self._group_id = client_config, group_id
        self._polling: Polling | None = None
        self._entries: list[HistoryEntry] = []
        self._begun = self._answered = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"polls of {group_id}")
        self._thread.start()

    def catch_up(self) -> None:
        """Wait for the answer to a poll that has not begun yet."""
        next_one = self._begun + 1
        wait_until(lambda: self._answered >= next_one, f"a poll of {self._group_id}")

    def report(self) -> Report:
        """Return what the polls have shown."""
        return report(self._group_id, self._entries, now_ms(), from_start=False)

    def close(self) -> None:
        """Poll once more, and end."""
        self._is_over.set()
        self._thread.join()
        if self._polling is not None:
            self._polling.close()

    def _run(self) -> None:
        while not self._is_over.wait(Polling.interval_s):
            self._poll()
        self._poll()

    def _poll(self) -> None:
        self._begun += 1
        try:
            if self._polling is None:
                self._polling = Polling(self._client_config, self._group_id)
                new = self._polling.history.entries
            else:
                new = self._polling.more()
        except (HistoryUnavailable, KafkaError):  # it is not there yet, or its coordinator is about to begin
            return
        self._entries += [entry for entry in new if isinstance(entry, HistoryEntry)]
        self._answered = self._begun
