"""The resolver of subscribed patterns for the gateway, and for the topic watcher, which sends groups the
metadata of topics. No IO. Patterns are RE2, as in Kafka, which uses RE2/J: they match a topic's whole name,
are case-sensitive, and have no look-arounds or back references. Source: TopicRegexResolver.java,
Utils.throwIfRegularExpressionIsInvalid.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from time import monotonic
from typing import Any

import re2

from kafka_why.contract.kafka.requests import RegexResolution
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.layout import KAFKAS_INTERNAL_TOPICS

# Clients choose the patterns, so memory and time are bounded. RE2's own memory limit, 8 MiB for each pattern,
# is too high: one name of 200 letters takes up to 2 s, because the time grows with the compiled pattern.
_PATTERN_MAX_BYTES = 512 * 1024  # RE2's limit on the memory of one compiled pattern
_CACHED_PATTERNS_MAX = 128
MATCHING_MAX_S = 2.0

_DIGEST_BYTES = 16


class MatchingTooSlow(re2.error):  # type: ignore[misc]
    """Matching the pattern to this cluster's topics takes longer than `MATCHING_MAX_S`."""


def resolve(
    pattern: str, topics: Mapping[str, TopicImage], at_ms: int, internal: Collection[str] = ()
) -> RegexResolution:
    """Return the topics that the pattern matches, or an error.

    A pattern has an error if it is not RE2, or takes longer than `MATCHING_MAX_S`. `topics` are the topics of
    the cluster, read at `at_ms`. Kafka's internal topics and the topics in `internal` are left out (row RX7
    of docs/rules-consumer.md). Kafka itself matches them, so a consumer of `.*` reads `__consumer_offsets`.
    """
    try:
        matched = matching(pattern, topics, internal)
    except re2.error as error:
        return RegexResolution(at_ms=at_ms, error=error_text(error))
    return RegexResolution({name: topics[name] for name in matched}, at_ms)


def matching(pattern: str, topics: Iterable[str], internal: Collection[str] = ()) -> list[str]:
    """Return the sorted names that the pattern matches, except internal ones. Raises re2.error, and its
    subclass MatchingTooSlow.
    """
    expression = compiled(pattern)
    deadline_s = monotonic() + MATCHING_MAX_S
    matched = []
    for name in topics:
        if name not in KAFKAS_INTERNAL_TOPICS and name not in internal and expression.fullmatch(name):
            matched.append(name)
        if monotonic() > deadline_s:
            raise MatchingTooSlow(f"it takes longer than {MATCHING_MAX_S:g} s to match the topics")
    return sorted(matched)


def digest(topics: Iterable[str]) -> str:
    """Return the digest of the topics that a pattern matches. `topics` are their names, sorted.

    By a changed digest a group sees that the matches have changed, even among topics that its members may not
    DESCRIBE.
    """
    return blake2b("\n".join(topics).encode(), digest_size=_DIGEST_BYTES).hexdigest()


@lru_cache(_CACHED_PATTERNS_MAX)
def compiled(pattern: str) -> Any:
    """Return the compiled pattern. Raises re2.error."""
    options = re2.Options()
    options.max_mem = _PATTERN_MAX_BYTES
    options.log_errors = False  # the caller gets the error; RE2 would print it to stderr as well
    return re2.compile(pattern, options)


def error_text(error: Exception) -> str:
    """Return the text of RE2's error for a pattern, decoded if it is bytes."""
    text = error.args[0] if error.args else str(error)
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
