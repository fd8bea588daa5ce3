"""The kinds of wrongs."""

from enum import StrEnum


class Wrong(StrEnum):
    """The kinds of wrongs, in the words of the table."""

    LOST = "lost"
    DIFFERENT = "answered differently"
    EXPIRED = "wrongly expired"
    OFFSET = "offsets wrong"
    OWNERS = "two owners"
