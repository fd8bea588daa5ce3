"""The topic watcher: it reports topics to groups by TopicMetadata records in the requests topic.

It reads the offsets topic to find the topics of each group's offsets, and requests these topics' metadata
from the cluster. So the log stays the only input of a group, and the query sends no requests to brokers. Two
watchers do no harm, because a record without news changes nothing.
"""

import time
from contextlib import ExitStack
from uuid import UUID

import structlog
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from records import kafka_clients
from records.client_config import ClientConfig
from records.codec import UNREADABLE, encode
from records.layout import TopicLayout
from records.partitioner import partition_of
from records.reader import TopicReader
from state.kafka.requests import TopicImage, TopicMetadata
from streaming.service.background import BackgroundThread
from streaming.service.offset_topics import Images, OffsetTopics

DEFAULT_INTERVAL_MS = 5_000
# The maximum time of a request to the brokers, and so of `stop`.
BROKER_TIMEOUT_MS = 5_000
RETRY_PAUSE_S = 1.0
_POLL_MS = 500
# No client waits for the watcher, so fetches can be rarer than batches to spare the brokers.
_FETCH_MIN_BYTES = 64 * 1024
_FETCH_MAX_WAIT_MS = 500
_NAMES_LOGGED = 20

log = structlog.get_logger()


class TopicWatcher(BackgroundThread):
    """Watches until stopped. A thread of the coordinator's process. It continues when a broker is
    unreachable.

    It checks the topics every `interval_ms`. It reports a deleted topic at the second check.
    """

    def __init__(
        self, client_config: ClientConfig, layout: TopicLayout, *, interval_ms: int = DEFAULT_INTERVAL_MS
    ) -> None:
        self._client_config = client_config
        self._layout = layout
        self._interval_s = interval_ms / 1000
        super().__init__("topic-watcher")
        self._is_failing = False

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with ExitStack() as connections:
                    reader = connections.enter_context(self._reader())
                    admin = kafka_clients.admin(
                        self._client_config,
                        bootstrap_timeout_ms=BROKER_TIMEOUT_MS,
                        request_timeout_ms=BROKER_TIMEOUT_MS,
                    )
                    connections.callback(admin.close)
                    producer = kafka_clients.topic_metadata_producer(
                        self._client_config,
                        timeout_ms=BROKER_TIMEOUT_MS,
                        max_request_bytes=self._layout.request_record_max_bytes,
                    )
                    connections.callback(producer.close, timeout=2 * BROKER_TIMEOUT_MS / 1000)
                    self._watch(reader, admin, producer)
            except Exception as error:  # noqa: BLE001 - whatever it is, the topics have to be watched
                self._failed(error)

    def _reader(self) -> TopicReader:
        return TopicReader(
            self._client_config,
            max_record_bytes=self._layout.response_record_max_bytes,
            timeout_ms=BROKER_TIMEOUT_MS,
            fetch_min_bytes=_FETCH_MIN_BYTES,
            fetch_max_wait_ms=_FETCH_MAX_WAIT_MS,
        )

    def _watch(self, reader: TopicReader, admin: KafkaAdminClient, producer: KafkaProducer) -> None:
        """Read the offsets topic from its start, and check the topics until stopped. Raises KafkaError."""
        offsets = OffsetTopics()
        partitions = reader.partitions_of(self._layout.offsets_topic)
        reader.start(beginning=partitions)
        ends = reader.ends(partitions)
        is_behind, look_at_s = True, 0.0
        while not self._stopped.is_set():
            self._take(reader, offsets)
            is_behind = is_behind and not reader.has_read(ends)
            now_s = time.monotonic()
            if not is_behind and now_s >= look_at_s:
                look_at_s = now_s + self._interval_s
                self._tell(producer, offsets, offsets.see(_images(admin, offsets.names()), now_s))
                self._is_failing = False

    def _take(self, reader: TopicReader, offsets: OffsetTopics) -> None:
        for record in reader.poll(_POLL_MS):
            try:
                offsets.take(record.key, record.value)
            except UNREADABLE as error:
                log.warning("an offset's record cannot be read", error=str(error))

    def _tell(self, producer: KafkaProducer, offsets: OffsetTopics, messages: list[TopicMetadata]) -> None:
        """Append each record to its group's partition, and wait for all. Raises KafkaError."""
        try:
            sent = [
                producer.send(
                    self._layout.requests_topic,
                    key=message.group_id.encode(),
                    value=encode(message),
                    partition=partition_of(message.group_id, self._layout.request_partitions),
                )
                for message in messages
            ]
            for future in sent:
                future.get(timeout=2 * BROKER_TIMEOUT_MS / 1000)
        except KafkaError:
            offsets.not_told(messages)
            raise
        if messages:
            names = {name for message in messages for name in message.topics}
            log.info("topic metadata sent", groups=len(messages), topics=sorted(names)[:_NAMES_LOGGED])

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:
            log.warning("watching the topics failed, trying again", error=repr(error))
        self._is_failing = True
        self._stopped.wait(RETRY_PAUSE_S)


def _images(admin: KafkaAdminClient, names: set[str]) -> Images:
    """The cluster's images of these topics. A topic with an error is left out, unless the error is that it
    does not exist.

    The request names the topics, because metadata of all topics omits those that this client may not
    describe.
    Raises KafkaError.
    """
    if not names:
        return {}
    images: dict[str, TopicImage | None] = {}
    for topic in admin.describe_topics(sorted(names)):
        if topic["error_code"] == UnknownTopicOrPartitionError.errno:
            images[topic["name"]] = None
        elif topic["error_code"] == 0 and topic["topic_id"] is not None:
            images[topic["name"]] = TopicImage(UUID(str(topic["topic_id"])), len(topic["partitions"]))
    return images
