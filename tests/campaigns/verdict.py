"""A wrong that a judge finds. Imports nothing of the project."""

from enum import StrEnum
from typing import NamedTuple


class Verdict(NamedTuple):
    """One wrong: its kind, when it came by the campaign's own clock, and the group, record or partition."""

    wrong: StrEnum
    at: int
    place: str
    sentence: str
