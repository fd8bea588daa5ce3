"""Claims, the records of the owner topic. A claim makes a coordinator the owner of the other topics.

The claim with the highest epoch is in force. If several claims have this epoch, the first one in the log is
in force. docs/decisions/0012-owner-of-the-topics.md has the reasons.
"""

from datetime import UTC, datetime  # noqa: TID251 - writes a time as text, and reads no clock

import msgspec
from msgspec import Struct

from kafka_why.contract.codec import UNREADABLE


class Claim(Struct, frozen=True, kw_only=True):
    """A record of the owner topic, with which a coordinator becomes the owner of the topics."""

    version: int = 1
    epoch: int
    claim_id: str  # also the record's key
    owner_id: str  # of the state in `folder`; a restart on the same folder need not wait for its claim
    requests_topic_id: str
    host: str
    pid: int
    folder: str
    since_ms: int  # time of the claim, by the claiming process's clock
    tick_interval_ms: int  # between the claiming process's clock records
    is_released: bool = False  # the coordinator has stopped cleanly
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
        # By key, the claim and the offset of its first record.
        self._claims: dict[str, tuple[int, Claim]] = {}

    def apply(self, offset: int, key: bytes | None, value: bytes | None) -> bool:
        """Apply the next record of the topic. Return False if the record is not a claim."""
        name = (key or b"").decode(errors="replace")
        if value is None:
            self._claims.pop(name, None)
            return True
        try:
            claim = msgspec.json.decode(value, type=Claim)
        except UNREADABLE:
            return False
        first, _ = self._claims.get(name, (offset, claim))
        self._claims[name] = (first, claim)
        return True

    def in_force(self) -> Claim | None:
        """Return the claim in force, or None if the topic has no claim."""
        claims = sorted(self._claims.values(), key=lambda item: (-item[1].epoch, item[0]))
        return claims[0][1] if claims else None

    def after(self, epoch: int) -> Claim | None:
        """Return the claim in force if its epoch is greater than `epoch`, else None."""
        in_force = self.in_force()
        return in_force if in_force is not None and in_force.epoch > epoch else None

    def ids(self) -> list[str]:
        """Return the ids of all claims without a tombstone."""
        return list(self._claims)
