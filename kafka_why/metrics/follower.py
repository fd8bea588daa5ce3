"""The thread that follows the output topics for the metrics and the logs."""

import time
from collections.abc import Callable

import structlog
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import KafkaError

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.lag.brokers import LagPoller
from kafka_why.metrics.metrics_state import MetricsState
from kafka_why.topic_reader import FollowerThread, Record, TopicReader, reader_and_admin

_POLL_MS = 500
log = structlog.get_logger()


class MetricsFollower(FollowerThread):
    """A thread that feeds `metrics_state` until stopped: all groups and offsets, and new records of the other
    topics.

    `on_entry` receives every new history entry, on this thread. The thread survives an unavailable broker and
    reads the missed records later. `read_age_s` returns the age of the last read.
    """

    def __init__(
        self,
        client_config: ClientConfig,
        layout: TopicLayout,
        metrics_state: MetricsState,
        on_entry: Callable[[HistoryEntry], None],
    ) -> None:
        self._client_config = client_config
        self._layout = layout
        self._metrics_state = metrics_state
        self._on_entry = on_entry
        super().__init__("metrics-follower", "reading for the metrics")
        self._read_at_s = float("nan")
        self._lag_poller = LagPoller(metrics_state)

    def start(self) -> None:
        """Start to read."""
        self._read_at_s = time.monotonic()
        super().start()

    def _connect_and_follow(self) -> None:
        # No scraper needs fresher numbers.
        with reader_and_admin(self._client_config, self._layout, in_bulk=True) as (reader, admin):
            self._follow(reader, admin, self._assign(reader))

    def _assign(self, reader: TopicReader) -> dict[TopicPartition, int]:
        """Assign the topics to the reader. Return the current ends of the compacted topics."""
        layout = self._layout
        tables = reader.partitions_of(layout.groups_topic, layout.offsets_topic)
        reader.start(
            beginning=tables,
            end=reader.partitions_of(layout.events_topic, layout.responses_topic, layout.dead_letters_topic),
        )
        return reader.ends(tables)

    def _follow(
        self, reader: TopicReader, admin: KafkaAdminClient, behind: dict[TopicPartition, int]
    ) -> None:
        """Read until stopped. `behind` has the offsets up to which the compacted topics have to be read
        first.
        """
        while not self._stopped.is_set():
            try:
                for record in reader.poll(_POLL_MS):
                    self._apply(record)
                if behind and reader.has_read(behind):
                    behind = {}
                if not behind:
                    self._metrics_state.complete()
                    self._lag_poller.poll(admin)
            except KafkaError as error:
                self._retry_later(error)
            else:
                self._worked()

    def _apply(self, record: Record) -> None:
        try:
            entry = self._metrics_state.apply(record.topic, record.key, record.value, record.headers)
        except UNREADABLE as error:
            log.warning("a record cannot be read", topic=record.topic, error=str(error))
        else:
            if entry is not None:
                self._on_entry(entry)
