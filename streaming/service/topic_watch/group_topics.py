"""The topics and patterns that consumer groups subscribe to, and the records that these groups need. No IO.

Nothing survives a restart: a group gets a record whenever its view on the groups topic does not match the
existing topics, and again later if it still does not. Groups of other types need nothing, except a classic
group that converts.

A poll compares only groups whose views or topics have changed, for at most POLL_MAX_S. The rest follow in the
next polls. A topic's image is its id and its number of partitions. The group knows a topic by the image in
its view.

A gateway that checks which topics its members may DESCRIBE resolves their patterns itself. It reports the
topics that remain, with a digest of all matches.
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
from streaming.service.topic_watch.offset_topics import GROUPS_AT_ONCE, TOPICS_AT_ONCE, Images, ResendSchedule
from streaming.service.topic_watch.pattern_matches import PatternMatches

# The time between two results for the patterns of one group, as in Kafka. Source: GroupMetadataManager,
# REGEX_BATCH_REFRESH_MIN_INTERVAL_MS.
RESOLUTIONS_APART_S = 10.0

# A poll compares groups and matches patterns for at most this time. The others wait for the next poll.
POLL_MAX_S = 1.0


class ClusterTopics(Struct, frozen=True):
    """The cluster's metadata at one poll."""

    # By name, None for a missing topic. A topic whose state is uncertain is left out.
    images: Images
    listed: frozenset[str] | None  # the names of all existing topics, None if not requested
    at_ms: int  # of the poll, by the wall clock
    internal: frozenset[str] = frozenset()  # topics that the brokers mark as internal


class _Result(Struct, frozen=True):
    """The topics that a pattern matches."""

    topics: list[str]
    # The digest of all matches, if members' gateways filter them. `topics` are then those that a gateway
    # reported.
    digest: str | None = None


Content = TypeVar("Content")

GroupUpdate = TopicMetadata | RegexResolved


class GroupTopics:
    """The topics and patterns of all groups, compared with the cluster.

    It decides which groups get which record. Topics in `internal`, and topics that brokers mark as internal,
    match no pattern.
    """

    def __init__(self, internal: Collection[str] = (), *, poll_max_s: float = POLL_MAX_S) -> None:
        self._poll_max_s = poll_max_s
        self._poll_until_s = 0.0  # the end of the current poll's time
        self._view_reader = GroupViews()
        self._groups: dict[str, GroupView] = {}  # the latest view of each group
        # By topic: the number of groups that know it by name, or wait for it.
        self._groups_per_topic: Counter[str] = Counter()
        self._groups_by_pattern: dict[str, set[str]] = {}
        # Groups in an order, as keys: those that wait for topics or patterns since their last view, those to
        # compare (the longest wait first), and those that needed a record when they were compared.
        self._waiting: dict[str, None] = {}
        self._unchecked: dict[str, None] = {}
        self._differing: dict[str, None] = {}
        self._is_complete = True  # the last poll had time for all patterns and groups
        # Of the last poll: its metadata (`ClusterTopics`), the topics' ids, and the topics that had changed.
        self._last_images: Images = {}
        self._last_listed: frozenset[str] | None = None
        self._last_ids: dict[str, UUID | None] = {}  # None for a missing topic
        self._last_changed: set[str] = set()
        self._matches = PatternMatches(frozenset(internal))
        self._metadata: dict[str, dict[str, TopicImage | None]] = {}  # topics to report, by group
        self._resolutions: dict[str, dict[str, _Result]] = {}  # pattern results to report, by group
        self._metadata_sent: ResendSchedule[dict[str, TopicImage | None]] = ResendSchedule()
        self._regexes_sent: ResendSchedule[dict[str, _Result]] = ResendSchedule(RESOLUTIONS_APART_S)

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Read a record of the groups topic. Raises one of `kafka_why.contract.codec.UNREADABLE`."""
        group_id = (key or b"").decode()
        view = None if value is None else self._view_reader.read(value)
        self._waiting.pop(group_id, None)
        self._forget(group_id, is_replaced=view is not None)
        if view is None:
            return
        self._groups[group_id] = view
        self._groups_per_topic.update(view.names)
        for pattern in view.patterns:
            self._groups_by_pattern.setdefault(pattern, set()).add(group_id)
        self._unchecked[group_id] = None
        if view.is_waiting:
            self._waiting[group_id] = None

    def _forget(self, group_id: str, *, is_replaced: bool) -> None:
        """Forget the group's view. If a new view replaces it, the group stays in line for its comparison."""
        old_view = self._groups.get(group_id)
        if old_view is None:
            return
        self._groups_per_topic.subtract(old_view.names)
        for pattern in old_view.patterns:
            groups = self._groups_by_pattern.get(pattern, set())
            groups.discard(group_id)
            if not groups:
                self._groups_by_pattern.pop(pattern, None)
        if not is_replaced:
            del self._groups[group_id]
            self._unchecked.pop(group_id, None)
            self._differing.pop(group_id, None)
            self._metadata.pop(group_id, None)
            self._resolutions.pop(group_id, None)

    @property
    def is_waiting(self) -> bool:
        """True if a poll is due at once, because a group waits, or the last poll had no time for all
        groups.
        """
        return bool(self._waiting) or not self._is_complete

    def names(self) -> set[str]:
        """Return the topics that groups know by name, or wait for."""
        self._groups_per_topic = +self._groups_per_topic  # drops the counts that are 0
        return set(self._groups_per_topic)

    def has_patterns(self) -> bool:
        """Return True if a poll has to list all topics of the cluster."""
        return bool(self._groups_by_pattern)

    def compare(self, cluster: ClusterTopics, now_s: float) -> list[GroupUpdate]:
        """Return the records that are due after this poll. `now_s` is of a monotonic clock.

        A deletion or a new id of a topic counts only when two polls in a row show it, because a broker may
        lag. A topic that is new to the group, and new partitions, count at once.
        """
        began_s = monotonic()
        self._mark_changed_groups(cluster)
        # The patterns get half of the time, so that some is left for the groups.
        self._poll_until_s = began_s + self._poll_max_s / 2
        are_matched = self._match_patterns(cluster)
        self._poll_until_s = began_s + self._poll_max_s
        due: list[GroupUpdate] = []
        groups = 0
        for group_id in self._compare_groups(cluster):
            if groups < GROUPS_AT_ONCE and (records := self._take_due_records(group_id, cluster, now_s)):
                due += records
                groups += 1
        self._is_complete = are_matched and not self._unchecked
        self._metadata_sent.keep(self._metadata, now_s)
        self._regexes_sent.keep(self._resolutions, now_s)
        self._last_images, self._last_listed = cluster.images, cluster.listed
        self._last_ids = {n: None if image is None else image.id for n, image in cluster.images.items()}
        return due

    def _mark_changed_groups(self, cluster: ClusterTopics) -> None:
        """Mark the groups with a topic that changed at this poll or at the last one. A change counts when two
        polls in a row show it, so groups are compared twice.
        """
        images, last = cluster.images, self._last_images
        changed = {name for name, image in images.items() if name not in last or last[name] != image}
        changed.update(name for name in last if name not in images)
        changed |= (cluster.listed or frozenset()) ^ (self._last_listed or frozenset())
        if cluster.listed is not None and self._last_listed is None:
            # The last poll had no list of topics. This one may lack topics that groups know, which counts
            # when the next poll shows it, too. So both polls compare all groups.
            changed.update(self._groups_per_topic)
        if recent := changed | self._last_changed:
            for group_id, view in self._groups.items():
                if not view.topics.keys().isdisjoint(recent) or not recent.isdisjoint(view.unknown_topics):
                    self._unchecked[group_id] = None
        self._last_changed = changed

    def _match_patterns(self, cluster: ClusterTopics) -> bool:
        """Match the patterns, those of waiting groups first. Return True if there was time for all."""
        if cluster.listed is None:
            return True
        listed = cluster.listed - cluster.internal
        topics = frozenset(name for name in listed if cluster.images.get(name) is not None)
        waiting = (p for group_id in self._waiting for p in self._groups[group_id].unresolved_regexes)
        patterns = (*waiting, *self._groups_by_pattern)
        changed, were_all_matched = self._matches.update(topics, patterns, self._has_time)
        for pattern in changed:
            self._unchecked.update(dict.fromkeys(sorted(self._groups_by_pattern[pattern])))
        return were_all_matched

    def _has_time(self) -> bool:
        return monotonic() <= self._poll_until_s

    def _compare_groups(self, cluster: ClusterTopics) -> Iterator[str]:
        """Compare the marked groups while there is time, and yield those that need a record.

        Waiting groups are compared first, and those that already needed a record last.
        """
        for group_id in list(dict.fromkeys((*self._waiting, *self._unchecked, *self._differing))):
            self._waiting.pop(group_id, None)
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
        """Return True unless a pattern of the group has to be matched in a later poll."""
        return cluster.listed is None or all(self._matches.of(p) is not None for p in view.patterns)

    def _differences(self, view: GroupView, images: Images) -> dict[str, TopicImage | None] | None:
        """Return the images that the group needs, by topic, or None if it needs none. The maximum is
        TOPICS_AT_ONCE.
        """
        known = view.topics
        differing = (
            name
            for name in view.names
            if name in images
            and (name not in known or known[name] != images[name])
            and self._needs_image(name, images[name], view)
        )
        return {name: images[name] for name in islice(differing, TOPICS_AT_ONCE)} or None

    def _needs_image(self, name: str, image: TopicImage | None, view: GroupView) -> bool:
        """Return True if the group needs this image. A deletion or a new id counts only if the last poll
        showed it, too.
        """
        known_image = view.topics.get(name)
        if image is None:
            knows_deletion = name in view.topics and known_image is None
            return not knows_deletion and self._was_missing(name)
        if known_image is None:
            return True
        if known_image.id == image.id:
            return known_image.partitions < image.partitions
        return self._last_ids.get(name) == image.id

    def _was_missing(self, name: str) -> bool:
        """Return True if the last poll showed that the topic does not exist."""
        return name in self._last_ids and self._last_ids[name] is None

    def _results(self, view: GroupView, cluster: ClusterTopics) -> dict[str, _Result] | None:
        """Return the matches of each of the group's patterns, or None if all are unchanged, or if a pattern
        is not matched yet.
        """
        if not view.patterns or not self._are_matched(view, cluster) or cluster.listed is None:
            return None
        results = {p: self._result(view, p, cluster, cluster.listed) for p in view.patterns}
        changed = (
            view.resolved_regexes.get(pattern) != result.topics
            or view.checked_regexes.get(pattern) != result.digest
            for pattern, result in results.items()
        )
        return results if any(changed) else None

    def _result(
        self, view: GroupView, pattern: str, cluster: ClusterTopics, listed: frozenset[str]
    ) -> _Result:
        """Return the pattern's result for the group. If members' gateways filter the matches, only topics
        that a gateway has reported remain.
        """
        gateway_digest = view.checked_regexes.get(pattern)
        if gateway_digest is None:
            return _Result(self._matching_names(view, pattern, cluster, listed))
        last_result = view.resolved_regexes.get(pattern, [])
        names = [name for name in last_result if self._may_exist(view, name, cluster.images)]
        digest = self._matches.digest_of(pattern)
        # If the gateway's digest is empty, a gateway has to check the pattern anyway.
        if digest is None or not gateway_digest or self._are_doubtful(names, pattern):
            digest = gateway_digest
        return _Result(names, digest)

    def _may_exist(self, view: GroupView, name: str, images: Images) -> bool:
        """Return False if this topic, which a gateway reported to the group, has certainly been deleted."""
        if images.get(name) is not None:
            return True
        # The coordinator may have fewer rights than the gateway. So a topic that it cannot see still exists
        # if the group knows it, unless two polls in a row have shown that it is missing.
        is_missing = name in images and self._was_missing(name)
        return view.topics.get(name) is not None and not is_missing

    def _are_doubtful(self, names: list[str], pattern: str) -> bool:
        """Return True if the pattern does not match one of these topics now, although the last poll may have
        listed it: the topic is absent only from this poll, or has an error.
        """
        matched = self._matches.of(pattern)
        matching_topics = [] if matched is None else matched.topics
        return any(
            self._last_listed is None or name in self._last_listed
            for name in set(names).difference(matching_topics)
        )

    def _matching_names(
        self, view: GroupView, pattern: str, cluster: ClusterTopics, listed: frozenset[str]
    ) -> list[str]:
        """Return the matches of the pattern, and those topics of its last result that may still exist.

        A pattern with an error keeps its last result.
        """
        matched = self._matches.of(pattern)
        assert matched is not None, "the patterns of the group are matched"
        last_result = view.resolved_regexes.get(pattern, [])
        if last_result == matched.topics and matched.error is None:
            return matched.topics
        existing = {name for name in last_result if name in listed and cluster.images.get(name) is not None}
        # These topics have an error in the metadata, or are absent only from this poll's list.
        doubtful = {
            name
            for name in last_result
            if name not in existing
            and view.topics.get(name) is not None
            and (name in listed or self._last_listed is None or name in self._last_listed)
        }
        if matched.error is not None:
            return sorted(doubtful | existing)
        return sorted(doubtful.union(matched.topics))

    def _regex_record(
        self, group_id: str, results: dict[str, _Result], cluster: ClusterTopics
    ) -> RegexResolved:
        view = self._groups[group_id]
        patterns = {
            pattern: RegexResolution(
                topics={name: self._image_to_report(view, name, cluster.images) for name in result.topics},
                at_ms=cluster.at_ms,
                error=None if result.topics else self._error_of(pattern),
                seen=result.digest or UNSET,
            )
            for pattern, result in results.items()
        }
        return RegexResolved(group_id=group_id, patterns=patterns)

    def _error_of(self, pattern: str) -> str | None:
        matched = self._matches.of(pattern)
        return None if matched is None else matched.error

    def _image_to_report(self, view: GroupView, name: str, images: Images) -> TopicImage:
        """Return the image to report to the group: the poll's if the group needs it, else the known one."""
        image, known_image = images.get(name), view.topics.get(name)
        if known_image is None or (image is not None and self._needs_image(name, image, view)):
            assert image is not None, f"{name} is matched, so the poll shows it"
            return image
        return known_image

    def _take_due_records(self, group_id: str, cluster: ClusterTopics, now_s: float) -> list[GroupUpdate]:
        """Return the group's records that are due, and count them as sent."""
        due: list[GroupUpdate] = []
        # Topics come first, so that the group knows them when the results come.
        if (topics := self._take_if_due(self._metadata_sent, group_id, self._metadata, now_s)) is not None:
            due.append(TopicMetadata(group_id=group_id, topics=topics))
        if (results := self._take_if_due(self._regexes_sent, group_id, self._resolutions, now_s)) is not None:
            due.append(self._regex_record(group_id, results, cluster))
        return due

    @staticmethod
    def _take_if_due(
        resend: ResendSchedule[Content], group_id: str, contents: dict[str, Content], now_s: float
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
