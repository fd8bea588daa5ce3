"""The kinds of violations."""

from enum import StrEnum


class Violation(StrEnum):
    """The kinds of violations, in the words of the table."""

    LOST = "lost"
    DIFFERENT = "answered differently"
    EXPIRED = "wrongly expired"
    OFFSET = "offsets wrong"
    OWNERS = "two owners"
