"""The resolver of subscribed patterns for the gateway and the topic watcher. No IO. Patterns are RE2, as in
Kafka, which uses RE2/J: they match a topic's whole name, are case-sensitive, and have no look-arounds or back
references. Source: TopicRegexResolver.java, Utils.throwIfRegularExpressionIsInvalid.
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

# Clients choose the patterns, so memory and time are bounded. RE2's own limit of memory is 8 MiB for each
# pattern. One name of 200 letters then takes up to 2 s, because the time grows with the pattern's program.
_PATTERN_MAX_BYTES = 512 * 1024
_COMPILED_PATTERNS = 128
MATCHING_MAX_S = 2.0

_DIGEST_BYTES = 16


class MatchingTooSlow(re2.error):  # type: ignore[misc]
    """Matching the pattern to this cluster's topics takes too long."""


def resolve(
    pattern: str, topics: Mapping[str, TopicImage], at_ms: int, internal: Collection[str] = ()
) -> RegexResolution:
    """Return the topics that the pattern matches, or an error.

    A pattern has an error if it is not RE2, or takes longer than `MATCHING_MAX_S`. `topics` are the topics of
    the cluster, read at `at_ms`. Kafka's internal topics and the topics in `internal` are left out (row RX7).
    Kafka itself matches them, so a consumer of `.*` reads `__consumer_offsets`.
    """
    try:
        matched = matching(pattern, topics, internal)
    except re2.error as error:
        return RegexResolution(at_ms=at_ms, error=error_text(error))
    return RegexResolution({name: topics[name] for name in matched}, at_ms)


def matching(pattern: str, topics: Iterable[str], internal: Collection[str] = ()) -> list[str]:
    """Return the sorted names that the pattern matches. Raises re2.error, and its subclass
    MatchingTooSlow.
    """
    expression = compiled(pattern)
    until_s = monotonic() + MATCHING_MAX_S
    matched = []
    for name in topics:
        if name not in KAFKAS_INTERNAL_TOPICS and name not in internal and expression.fullmatch(name):
            matched.append(name)
        if monotonic() > until_s:
            raise MatchingTooSlow(f"it takes longer than {MATCHING_MAX_S:g} s to match the topics")
    return sorted(matched)


def digest(topics: Iterable[str]) -> str:
    """Return the digest of the sorted names of the topics that a pattern matches.

    By the digest a group notices new topics, even those that it may not DESCRIBE.
    """
    return blake2b("\n".join(topics).encode(), digest_size=_DIGEST_BYTES).hexdigest()


@lru_cache(_COMPILED_PATTERNS)
def compiled(pattern: str) -> Any:
    """Return the compiled pattern. Raises re2.error."""
    options = re2.Options()
    options.max_mem = _PATTERN_MAX_BYTES
    options.log_errors = False  # the caller gets the error; RE2 would print it to stderr as well
    return re2.compile(pattern, options)


def error_text(error: Exception) -> str:
    """Return RE2's error text for a pattern without a result."""
    text = error.args[0] if error.args else str(error)
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
