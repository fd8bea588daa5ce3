"""What the share coordinator answers for a partition. Row SI10."""

from collections.abc import Collection, Mapping

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.wording import listed

RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors that pass. The task stays open, and whoever carries it out tries again."""

_CODES = frozenset(ErrorCode)

Numbers = dict[str, list[int]]
"""Partitions by topic name."""

Ended = dict[bytes, dict[int, int]]
"""Error codes of partitions whose tasks have ended, by topic id."""


def error_of(code: int) -> ErrorCode:
    """Return the error of the code, UNKNOWN_SERVER_ERROR if it is none that the coordinator answers with."""
    return ErrorCode(code) if code in _CODES else ErrorCode.UNKNOWN_SERVER_ERROR


def ordered(partitions: Mapping[str, Collection[int]]) -> Numbers:
    """Return the partitions sorted, as the history has them."""
    return {name: sorted(numbers) for name, numbers in sorted(partitions.items())}


def in_words(partitions: Mapping[str, Collection[int]]) -> str:
    """Return partitions by topic name as `topic-number`."""
    texts = [f"{name}-{number}" for name, numbers in ordered(partitions).items() for number in numbers]
    return listed(texts, "partition")
