"""The topic watcher: it reports topics to groups by TopicMetadata and RegexResolved records in the requests
topic.

It reads the offsets topic to find the topics of each group's offsets, and the groups topic to find the topics
and patterns that consumer groups subscribe to. It requests these topics' metadata from the cluster. So the
log stays the only input of a group, and the query sends no requests to brokers. Two watchers do no harm,
because a record without news changes nothing.
"""

import math
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import structlog
from kafka import KafkaAdminClient
from kafka.errors import KafkaError, MessageSizeTooLargeError, UnknownTopicOrPartitionError

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import TopicReader, TopicsFollower, reader_and_admin
from streaming.service.request_appender import ACKNOWLEDGED_TIMEOUT_S, RequestAppender
from streaming.service.topic_watch.group_topics import ClusterTopics, GroupTopics, GroupUpdate
from streaming.service.topic_watch.offset_topics import Images, OffsetTopics, is_doubtful

DEFAULT_INTERVAL_MS = 2_000
# The shortest time between two polls. A poll is due at once when a group waits for a topic or a pattern, and
# when a topic seems to be deleted.
POLLS_APART_S = 1.0
# The pause after a poll is at least this many times as long as the poll, which grows with the topics.
_PAUSE_PER_POLL = 20
_POLL_MS = 500
_NAMES_LOGGED = 20

log = structlog.get_logger()


class TopicWatcher(TopicsFollower):
    """A thread of the coordinator's process that watches the topics until stopped.

    It continues when a broker is unreachable. It checks the topics every `interval_ms`, more rarely if a
    check takes long. It reports a deleted topic at the second check, which follows at once.
    """

    _retried_errors = Exception  # after any error, the topics have to be watched

    def __init__(
        self, client_config: ClientConfig, layout: TopicLayout, *, interval_ms: int = DEFAULT_INTERVAL_MS
    ) -> None:
        self._interval_s = interval_ms / 1000
        super().__init__("topic-watcher", "watching the topics", client_config, layout)
        self._images: Images = {}  # of the last poll
        self._is_in_doubt = False  # a topic seemed to be deleted or created anew at the last poll

    def _connect_and_follow(self) -> None:
        # No client waits for the watcher, so fetches can be rarer than batches.
        with (
            reader_and_admin(self._client_config, self._layout, in_bulk=True) as (reader, admin),
            RequestAppender(self._client_config, self._layout) as requests,
        ):
            self._watch(reader, admin, requests)

    def _watch(self, reader: TopicReader, admin: KafkaAdminClient, requests: RequestAppender) -> None:
        """Read the offsets and groups topics from their start, and check the topics until stopped.

        Raises KafkaError.
        """
        offsets, groups = OffsetTopics(), GroupTopics(self._layout.topics)
        partitions = reader.partitions_of(self._layout.offsets_topic, self._layout.groups_topic)
        reader.start(beginning=partitions)
        ends = reader.ends(partitions)
        is_behind, polled_at_s, took_s = True, -math.inf, 0.0
        while not self._stopped.is_set():
            self._apply_records(reader, offsets, groups)
            is_behind = is_behind and not reader.has_read(ends)
            now_s = time.monotonic()
            is_due = groups.is_waiting or self._is_in_doubt
            pause_s = min(POLLS_APART_S, self._interval_s) if is_due else self._interval_s
            if not is_behind and now_s >= polled_at_s + max(pause_s, _PAUSE_PER_POLL * took_s):
                polled_at_s = now_s
                self._poll(admin, requests, offsets, groups, now_s)
                took_s = time.monotonic() - now_s
                self._worked()

    def _apply_records(self, reader: TopicReader, offsets: OffsetTopics, groups: GroupTopics) -> None:
        """Apply the available records of both topics."""
        for record in reader.poll(_POLL_MS):
            try:
                if record.topic == self._layout.groups_topic:
                    groups.apply(record.key, record.value)
                else:
                    offsets.apply(record.key, record.value)
            except UNREADABLE as error:
                log.warning("a record cannot be read", topic=record.topic, error=str(error))

    def _poll(
        self,
        admin: KafkaAdminClient,
        requests: RequestAppender,
        offsets: OffsetTopics,
        groups: GroupTopics,
        now_s: float,
    ) -> None:
        """Query the cluster's topics, and send the records that are due. Raises KafkaError."""
        at_ms = time.time_ns() // 1_000_000
        images: Images = {}
        listed, internal = None, frozenset[str]()
        if groups.has_patterns():
            described = admin.describe_topics()
            images, listed = _images(described), frozenset(topic["name"] for topic in described)
            internal = frozenset(topic["name"] for topic in described if topic["is_internal"])
        # The list omits topics that this client may not describe. A query by name distinguishes them from
        # missing ones.
        if not_listed := (offsets.names() | groups.names()) - (listed or frozenset()):
            images = {**images, **_images(admin.describe_topics(sorted(not_listed)))}
        self._images, self._is_in_doubt = images, is_doubtful(self._images, images)
        offset_updates = offsets.compare(images, now_s)
        group_updates = groups.compare(ClusterTopics(images, listed, at_ms, internal), now_s)
        try:
            _send(requests, [*offset_updates, *group_updates])
        except KafkaError:
            offsets.not_sent(offset_updates)
            groups.not_sent(group_updates)
            raise


def _send(requests: RequestAppender, messages: Sequence[GroupUpdate]) -> None:
    """Send the records, and wait until all are acknowledged. One that is too large is dropped. Raises
    KafkaError.
    """
    for message, future in zip(messages, requests.send(messages), strict=True):
        try:
            future.get(timeout=ACKNOWLEDGED_TIMEOUT_S)
        except MessageSizeTooLargeError:
            log.warning("topic metadata is larger than a record may be", group=message.group_id)
    if messages:
        groups = {message.group_id for message in messages}
        log.info("topic metadata sent", groups=len(groups), topics=_names_in(messages)[:_NAMES_LOGGED])


def _names_in(messages: Sequence[GroupUpdate]) -> list[str]:
    """Return the topics and patterns in these records."""
    return sorted({n for m in messages for n in (m.topics if isinstance(m, TopicMetadata) else m.patterns)})


def _images(described: list[dict[str, Any]]) -> dict[str, TopicImage | None]:
    """Return the images of topics in a Metadata response by name, None for a topic that does not exist. A
    topic with another error is left out.
    """
    images: dict[str, TopicImage | None] = {}
    for topic in described:
        if topic["error_code"] == UnknownTopicOrPartitionError.errno:
            images[topic["name"]] = None
        elif topic["error_code"] == 0 and topic["topic_id"] is not None:
            images[topic["name"]] = TopicImage(UUID(str(topic["topic_id"])), len(topic["partitions"]))
    return images
