"""Claims, the records of the owner topic. A claim makes a coordinator the owner of the other topics.

The claim with the highest epoch is in force. If several claims have this epoch, the first one in the log is
in force. docs/decisions/0012-owner-of-the-topics.md has the reasons.
"""

from datetime import UTC, datetime  # noqa: TID251 - writes a time as text, and reads no clock
from operator import itemgetter

import msgspec
from msgspec import Struct

from kafka_why.contract.codec import UNREADABLE


class Claim(Struct, frozen=True, kw_only=True):
    """A record of the owner topic. The coordinator that appends it becomes the owner of the topics."""

    version: int = 1
    epoch: int  # greater than those of all earlier claims
    claim_id: str  # also the record's key
    owner_id: str  # id of the state in `folder`; a restart with the same state claims without waiting
    requests_topic_id: str
    host: str  # of the claiming process, as `pid` and `folder`
    pid: int
    folder: str
    since_ms: int  # time of the claim, by the claiming process's clock
    tick_interval_ms: int  # between the claiming process's clock records
    is_released: bool = False  # True if the coordinator has stopped cleanly
    checkpoint: str = ""  # location of the state if it is not in `folder`
    # With `checkpoint`: distinguishes folders with the same path on machines with the same name.
    place: str = ""

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(timespec="seconds")
        folder = f"folder {self.folder}" + (f", checkpoint {self.checkpoint}" if self.checkpoint else "")
        return f"process {self.pid} on {self.host}, {folder}, since {since}, epoch {self.epoch}"


class Claims:
    """The claims on an owner topic, as of the last applied record."""

    def __init__(self) -> None:
        # By key: the offset of the key's first record, and the claim.
        self._claims: dict[str, tuple[int, Claim]] = {}

    def apply(self, offset: int, key: bytes | None, value: bytes | None) -> bool:
        """Apply the next record of the topic. Return False if the record is not a claim."""
        claim_id = (key or b"").decode(errors="replace")
        if value is None:  # a tombstone
            self._claims.pop(claim_id, None)
            return True
        try:
            claim = msgspec.json.decode(value, type=Claim)
        except UNREADABLE:
            return False
        # A later record of the same claim does not change its place in the order of claims.
        first_offset, _ = self._claims.get(claim_id, (offset, claim))
        self._claims[claim_id] = (first_offset, claim)
        return True

    def in_force(self) -> Claim | None:
        """Return the claim in force, or None if the topic has no claim."""
        in_log_order = [claim for _, claim in sorted(self._claims.values(), key=itemgetter(0))]
        # Of equal epochs, `max` returns the first.
        return max(in_log_order, key=lambda claim: claim.epoch, default=None)

    def after(self, epoch: int) -> Claim | None:
        """Return the claim in force if its epoch is greater than `epoch`, else None."""
        in_force = self.in_force()
        return in_force if in_force is not None and in_force.epoch > epoch else None

    def ids(self) -> list[str]:
        """Return the ids of all claims without a tombstone."""
        return list(self._claims)
