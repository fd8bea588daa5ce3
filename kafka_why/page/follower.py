"""The thread that follows the topics for the page.

It reads views and offsets from their beginning, entries of the last hour, and the bounds of the logs of
topics that have offsets.
"""

import time

import structlog
from kafka import KafkaAdminClient, TopicPartition

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.layout import TopicLayout
from kafka_why.lag.brokers import LagPoller
from kafka_why.now import now_ms
from kafka_why.page.fleet import WINDOW_MS, Fleet
from kafka_why.topic_reader import FollowerThread, TopicReader

TRIM_INTERVAL_S = 30.0
_BROKER_TIMEOUT_MS = 5_000
_POLL_MS = 200

log = structlog.get_logger()


class Follower(FollowerThread):
    """Feeds a fleet until stopped, which takes as long as a poll of the brokers at most.

    It survives that no broker is there, and reads later what it missed. `reader` is whom it reads for, in its
    warnings.
    """

    def __init__(
        self, client_config: ClientConfig, layout: TopicLayout, fleet: Fleet, reader: str = "page"
    ) -> None:
        self._client_config = client_config
        self._layout = layout
        self._fleet = fleet
        super().__init__(f"{reader}-follower", f"reading for the {reader}")
        self._lag_poller = LagPoller(fleet)
        self._trimmed_at_s = float("-inf")

    def _connect_and_follow(self) -> None:
        sizes = self._layout.response_record_max_bytes
        with TopicReader(
            self._client_config, max_record_bytes=sizes, timeout_ms=_BROKER_TIMEOUT_MS
        ) as reader:
            admin = kafka_clients.admin(
                self._client_config,
                bootstrap_timeout_ms=_BROKER_TIMEOUT_MS,
                request_timeout_ms=_BROKER_TIMEOUT_MS,
            )
            try:
                self._follow(reader, admin, self._start(reader))
            finally:
                admin.close()

    def _start(self, reader: TopicReader) -> dict[TopicPartition, int]:
        """Assign the topics to the reader. Return the offsets up to which the page is not complete."""
        layout = self._layout
        tables = reader.partitions_of(layout.groups_topic, layout.offsets_topic)
        events = reader.partitions_of(layout.events_topic)
        ends = reader.ends([*tables, *events])
        found = reader.offsets_at(events, now_ms() - WINDOW_MS)
        at = {partition: ends[partition] if first is None else first for partition, first in found.items()}
        reader.start(beginning=tables, at=at)
        return ends

    def _follow(self, reader: TopicReader, admin: KafkaAdminClient, ends: dict[TopicPartition, int]) -> None:
        behind = ends
        while not self._stopped.is_set():
            for record in reader.poll(_POLL_MS):
                self._apply(record.topic, record.key, record.value)
            if behind and reader.has_read(behind):
                behind = {}
                self._fleet.complete()
            if not behind:
                self._lag_poller.poll(admin)
                self._trim()
            self._worked()

    def _apply(self, topic: str, key: bytes | None, value: bytes | None) -> None:
        try:
            self._fleet.apply(topic, key, value, now_ms())
        except UNREADABLE as error:
            log.warning("a record cannot be read", topic=topic, error=str(error))

    def _trim(self) -> None:
        if time.monotonic() - self._trimmed_at_s >= TRIM_INTERVAL_S:
            self._fleet.trim(now_ms())
            self._trimmed_at_s = time.monotonic()
