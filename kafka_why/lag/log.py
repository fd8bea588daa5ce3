"""A partition's name, and the bounds of its log."""

from dataclasses import dataclass
from typing import TypeAlias

Partition: TypeAlias = tuple[str, int]
"""A topic, and a partition's number."""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The first offset of a partition that is still in the log, and the offset its next record will get."""

    earliest: int
    latest: int
