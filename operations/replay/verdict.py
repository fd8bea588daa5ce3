"""The verdict on a recording: the numbers of compared records, and the differences."""

from enum import StrEnum

from msgspec import Struct

from operations.replay.starts import ReplayStart
from operations.replay.topic_contents import RecordKind


class DifferenceKind(StrEnum):
    """The kinds of differences between the topics and the replay."""

    MISSING = "missing: the replay produces it, but it is not on the topics"
    UNEXPECTED = "unexpected: it is on the topics, but the replay does not produce it"
    CHANGED = "changed: its bytes differ from those that the replay produces"
    TWICE = "twice: the topics have two copies with different bytes"
    MISPLACED = "misplaced: the replay writes it to another partition"
    OUT_OF_ORDER = "out of order: a later record of its group precedes it"
    UNREADABLE = "unreadable: it is not a record of a coordinator"


class ReplayDifference(Struct, frozen=True, kw_only=True):
    """A difference between the topics and the replay. `name` identifies the record.

    `entry` is the request or deadline that produces the record. `expected` and `found` are the two records,
    and `place` is the <partition>-<offset> of `found`. Each is None if it is absent.
    """

    what: RecordKind
    how: DifferenceKind
    group_id: str
    name: str
    entry: str | None = None
    expected: str | None = None
    found: str | None = None
    place: str | None = None


class ComparedCounts(Struct, kw_only=True):
    """The numbers of a group's compared records, by type. `entries` counts the steps of the replay.

    `gone` counts expected records that retention may have deleted. `open` counts expected records that the
    last committed batch did not have to write yet.
    """

    entries: int = 0
    answers: int = 0
    early: int = 0
    history: int = 0
    letters: int = 0
    views: int = 0
    gone: int = 0
    open: int = 0


class ReplayVerdict(Struct, kw_only=True):
    """The verdict on all groups of a recording.

    `starts` has the position from which a group can be judged, if that is not the beginning. `differences`
    has the first differences, and `count` the number of all. `duplicates` counts second copies with the same
    bytes, `late` requests applied after a later deadline (see `Replay`), `unjudged` records before a group's
    start, and `skipped` early answers to requests that were skipped later.
    """

    groups: dict[str, ComparedCounts]
    starts: dict[str, ReplayStart]
    differences: list[ReplayDifference]
    count: int
    by_kind: dict[str, int]
    duplicates: int
    late: int
    unjudged: int
    skipped: int = 0

    @property
    def is_identical(self) -> bool:
        return not self.count

    def total(self, name: str) -> int:
        """Return the sum of one of the counts over all groups."""
        return sum(getattr(counts, name) for counts in self.groups.values())
