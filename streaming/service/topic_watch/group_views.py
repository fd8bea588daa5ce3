"""The views of groups as the topic watcher needs them: the topics that each group knows and waits for.
No IO.
"""

from collections.abc import Iterator, Mapping
from sys import intern
from uuid import UUID

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from kafka_why.contract.kafka.share_requests import TopicImage

# The maximum number of shared images. Beyond it, most are of deleted topics, because no cluster has that
# many topics.
_SHARED_MAX = 200_000


class _KnownTopic(Struct, frozen=True):
    """A topic in a group's view."""

    topic_id: UUID
    partitions: int


class _ConsumerRecord(Struct, frozen=True):
    """The fields used of `kafka_why.contract.kafka.snapshot.ConsumerGroupSnapshot`."""

    topics: dict[str, _KnownTopic | None]
    resolved_regexes: dict[str, list[str]]
    unknown_topics: list[str]
    unresolved_regexes: list[str]
    checked_regexes: dict[str, str] | UnsetType = UNSET


class _GroupRecord(Struct, frozen=True):
    """The fields used of a record of the groups topic."""

    consumer: _ConsumerRecord | None = None
    wanted_topics: list[str] = []  # topics that a classic group needs for its conversion (row MI14)


class GroupView(Struct, frozen=True):
    """The topics and patterns that a group knows and waits for."""

    # The topics that the group knows by name, None for one that was reported to it as deleted.
    topics: dict[str, TopicImage | None] = field(default_factory=dict)
    # Patterns, with the topics that they match.
    resolved_regexes: dict[str, list[str]] = field(default_factory=dict)
    # Topics and patterns that members subscribe to and the group does not know.
    unknown_topics: list[str] = []
    unresolved_regexes: list[str] = []
    # Patterns that members' gateways match, with the digest of their matches.
    checked_regexes: dict[str, str] = {}

    @property
    def is_waiting(self) -> bool:
        """True if members subscribe to topics or patterns that the group does not know."""
        return bool(self.unknown_topics or self.unresolved_regexes)

    @property
    def patterns(self) -> list[str]:
        return [*self.resolved_regexes, *self.unresolved_regexes]

    @property
    def names(self) -> Iterator[str]:
        """The topics that the group knows by name, or waits for."""
        yield from self.topics
        yield from self.unknown_topics


_group_record = msgspec.json.Decoder(_GroupRecord)


class GroupViews:
    """A decoder of the groups' views. The views share the names and the images of topics, because many groups
    may know many topics.
    """

    def __init__(self) -> None:
        self._shared: dict[TopicImage, TopicImage] = {}

    def read(self, value: bytes) -> GroupView | None:
        """Return the view of a group, or None if the group needs no topics. Raises one of
        `kafka_why.contract.codec.UNREADABLE`.
        """
        record = _group_record.decode(value)
        consumer = record.consumer
        if consumer is None:
            return GroupView(unknown_topics=record.wanted_topics) if record.wanted_topics else None
        return GroupView(
            self._images(consumer.topics),
            {pattern: [*map(intern, names)] for pattern, names in consumer.resolved_regexes.items()},
            consumer.unknown_topics,
            consumer.unresolved_regexes,
            consumer.checked_regexes or {},
        )

    def _images(self, topics: Mapping[str, _KnownTopic | None]) -> dict[str, TopicImage | None]:
        return {intern(name): self._share(topic) for name, topic in topics.items()}

    def _share(self, topic: _KnownTopic | None) -> TopicImage | None:
        """Return the topic's image, the same object for equal images. Return None for None."""
        if topic is None:
            return None
        if len(self._shared) > _SHARED_MAX:
            self._shared.clear()
        image = TopicImage(topic.topic_id, topic.partitions)
        return self._shared.setdefault(image, image)
