"""The topics and patterns that consumer groups subscribe to, and the records that these groups need. No IO.

Nothing survives a restart: a group gets a record whenever its view on the groups topic does not match the
existing topics, and again later if it still does not. Groups of other types need nothing, except a classic
group that converts.

A poll compares only groups whose views or topics have changed, for at most POLL_MAX_S. The rest follow in the
next polls.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from time import monotonic
from typing import TypeVar
from uuid import UUID

from msgspec import UNSET, Struct

from kafka_why.contract.kafka.requests import RegexResolution, RegexResolved, TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImage
from streaming.service.topic_watch.group_views import GroupView, GroupViews
from streaming.service.topic_watch.offset_topics import GROUPS_AT_ONCE, TOPICS_AT_ONCE, Images, Resend
from streaming.service.topic_watch.pattern_matches import PatternMatches

# The time between two results for the patterns of one group, as in Kafka. Source: GroupMetadataManager,
# REGEX_BATCH_REFRESH_MIN_INTERVAL_MS.
RESOLUTIONS_APART_S = 10.0

# A poll compares groups and matches patterns for at most this time. The others wait for the next poll.
POLL_MAX_S = 1.0


class ClusterTopics(Struct, frozen=True):
    """The cluster's metadata at one poll, at `at_ms`."""

    # By name, None for a missing topic. A topic whose state is uncertain is left out.
    images: Images
    listed: frozenset[str] | None  # the names of all existing topics, None if not requested
    at_ms: int
    internal: frozenset[str] = frozenset()  # topics that the brokers mark as internal


class _Result(Struct, frozen=True):
    """The topics that a pattern matches."""

    topics: list[str]
    # The digest of all matches, if members' gateways filter them. `topics` are then those that a gateway
    # reported.
    seen: str | None = None


Content = TypeVar("Content")

GroupUpdate = TopicMetadata | RegexResolved


class GroupTopics:
    """The topics and patterns of all groups, compared with the cluster.

    It decides which groups get which record. Topics in `internal`, and those that brokers mark so, match no
    pattern.
    """

    def __init__(self, internal: Collection[str] = (), *, poll_max_s: float = POLL_MAX_S) -> None:
        self._poll_max_s = poll_max_s
        self._until_s = 0.0
        self._views = GroupViews()
        self._groups: dict[str, GroupView] = {}
        self._names: Counter[str] = Counter()  # how many groups know a topic or wait for it
        self._patterns: dict[str, set[str]] = {}  # the groups that have a pattern
        self._new: dict[str, None] = {}  # groups with something new to wait for
        self._unchecked: dict[str, None] = {}  # groups to compare, those that wait longest first
        self._differing: dict[str, None] = {}  # groups that needed a record when they were compared
        self._is_complete = True
        self._images: Images = {}
        self._seen: dict[str, UUID | None] = {}
        self._listed: frozenset[str] | None = None
        self._changed: set[str] = set()  # topics that changed between the last two polls
        self._matches = PatternMatches(frozenset(internal))
        self._metadata: dict[str, dict[str, TopicImage | None]] = {}  # topics to report, by group
        self._resolutions: dict[str, dict[str, _Result]] = {}  # pattern results to report, by group
        self._metadata_sent: Resend[dict[str, TopicImage | None]] = Resend()
        self._regexes_sent: Resend[dict[str, _Result]] = Resend(RESOLUTIONS_APART_S)

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Read a record of the groups topic. Raises one of `kafka_why.contract.codec.UNREADABLE`."""
        group_id = (key or b"").decode()
        view = None if value is None else self._views.read(value)
        self._new.pop(group_id, None)
        self._forget(group_id, keeps_place=view is not None)
        if view is None:
            return
        self._groups[group_id] = view
        self._names.update(view.names)
        for pattern in view.patterns:
            self._patterns.setdefault(pattern, set()).add(group_id)
        self._unchecked[group_id] = None
        if view.is_waiting:
            self._new[group_id] = None

    def _forget(self, group_id: str, *, keeps_place: bool) -> None:
        """Forget the group's view.

        With `keeps_place` a new view replaces it, and the group stays in line for its comparison.
        """
        before = self._groups.get(group_id)
        if before is None:
            return
        self._names.subtract(before.names)
        for pattern in before.patterns:
            groups = self._patterns.get(pattern, set())
            groups.discard(group_id)
            if not groups:
                self._patterns.pop(pattern, None)
        if not keeps_place:
            del self._groups[group_id]
            self._unchecked.pop(group_id, None)
            self._differing.pop(group_id, None)
            self._metadata.pop(group_id, None)
            self._resolutions.pop(group_id, None)

    @property
    def is_waiting(self) -> bool:
        """True if a poll is due at once.

        A group has something new to wait for, or the last poll had no time for all groups.
        """
        return bool(self._new) or not self._is_complete

    def names(self) -> set[str]:
        """Return the topics that groups know by name, or wait for."""
        self._names = +self._names
        return set(self._names)

    def has_patterns(self) -> bool:
        """Return True if a poll has to list all topics of the cluster."""
        return bool(self._patterns)

    def compare(self, cluster: ClusterTopics, now_s: float) -> list[GroupUpdate]:
        """Return the records that are due after this poll. `now_s` is of a monotonic clock.

        A deletion or a new id of a topic counts only when two polls in a row show it, because a broker may
        lag. A topic that is new to the group, and new partitions, count at once.
        """
        began_s = monotonic()
        self._note_changes(cluster)
        self._until_s = began_s + self._poll_max_s / 2
        are_matched = self._match(cluster)
        self._until_s = began_s + self._poll_max_s
        due: list[GroupUpdate] = []
        groups = 0
        for group_id in self._compare_groups(cluster):
            if groups < GROUPS_AT_ONCE and (records := self._due(group_id, cluster, now_s)):
                due += records
                groups += 1
        self._is_complete = are_matched and not self._unchecked
        self._metadata_sent.keep(self._metadata, now_s)
        self._regexes_sent.keep(self._resolutions, now_s)
        self._images, self._listed = cluster.images, cluster.listed
        self._seen = {n: None if image is None else image.id for n, image in cluster.images.items()}
        return due

    def _note_changes(self, cluster: ClusterTopics) -> None:
        """Mark the groups with a topic that changed since the last poll, or between the last two."""
        images, before = cluster.images, self._images
        changed = {name for name, image in images.items() if name not in before or before[name] != image}
        changed.update(name for name in before if name not in images)
        changed |= (cluster.listed or frozenset()) ^ (self._listed or frozenset())
        if cluster.listed is not None and self._listed is None:
            changed.update(self._names)
        # A change counts when two polls in a row show it, so groups are compared twice.
        if recent := changed | self._changed:
            for group_id, view in self._groups.items():
                if not view.topics.keys().isdisjoint(recent) or not recent.isdisjoint(view.unknown_topics):
                    self._unchecked[group_id] = None
        self._changed = changed

    def _match(self, cluster: ClusterTopics) -> bool:
        """Match the patterns, those of waiting groups first. Return True if there was time for all."""
        if cluster.listed is None:
            return True
        listed = cluster.listed - cluster.internal
        topics = frozenset(name for name in listed if cluster.images.get(name) is not None)
        waiting = (pattern for group_id in self._new for pattern in self._groups[group_id].unresolved_regexes)
        changed, are_all = self._matches.update(topics, (*waiting, *self._patterns), self._has_time)
        for pattern in changed:
            self._unchecked.update(dict.fromkeys(sorted(self._patterns[pattern])))
        return are_all

    def _has_time(self) -> bool:
        return monotonic() <= self._until_s

    def _compare_groups(self, cluster: ClusterTopics) -> Iterator[str]:
        """Compare the marked groups while there is time, and yield those that need a record.

        Waiting groups are compared first, and those that already needed a record last.
        """
        for group_id in list(dict.fromkeys((*self._new, *self._unchecked, *self._differing))):
            self._new.pop(group_id, None)
            self._unchecked.pop(group_id, None)
            self._differing.pop(group_id, None)
            if self._compare_group(group_id, cluster):
                self._differing[group_id] = None
                yield group_id
            if not self._has_time():
                return

    def _compare_group(self, group_id: str, cluster: ClusterTopics) -> bool:
        """Store the records that the group needs. Return True if the group has to be compared again."""
        view = self._groups[group_id]
        differences = self._differences(view, cluster.images)
        results = self._results(view, cluster)
        _set_or_remove(self._metadata, group_id, differences)
        _set_or_remove(self._resolutions, group_id, results)
        return bool(differences or results or not self._are_matched(view, cluster))

    def _are_matched(self, view: GroupView, cluster: ClusterTopics) -> bool:
        return cluster.listed is None or all(self._matches.of(p) is not None for p in view.patterns)

    def _differences(self, view: GroupView, images: Images) -> dict[str, TopicImage | None] | None:
        """Return the topics whose images differ from those that the group knows, or None."""
        topics = view.topics
        differing = (
            name
            for name in view.names
            if name in images
            and (name not in topics or topics[name] != images[name])
            and self._needs_image(name, images[name], view)
        )
        return {name: images[name] for name in islice(differing, TOPICS_AT_ONCE)} or None

    def _needs_image(self, name: str, image: TopicImage | None, view: GroupView) -> bool:
        known = view.topics.get(name)
        if image is None:
            knows_it = name in view.topics and known is None
            return not knows_it and self._was_missing(name)
        if known is None:
            return True
        if known.id == image.id:
            return known.partitions < image.partitions
        return self._seen.get(name) == image.id

    def _was_missing(self, name: str) -> bool:
        return name in self._seen and self._seen[name] is None

    def _results(self, view: GroupView, cluster: ClusterTopics) -> dict[str, _Result] | None:
        """Return the matches of each of the group's patterns.

        None if none have changed or some are not known yet.
        """
        if not view.patterns or not self._are_matched(view, cluster) or cluster.listed is None:
            return None
        results = {p: self._result(view, p, cluster, cluster.listed) for p in view.patterns}
        changed = (
            view.resolved_regexes.get(pattern) != result.topics
            or view.checked_regexes.get(pattern) != result.seen
            for pattern, result in results.items()
        )
        return results if any(changed) else None

    def _result(
        self, view: GroupView, pattern: str, cluster: ClusterTopics, listed: frozenset[str]
    ) -> _Result:
        gateway_digest = view.checked_regexes.get(pattern)
        if gateway_digest is None:
            return _Result(self._matching_names(view, pattern, cluster, listed))
        known = view.resolved_regexes.get(pattern, [])
        names = [name for name in known if self._may_exist(view, name, cluster.images)]
        seen = self._matches.digest_of(pattern)
        # A group without a digest needs the result of a poll anyway.
        if seen is None or not gateway_digest or self._are_doubtful(names, pattern):
            seen = gateway_digest
        return _Result(names, seen)

    def _may_exist(self, view: GroupView, name: str, images: Images) -> bool:
        """Return True if the group may keep this topic, which a gateway reported."""
        if images.get(name) is not None:
            return True
        # The coordinator may have fewer rights than the gateway, so an invisible topic exists unless the
        # brokers report otherwise.
        is_gone = name in images and self._was_missing(name)
        return view.topics.get(name) is not None and not is_gone

    def _are_doubtful(self, names: list[str], pattern: str) -> bool:
        """Return True if one of these topics is absent only from this poll, or has an error."""
        matched = self._matches.of(pattern)
        absent = set(names).difference(() if matched is None else matched.topics)
        return any(self._listed is None or name in self._listed for name in absent)

    def _matching_names(
        self, view: GroupView, pattern: str, cluster: ClusterTopics, listed: frozenset[str]
    ) -> list[str]:
        """Return the matches of the pattern, and those topics of its last result that may still exist.

        A pattern with an error keeps its last result.
        """
        matched = self._matches.of(pattern)
        assert matched is not None, "the patterns of the group are matched"
        known = view.resolved_regexes.get(pattern, [])
        if known == matched.topics and matched.error is None:
            return matched.topics
        images = cluster.images
        # These topics have an error, or are absent only from this poll.
        doubtful = {
            name
            for name in known
            if (name not in listed or images.get(name) is None)
            and view.topics.get(name) is not None
            and (name in listed or self._listed is None or name in self._listed)
        }
        kept = known if matched.error is not None else ()
        there = (name for name in kept if name in listed and images.get(name) is not None)
        return sorted({*doubtful, *matched.topics, *there})

    def _resolved(self, group_id: str, results: dict[str, _Result], cluster: ClusterTopics) -> RegexResolved:
        view = self._groups[group_id]
        patterns = {
            pattern: RegexResolution(
                {name: self._image_to_report(view, name, cluster.images) for name in result.topics},
                cluster.at_ms,
                None if result.topics else self._error_of(pattern),
                result.seen or UNSET,
            )
            for pattern, result in results.items()
        }
        return RegexResolved(group_id=group_id, patterns=patterns)

    def _error_of(self, pattern: str) -> str | None:
        matched = self._matches.of(pattern)
        return None if matched is None else matched.error

    def _image_to_report(self, view: GroupView, name: str, images: Images) -> TopicImage:
        """Return the topic to report to the group after this poll."""
        image, known = images.get(name), view.topics.get(name)
        if known is None or (image is not None and self._needs_image(name, image, view)):
            assert image is not None, f"{name} is matched, so the poll shows it"
            return image
        return known

    def _due(self, group_id: str, cluster: ClusterTopics, now_s: float) -> list[GroupUpdate]:
        due: list[GroupUpdate] = []
        # Topics come first, so that the group knows them when the results come.
        if (topics := self._take_if_due(self._metadata_sent, group_id, self._metadata, now_s)) is not None:
            due.append(TopicMetadata(group_id=group_id, topics=topics))
        if (results := self._take_if_due(self._regexes_sent, group_id, self._resolutions, now_s)) is not None:
            due.append(self._resolved(group_id, results, cluster))
        return due

    @staticmethod
    def _take_if_due(
        resend: Resend[Content], group_id: str, contents: dict[str, Content], now_s: float
    ) -> Content | None:
        """Return the content of the group's record if it is due, and count it as sent."""
        content = contents.get(group_id)
        if content is None or not resend.is_due(group_id, content, now_s):
            return None
        resend.sent(group_id, content, now_s)
        return content

    def not_sent(self, messages: list[GroupUpdate]) -> None:
        """Make these records due at once, because they could not be sent."""
        for message in messages:
            if isinstance(message, TopicMetadata):
                self._metadata_sent.not_sent(message.group_id)
            else:
                self._regexes_sent.not_sent(message.group_id)


def _set_or_remove(contents: dict[str, Content], group_id: str, content: Content | None) -> None:
    if content is None:
        contents.pop(group_id, None)
    else:
        contents[group_id] = content
