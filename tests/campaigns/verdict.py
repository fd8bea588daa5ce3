"""A violation that a judge finds. Imports nothing of the project."""

from enum import StrEnum
from typing import NamedTuple


class Verdict(NamedTuple):
    """A violation: its kind, its time by the campaign's own clock, and the group, record or partition."""

    violation: StrEnum
    at: int
    place: str
    sentence: str
