"""The topics that patterns match, cached from one poll of the cluster's topics to the next. No IO."""

from collections.abc import Callable, Collection, Iterable

import re2
from msgspec import Struct

from records.topic_patterns import digest, error_text, matching


class Matched(Struct, frozen=True):
    """The sorted topics that a pattern matches, or the error of a pattern without a result."""

    topics: list[str]
    error: str | None = None


class _Cached(Struct, frozen=True):
    """The last matches of a pattern."""

    matched: Matched
    topics: frozenset[str]  # the topics that the pattern was matched against


class PatternMatches:
    """The matches of patterns among the topics of the last poll.

    Topics in `internal` and Kafka's internal topics match no pattern. A pattern that many groups have is
    matched once, and then only with new topics. A cluster with 10,000 topics and 1,000 patterns needs 10
    million matches at first, and 1,000 for each new topic.
    """

    def __init__(self, internal: Collection[str] = ()) -> None:
        self._internal = internal
        self._topics: frozenset[str] = frozenset()
        self._cached: dict[str, _Cached] = {}  # by pattern
        # By pattern: the digest of its matches, and the matches that it was computed from.
        self._digests: dict[str, tuple[Matched, str]] = {}
        # The topics added and removed since an earlier poll, by that poll's topics. There are few entries,
        # because patterns were matched at few different polls.
        self._differences: dict[frozenset[str], tuple[frozenset[str], frozenset[str]]] = {}

    def update(
        self, topics: frozenset[str], patterns: Iterable[str], has_time: Callable[[], bool]
    ) -> tuple[set[str], bool]:
        """Match the patterns, in this order, against the topics, and forget other patterns.

        Return the patterns whose matches have changed, and True if all patterns were matched. The first
        pattern is always matched, the others only while `has_time` returns True.
        """
        if topics != self._topics:  # an equal set must not replace it, because `of` compares by identity
            self._topics = topics
        wanted = list(dict.fromkeys(patterns))
        self._cached = {pattern: self._cached[pattern] for pattern in wanted if pattern in self._cached}
        self._digests = {p: cached for p, cached in self._digests.items() if p in self._cached}
        self._differences.clear()
        unmatched = [pattern for pattern in wanted if self.of(pattern) is None]
        changed: set[str] = set()
        for number, pattern in enumerate(unmatched):
            is_first = number == 0
            if not is_first and not has_time():
                return changed, False
            cached = self._cached.get(pattern)
            matched = self._match(pattern, cached)
            self._cached[pattern] = _Cached(matched, self._topics)
            if cached is None or matched != cached.matched:
                changed.add(pattern)
        return changed, True

    def of(self, pattern: str) -> Matched | None:
        """Return the matches of the pattern among the topics, or None if there was no time for it yet."""
        cached = self._cached.get(pattern)
        return cached.matched if cached is not None and cached.topics is self._topics else None

    def digest_of(self, pattern: str) -> str | None:
        """Return the digest of the topics that the pattern matches, or None if the pattern is not matched yet
        or has an error.
        """
        matched = self.of(pattern)
        if matched is None or matched.error is not None:
            return None
        cached = self._digests.get(pattern)
        if cached is None or cached[0] is not matched:
            cached = self._digests[pattern] = matched, digest(matched.topics)
        return cached[1]

    def _match(self, pattern: str, cached: _Cached | None) -> Matched:
        """Match the pattern against the topics that are new since `cached`, or against all if that has no
        matches.
        """
        try:
            if cached is None or cached.matched.error is not None:
                return Matched(matching(pattern, self._topics, self._internal))
            added_topics, removed_topics = self._difference_to(cached.topics)
            added = matching(pattern, added_topics, self._internal)
            removed = removed_topics.intersection(cached.matched.topics)
        except re2.error as error:
            return Matched([], error_text(error))
        if not added and not removed:
            return cached.matched
        return Matched(sorted({*cached.matched.topics, *added} - removed))

    def _difference_to(self, earlier: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Return the topics added and removed since `earlier`."""
        difference = self._differences.get(earlier)
        if difference is None:
            difference = self._differences[earlier] = self._topics - earlier, earlier - self._topics
        return difference
