"""Committed and pending offsets, and their changes."""

from enum import StrEnum

from msgspec import Struct

LogPosition = tuple[int, int]
"""The position of a request in its partition of the log: the offset of its record, and its index in the pack,
or 0. Positions compare in the log's order.
"""


NO_POSITION: LogPosition = (-1, 0)
"""The position of an offset whose request is unknown. It precedes every request."""


class Offset(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A committed offset of one partition, or an offset that is pending in a transaction."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    expire_at_ms: int | None  # None unless the client chose a retention time
    topic_id: bytes | None  # the topic's UUID, None if unknown; bytes decode in half the time
    position: LogPosition = NO_POSITION  # of the commit in the log


class OffsetChange(Struct, frozen=True):
    """The new committed offset of a partition, or None if the offset was removed."""

    topic: str
    partition: int
    offset: Offset | None


class MarkerOutcome(StrEnum):
    """The effect of a marker on offsets that are pending in a transaction of its producer."""

    COMMIT = "commit"  # the marker ends their transaction
    ABORT = "abort"  # the marker ends their transaction
    DROPPED = "dropped"  # their transaction ended without a marker, so it was not committed
    IGNORED = "ignored"  # the marker belongs to an earlier transaction
