"""How a producer's transaction ended for offsets that are pending in it."""

from enum import StrEnum


class MarkerOutcome(StrEnum):
    """What a marker means for offsets that are pending in a transaction of its producer.

    COMMIT, ABORT: it is the marker of their transaction. DROPPED: their transaction was ended without a
    marker that counts for them, so it was not committed. IGNORED: it is an echo of an earlier transaction.
    """

    COMMIT = "commit"
    ABORT = "abort"
    DROPPED = "dropped"
    IGNORED = "ignored"
