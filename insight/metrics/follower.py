"""The thread that follows the output topics for the metrics and the logs."""

import threading
import time
from collections.abc import Callable

import structlog
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from insight.metrics.end_offsets import end_offsets
from insight.metrics.metrics_state import MetricsState
from records.codec import UNREADABLE
from records.layout import TopicLayout
from state.kafka.history import HistoryEntry

END_OFFSETS_INTERVAL_S = 5.0
RETRY_PAUSE_S = 1.0
# So long may a question to the brokers take, and with it `stop`.
BROKER_TIMEOUT_MS = 5_000
_POLL_MS = 500
# Records are fetched by the half second or by this much, whichever is first: it costs the brokers and this
# process less than a fetch for each batch, and nobody scrapes more often.
_FETCH_MIN_BYTES = 64 * 1024
_FETCH_MAX_WAIT_MS = 500

log = structlog.get_logger()


class Follower:
    """Feeds `readings` until stopped: groups and offsets as they are, everything else from now on.

    `on_entry` gets every new history entry, on the follower's thread. It outlives a broker that is away:
    what it could not read it reads later. `read_age_s` tells how old the news are.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        layout: TopicLayout,
        metrics_state: MetricsState,
        on_entry: Callable[[HistoryEntry], None],
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._layout = layout
        self._metrics_state = metrics_state
        self._on_entry = on_entry
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics-follower", daemon=True)
        self._read_at_s = time.monotonic()
        self._ends_at_s = float("-inf")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def read_age_s(self) -> float:
        """How long ago the topics and their ends were read, or this follower was made."""
        return time.monotonic() - self._read_at_s

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._connect_and_follow()
            except KafkaError as error:
                self._retry_later(error)

    def _connect_and_follow(self) -> None:
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap_servers,
            allow_auto_create_topics=False,
            bootstrap_timeout_ms=BROKER_TIMEOUT_MS,
            request_timeout_ms=BROKER_TIMEOUT_MS,
            fetch_min_bytes=_FETCH_MIN_BYTES,
            fetch_max_wait_ms=_FETCH_MAX_WAIT_MS,
            max_partition_fetch_bytes=self._layout.response_record_max_bytes,
            metrics_enabled=False,
        )
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=self._bootstrap_servers,
                bootstrap_timeout_ms=BROKER_TIMEOUT_MS,
                request_timeout_ms=BROKER_TIMEOUT_MS,
            )
            try:
                self._follow(consumer, admin, self._assign(consumer, admin))
            finally:
                admin.close()
        finally:
            consumer.close(autocommit=False)

    def _assign(self, consumer: KafkaConsumer, admin: KafkaAdminClient) -> dict[TopicPartition, int]:
        """Take up the topics; where the compacted ones end now."""
        layout = self._layout
        compacted = _partitions(consumer, layout.groups_topic, layout.offsets_topic)
        growing = _partitions(
            consumer, layout.events_topic, layout.responses_topic, layout.dead_letters_topic
        )
        consumer.assign(compacted + growing)
        consumer.seek_to_beginning(*compacted)
        consumer.seek_to_end(*growing)
        for partition in growing:
            consumer.position(partition, timeout_ms=BROKER_TIMEOUT_MS)  # now, not at the first poll
        ends = end_offsets(admin, (layout.groups_topic, layout.offsets_topic))
        return {TopicPartition(*partition): end for partition, end in ends.items()}

    def _follow(
        self, consumer: KafkaConsumer, admin: KafkaAdminClient, behind: dict[TopicPartition, int]
    ) -> None:
        """Read until stopped; `behind` are the ends up to which the compacted topics are not read yet."""
        while not self._stopped.is_set():
            try:
                self._take(consumer)
                behind = {p: end for p, end in behind.items() if not _stands_at(consumer, p, end)}
                if not behind:
                    self._metrics_state.complete()
                    self._take_end_offsets(admin)
            except KafkaError as error:
                self._retry_later(error)
            else:
                self._read_at_s = time.monotonic()

    def _take(self, consumer: KafkaConsumer) -> None:
        for partition, records in consumer.poll(timeout_ms=_POLL_MS).items():
            for record in records:
                self._take_record(partition.topic, record.key, record.value)

    def _take_record(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        try:
            entry = self._metrics_state.take(topic, key, value)
        except UNREADABLE as error:
            log.warning("a record cannot be read", topic=topic, error=str(error))
        else:
            if entry is not None:
                self._on_entry(entry)

    def _take_end_offsets(self, admin: KafkaAdminClient) -> None:
        if time.monotonic() - self._ends_at_s >= END_OFFSETS_INTERVAL_S:
            self._metrics_state.take_end_offsets(end_offsets(admin, self._metrics_state.topics_of_interest()))
            self._ends_at_s = time.monotonic()

    def _retry_later(self, error: KafkaError) -> None:
        log.warning("reading for the metrics failed, trying again", error=repr(error))
        self._stopped.wait(RETRY_PAUSE_S)


def _stands_at(consumer: KafkaConsumer, partition: TopicPartition, end: int) -> bool:
    position: int | None = consumer.position(partition, timeout_ms=BROKER_TIMEOUT_MS)
    return position is not None and position >= end


def _partitions(consumer: KafkaConsumer, *topics: str) -> list[TopicPartition]:
    return [
        TopicPartition(topic, p) for topic in topics for p in sorted(consumer.partitions_for_topic(topic))
    ]
