"""The topics and patterns that consumer groups subscribe to, and the records that these groups need. No IO.

Nothing is stored over a restart: a group gets a record whenever its view on the groups topic does not fit the
existing topics, and again later if it still does not. Most groups of other types need nothing.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct

from records.topic_patterns import resolve
from state.kafka.requests import RegexResolution, RegexResolved, TopicImage, TopicMetadata
from streaming.service.offset_topics import GROUPS_AT_ONCE, TOPICS_AT_ONCE, Images
from streaming.service.resend import Resend

# The time between two results for the patterns of one group, as in Kafka. Source: GroupMetadataManager,
# REGEX_BATCH_REFRESH_MIN_INTERVAL_MS.
RESOLUTIONS_APART_S = 10.0


class _Topic(Struct, frozen=True):
    """A topic as the group knows it."""

    topic_id: UUID
    partitions: int


class _ConsumerView(Struct, frozen=True):
    """The fields used of `state.kafka.snapshot.ConsumerGroupSnapshot`."""

    topics: dict[str, _Topic | None]
    resolved_regexes: dict[str, list[str]]
    unknown_topics: list[str]
    unresolved_regexes: list[str]

    @property
    def is_waiting(self) -> bool:
        """Whether members subscribe to something that the group does not know."""
        return bool(self.unknown_topics or self.unresolved_regexes)

    @property
    def patterns(self) -> list[str]:
        return [*self.resolved_regexes, *self.unresolved_regexes]


class _GroupView(Struct, frozen=True):
    """The fields used of a record of the groups topic. A classic group may have `wanted_topics`: it needs
    them for its conversion (row MI14).
    """

    consumer: _ConsumerView | None = None
    wanted_topics: list[str] = []

    @property
    def needs(self) -> _ConsumerView | None:
        """What the group knows and waits for, None if it needs nothing."""
        if self.consumer is None and self.wanted_topics:
            return _ConsumerView({}, {}, self.wanted_topics, [])
        return self.consumer


class ClusterTopics(Struct, frozen=True):
    """One look at the cluster's metadata, at `at_ms`.

    `images` are by name, None for a name that no topic has. A topic whose state is uncertain is left out.
    `listed` are the names of all topics that exist, None if they were not requested.
    """

    images: Images
    listed: frozenset[str] | None
    at_ms: int


Content = TypeVar("Content")

_group_view = msgspec.json.Decoder(_GroupView)

Message = TopicMetadata | RegexResolved


class GroupTopics:
    """Reads records of the groups topic and looks at the cluster. Decides which groups get which record.

    Topics in `internal` match no pattern.
    """

    def __init__(self, internal: Collection[str] = ()) -> None:
        self._internal = frozenset(internal)
        self._groups: dict[str, _ConsumerView] = {}
        self._new: set[str] = set()  # groups whose views came since the last look
        self._seen: dict[str, UUID | None] = {}
        self._listed: frozenset[str] | None = None
        self._matchable: frozenset[str] = frozenset()
        self._matched: dict[str, RegexResolution] = {}  # by pattern, of the topics in `_matchable`
        self._metadata_sent: Resend[dict[str, TopicImage | None]] = Resend()
        self._regexes_sent: Resend[dict[str, list[str]]] = Resend(RESOLUTIONS_APART_S)

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Read a record of the groups topic. Raises one of `records.codec.UNREADABLE`."""
        group_id = (key or b"").decode()
        view = None if value is None else _group_view.decode(value).needs
        self._new.discard(group_id)
        if view is None:
            self._groups.pop(group_id, None)
            return
        self._groups[group_id] = view
        if view.is_waiting:
            self._new.add(group_id)

    @property
    def is_waiting(self) -> bool:
        """Whether a look is due at once: since the last one, a group has been given something to wait for."""
        return bool(self._new)

    def names(self) -> set[str]:
        """The topics that groups know by name, or wait for."""
        views = self._groups.values()
        return {name for view in views for names in (view.topics, view.unknown_topics) for name in names}

    def has_patterns(self) -> bool:
        """Whether a look has to list all topics of the cluster."""
        return any(view.patterns for view in self._groups.values())

    def see(self, cluster: ClusterTopics, now_s: float) -> list[Message]:
        """Return the records that are due after this look. The clock of `now_s` (seconds) never goes back.

        That a topic is gone or has another id counts when two looks in a row show it, because a broker may
        lag. A topic that is new to the group, and new partitions, count at once.
        """
        self._new.clear()
        metadata = dict(self._metadata(cluster.images))
        resolutions = dict(self._resolutions(cluster))
        self._metadata_sent.keep(metadata, now_s)
        self._regexes_sent.keep(resolutions, now_s)
        due: list[Message] = []
        for group_id in islice(self._due(metadata, resolutions, now_s), GROUPS_AT_ONCE):
            # Topics come first, so that the group knows them when the results come.
            if (topics := self._if_due(self._metadata_sent, group_id, metadata, now_s)) is not None:
                due.append(TopicMetadata(group_id=group_id, topics=topics))
            if (names := self._if_due(self._regexes_sent, group_id, resolutions, now_s)) is not None:
                due.append(self._resolved(group_id, names, cluster))
        self._seen = {n: None if image is None else image.id for n, image in cluster.images.items()}
        self._listed = cluster.listed
        return due

    def _metadata(self, images: Images) -> Iterator[tuple[str, dict[str, TopicImage | None]]]:
        """By group, the topics that it knows otherwise."""
        for group_id, view in self._groups.items():
            differing = (
                name
                for name in (*view.topics, *view.unknown_topics)
                if name in images and self._differs(name, view.topics.get(name), images[name], view)
            )
            if differences := {name: images[name] for name in islice(differing, TOPICS_AT_ONCE)}:
                yield group_id, differences

    def _differs(
        self, name: str, known: _Topic | None, image: TopicImage | None, view: _ConsumerView
    ) -> bool:
        """Whether the group needs this image of the topic."""
        if image is None:
            is_told = name in view.topics and known is None
            return not is_told and self._is_gone_for_two_looks(name)
        if known is None:
            return True
        if known.topic_id == image.id:
            return known.partitions < image.partitions
        return self._seen.get(name) == image.id

    def _is_gone_for_two_looks(self, name: str) -> bool:
        return name in self._seen and self._seen[name] is None

    def _resolutions(self, cluster: ClusterTopics) -> Iterator[tuple[str, dict[str, list[str]]]]:
        """By group, what each of its patterns matches, if that has changed for one of them."""
        if cluster.listed is None:
            return
        topics = {name: image for name in cluster.listed if (image := cluster.images.get(name)) is not None}
        if topics.keys() != self._matchable:
            self._matchable = frozenset(topics)
            self._matched.clear()
        for group_id, view in self._groups.items():
            names = {p: self._names(view, p, topics, cluster.listed) for p in view.patterns}
            if any(view.resolved_regexes.get(pattern) != matched for pattern, matched in names.items()):
                yield group_id, names
        in_use = {pattern for view in self._groups.values() for pattern in view.patterns}
        self._matched = {p: found for p, found in self._matched.items() if p in in_use}

    def _names(
        self, view: _ConsumerView, pattern: str, topics: Mapping[str, TopicImage], listed: frozenset[str]
    ) -> list[str]:
        """What the pattern matches, and of its last result the topics that may still exist: with an error, or
        absent from this look alone. A pattern that had a result and has an error now keeps it.
        """
        resolution = self._matched.get(pattern)
        if resolution is None:
            resolution = self._matched[pattern] = resolve(pattern, topics, 0, self._internal)
        known = view.resolved_regexes.get(pattern, [])
        doubtful = {
            name
            for name in known
            if name not in topics
            and view.topics.get(name) is not None
            and (name in listed or self._listed is None or name in self._listed)
        }
        kept = known if resolution.error is not None else ()
        return sorted({*doubtful, *resolution.topics, *(name for name in kept if name in topics)})

    def _resolved(self, group_id: str, names: dict[str, list[str]], cluster: ClusterTopics) -> RegexResolved:
        patterns = {
            pattern: RegexResolution(
                {name: self._image(self._groups[group_id], name, cluster.images) for name in matched},
                cluster.at_ms,
                None if matched else self._matched[pattern].error,
            )
            for pattern, matched in names.items()
        }
        return RegexResolved(group_id=group_id, patterns=patterns)

    def _image(self, view: _ConsumerView, name: str, images: Images) -> TopicImage:
        """The topic as the group has to know it after this look."""
        image, known = images.get(name), view.topics.get(name)
        if known is None or (image is not None and self._differs(name, known, image, view)):
            assert image is not None, f"{name} is matched, so the look shows it"
            return image
        return TopicImage(known.topic_id, known.partitions)

    def _due(
        self,
        metadata: dict[str, dict[str, TopicImage | None]],
        resolutions: dict[str, dict[str, list[str]]],
        now_s: float,
    ) -> Iterator[str]:
        """The groups with a record that is due."""
        for group_id in {**metadata, **resolutions}:
            topics, names = metadata.get(group_id), resolutions.get(group_id)
            if (topics is not None and self._metadata_sent.is_due(group_id, topics, now_s)) or (
                names is not None and self._regexes_sent.is_due(group_id, names, now_s)
            ):
                yield group_id

    @staticmethod
    def _if_due(
        resend: Resend[Content], group_id: str, contents: dict[str, Content], now_s: float
    ) -> Content | None:
        """The content of the group's record if it is due, which then is sent."""
        content = contents.get(group_id)
        if content is None or not resend.is_due(group_id, content, now_s):
            return None
        resend.sent(group_id, content, now_s)
        return content

    def not_told(self, messages: list[Message]) -> None:
        """These records could not be sent, so they are due at once."""
        for message in messages:
            if isinstance(message, TopicMetadata):
                self._metadata_sent.not_sent(message.group_id)
            else:
                self._regexes_sent.not_sent(message.group_id)
