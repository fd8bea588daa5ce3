"""The topics that groups have offsets of, and the TopicMetadata records that groups need. No IO, no clock.

Nothing survives a restart: a group gets a record whenever its offsets on the offsets topic do not match the
existing topics, and again later if they still do not.
"""

from collections.abc import Container, Iterator, Mapping
from itertools import islice
from sys import intern
from typing import Generic, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct

from kafka_why.contract.codec import decode_offset_key
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImage

# A group that still needs its record gets it again after a pause, which doubles each time.
FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 3_600.0

Content = TypeVar("Content")


class _Sent(Struct, Generic[Content], frozen=True):
    """The last record that was sent to a group."""

    content: Content
    at_s: float  # when it was sent
    again_at_s: float  # when the same content is due again
    pause_s: float  # between these times


class ResendSchedule(Generic[Content]):
    """The schedule of groups' records: the last record of each group decides when the next one is due.

    Other content is due `apart_s` after the last record, the same content after a pause. `now_s` is of a
    monotonic clock.
    """

    def __init__(self, apart_s: float = 0.0) -> None:
        self._apart_s = apart_s
        self._sent: dict[str, _Sent[Content]] = {}

    def keep(self, group_ids: Container[str], now_s: float) -> None:
        """Keep the last records of these groups, which still need one. Forget those of other groups after
        `apart_s`.
        """
        self._sent = {
            group_id: sent
            for group_id, sent in self._sent.items()
            if group_id in group_ids or now_s < sent.at_s + self._apart_s
        }

    def is_due(self, group_id: str, content: Content, now_s: float) -> bool:
        """Return True if a record of this content may be sent to the group now."""
        last = self._sent.get(group_id)
        if last is None:
            return True
        return now_s >= (last.again_at_s if last.content == content else last.at_s + self._apart_s)

    def sent(self, group_id: str, content: Content, now_s: float) -> None:
        """Record that the group gets a record of this content now."""
        last = self._sent.get(group_id)
        pause_s = FIRST_PAUSE_S
        if last is not None and last.content == content:
            pause_s = min(2 * last.pause_s, LONGEST_PAUSE_S)
        self._sent[group_id] = _Sent(content, now_s, now_s + pause_s, pause_s)

    def not_sent(self, group_id: str) -> None:
        """Make the group's next record due at once, because the last one could not be sent."""
        self._sent.pop(group_id, None)


# Each group that gets a record costs the query a call, so the number per poll is bounded.
GROUPS_AT_ONCE = 200
# Even with the longest names, this number stays far below the maximum size of a request.
TOPICS_AT_ONCE = 1_000

# By name, None if the topic does not exist. A topic whose state is uncertain is left out.
Images = Mapping[str, TopicImage | None]


def is_doubtful(before: Images, now: Images) -> bool:
    """Return True if a topic that existed in the poll `before` was deleted, or created anew, according to the
    next poll, `now`. A third poll has to confirm that, because a broker may lag.
    """
    ids_before = ((name, image.id) for name, image in before.items() if image is not None)
    return any(name in now and _id_of(now[name]) != id_before for name, id_before in ids_before)


def _id_of(image: TopicImage | None) -> UUID | None:
    return None if image is None else image.id


class _OffsetRow(Struct, frozen=True):
    """The fields used of a record of the offsets topic."""

    topic_id: str | None = None


_offset_row = msgspec.json.Decoder(_OffsetRow)


class OffsetTopics:
    """The topics of all groups' offsets, compared with the cluster. It decides which groups get which
    record.
    """

    def __init__(self) -> None:
        # By group and topic: the topic id of each partition's offset, None if unknown. Ids are text, because
        # a str caches its hash.
        self._ids: dict[str, dict[str, dict[int, str | None]]] = {}
        self._last_ids: dict[str, UUID | None] = {}  # the topics' ids in the last call of `compare`
        self._resend: ResendSchedule[dict[str, TopicImage | None]] = ResendSchedule()

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Read a record of the offsets topic. Raises one of `kafka_why.contract.codec.UNREADABLE`."""
        group_id, topic, partition = decode_offset_key(key or b"")
        if value is not None:
            topic_id = _offset_row.decode(value).topic_id
            topics = self._ids.setdefault(group_id, {})
            offsets = topics.setdefault(intern(topic), {})
            offsets[partition] = None if topic_id is None else intern(topic_id)
            return
        topics = self._ids.get(group_id, {})
        topics.get(topic, {}).pop(partition, None)
        if topic in topics and not topics[topic]:
            del topics[topic]
            if not topics:
                del self._ids[group_id]

    def names(self) -> set[str]:
        """Return the topics that groups have offsets of."""
        return {topic for topics in self._ids.values() for topic in topics}

    def compare(self, images: Images, now_s: float) -> list[TopicMetadata]:
        """Return the records that are due with these images of the cluster's metadata.

        An image of a topic counts when two calls in a row show it, because a broker may lag. `now_s` is of a
        monotonic clock.
        """
        ids = {name: _id_of(image) for name, image in images.items()}
        confirmed = {n: i for n, i in images.items() if n in self._last_ids and self._last_ids[n] == ids[n]}
        self._last_ids = ids
        differences = dict(self._differences(confirmed))
        self._resend.keep(differences, now_s)
        due = (
            (group_id, topics)
            for group_id, topics in differences.items()
            if self._resend.is_due(group_id, topics, now_s)
        )
        return [self._record(group_id, topics, now_s) for group_id, topics in islice(due, GROUPS_AT_ONCE)]

    def _differences(self, images: Images) -> Iterator[tuple[str, dict[str, TopicImage | None]]]:
        """Yield each group that has offsets of a topic that was deleted or has another id than the offsets,
        with the present images of such topics. The maximum is TOPICS_AT_ONCE.
        """
        ids = {name: None if image is None else str(image.id) for name, image in images.items()}
        for group_id, topics in self._ids.items():
            differing = (
                topic
                for topic, offsets in topics.items()
                if topic in ids and (ids[topic] is None or set(offsets.values()) != {ids[topic]})
            )
            if images_to_report := {topic: images[topic] for topic in islice(differing, TOPICS_AT_ONCE)}:
                yield group_id, images_to_report

    def _record(self, group_id: str, topics: dict[str, TopicImage | None], now_s: float) -> TopicMetadata:
        """Return the group's record, and count it as sent."""
        self._resend.sent(group_id, topics, now_s)
        return TopicMetadata(group_id=group_id, topics=topics)

    def not_sent(self, messages: list[TopicMetadata]) -> None:
        """Make these records due at once, because they could not be sent."""
        for message in messages:
            self._resend.not_sent(message.group_id)
