"""What the judge finds wrong."""

from enum import StrEnum
from typing import NamedTuple


class Wrong(StrEnum):
    """The kinds of wrongs, in the words of the table."""

    LOST = "lost"
    DIFFERENT = "answered differently"
    EXPIRED = "wrongly expired"
    OFFSET = "offsets wrong"
    OWNERS = "two owners"


class Verdict(NamedTuple):
    """One wrong. `at_ms` is when, in the log's time."""

    wrong: Wrong
    at_ms: int
    group_id: str
    sentence: str
