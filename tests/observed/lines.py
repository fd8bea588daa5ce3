"""The lines of a report, and how far each can be trusted.

A line that is right counts as `docs/observe.md` has it: exact, or inferred. A line that the report leaves
open, or of which it says that it cannot know it, is unknown.
"""

from enum import StrEnum

from msgspec import Struct


class Source(StrEnum):
    """The source from which a report is made."""

    OBSERVE = "topics of `observe`"
    TOPIC = "topic"
    LOG = "log"
    BOTH = "topic and log"
    POLLING = "polling"
    COMPACTED = "compacted topic"
    COMPACTED_AND_LOG = "compacted topic and log"
    OURS = "our coordinator"

    @property
    def is_observed(self) -> bool:
        """Return True if the group is one of the cluster's own coordinator."""
        return self is not Source.OURS

    @property
    def reads_log(self) -> bool:
        """Return True if the broker's log is read."""
        return self in (Source.LOG, Source.BOTH, Source.COMPACTED_AND_LOG)

    @property
    def has_reasons(self) -> bool:
        """Return True if it has the reasons that the coordinator had."""
        return self.reads_log or not self.is_observed


class Class(StrEnum):
    """The correctness of a line."""

    EXACT = "exact"
    INFERRED = "inferred"
    UNKNOWN = "unknown"
    WRONG = "wrong"


class Line(StrEnum):
    """A statement of a report about a rebalance or a group."""

    TIME = "that there was a rebalance, and when"
    CAUSE = "cause"
    HOW_GONE = "whether a member left or expired"
    CLIENT = "client id, host, instance id of the cause"
    LAST_COMMIT = "last commit of a member that went"
    FORMED = "generation or epoch"
    MEMBERS = "members"
    ASSIGNOR = "assignor"
    BEGINNING = "how long members took to join"
    ASSIGNED = "when the assignment was there"
    MOVED = "which partitions or tasks moved, and to whom"
    WAITED = "what a member waited for, and from whom"
    IDLE = "how long partitions had no consumer"
    NEXT = "the rebalance that follows: at once, after a delay, probing"
    END = "state at the end"
    OFFSETS = "committed offsets"


class Verdict(Struct, frozen=True):
    """The verdict on one line of a report. `said` (by the report) and `happened` explain a wrong line."""

    action: str
    line: Line
    class_: Class
    said: str = ""
    happened: str = ""
