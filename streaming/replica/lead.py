"""How far a replica is ahead of the query, and what follows from that."""

from typing import NamedTuple

# A replica that is further ahead answers nothing, so that clients feel that the query does not follow.
LEAD_MAX_S = 300.0
LEAD_MAX_BYTES = 256 * 1024 * 1024

_MIB = 1024 * 1024
_SILENCE = "then the replica answers nothing, and clients wait for the query"


class Lead(NamedTuple):
    """The seconds since the query last committed a batch, and the size of the early answers that wait for the
    query's.

    The sentences have no current figures, so they change only when what they say changes.
    """

    seconds: float = 0.0
    size_bytes: int = 0

    def why_silent(self) -> str:
        """Why the replica may not answer, "" if it may."""
        if self.seconds > LEAD_MAX_S:
            return f"the query has committed no batch for more than {LEAD_MAX_S:.0f} s"
        if self.size_bytes > LEAD_MAX_BYTES:
            return f"more than {LEAD_MAX_BYTES // _MIB} MiB of early answers wait for the query's"
        return ""

    def alarm(self) -> str | None:
        """What an operator has to know before the replica falls silent: beyond half of a bound."""
        if self.seconds > LEAD_MAX_S / 2:
            return (
                f"the query has committed no batch for more than {LEAD_MAX_S / 2:.0f} s. "
                f"The bound is {LEAD_MAX_S:.0f} s: {_SILENCE}"
            )
        if self.size_bytes > LEAD_MAX_BYTES / 2:
            return (
                f"more than {LEAD_MAX_BYTES // 2 // _MIB} MiB of early answers wait for the query's. "
                f"The bound is {LEAD_MAX_BYTES // _MIB} MiB: {_SILENCE}"
            )
        return None
