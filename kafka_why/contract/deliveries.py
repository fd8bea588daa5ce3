"""Records of the telemetry topic about share groups: what gateways counted in a minute. See docs/protocol.md.

They explain what became of records. They are no input of the coordinator.
"""

import msgspec
from msgspec import Struct

from kafka_why.contract.codec import encode
from kafka_why.contract.messages import RECORD_VERSION

REJECTED = "rejected"
"""A member rejected the record, so it is archived, or goes to the dead-letter queue."""
GONE = "gone"
"""Inferred: its last delivery ended without an acknowledgement, or it was released."""
ACCEPTED = "accepted"
OPEN = "open"
"""It will be delivered again, as far as the gateway knows."""


class Counted(Struct, kw_only=True, omit_defaults=True, gc=False):
    """Offsets of one partition that one member got, by what became of them.

    What was `delivered` is `accepted`, `released`, `rejected`, a gap (there is no record), `expired` (its
    lock ended: inferred), `ended` (the member's session ended), `unfollowed` (the gateway had no room for
    it), or still held. `late` are acknowledgements that came when the lock had ended. `processed_ms` is the
    sum over the acknowledged offsets from delivery to acknowledgement.
    """

    topic: str = ""
    partition: int = -1
    member_id: str = ""
    delivered: int = 0
    redelivered: int = 0
    before_last: int = 0
    """At one delivery before the limit."""
    last: int = 0
    """At the limit of deliveries."""
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    renewed: int = 0
    gaps: int = 0
    expired: int = 0
    ended: int = 0
    unfollowed: int = 0
    late: int = 0
    processed_ms: int = 0
    processed_max_ms: int = 0

    def add(self, other: "Counted") -> None:
        """Add what another one counted."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.processed_max_ms = max(self.processed_max_ms, other.processed_max_ms)

    @property
    def acknowledged(self) -> int:
        """The records that were accepted, released or rejected."""
        return self.accepted + self.released + self.rejected


_NAMES = frozenset({"topic", "partition", "member_id", "processed_max_ms"})
_SUMMED = tuple(name for name in Counted.__struct_fields__ if name not in _NAMES)


class Suspect(Struct, kw_only=True, omit_defaults=True, gc=False):
    """A record that may be poison, by what this gateway knows. `released_by` are the first members that
    released it, `releases` how often that was.
    """

    topic: str = ""
    partition: int = -1
    offset: int = -1
    deliveries: int = 0
    releases: int = 0
    released_by: tuple[str, ...] = ()
    rejected_by: str = ""
    is_last: bool = False
    """It was delivered as often as the limit says."""
    outcome: str = OPEN


class GroupDeliveries(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The deliveries of one share group that one gateway counted. The broker's time of the record is the end
    of the time that it is about, `took_ms` its length.

    `others` has the sums of the partitions and members beyond the bound of `rows`. `lock_ms` is the latest
    AcquisitionLockTimeoutMs, 0 if none is known. `is_limit_known`: the brokers said what
    `share.delivery.count.limit` is; without it `delivery_limit` is Kafka's default.
    """

    version: int  # no default, so that it is always written
    group_id: str
    gateway_id: str
    took_ms: int
    delivery_limit: int
    is_limit_known: bool = False
    lock_ms: int = 0
    sessions: int = 0
    rows: list[Counted] = []
    others: Counted | None = None
    suspects: list[Suspect] = []


_decoder = msgspec.json.Decoder(GroupDeliveries)


def deliveries_key(record: GroupDeliveries, number: int) -> bytes:
    """Return the key of a gateway's `number`th record. No other record has it, so compaction keeps each."""
    return encode([record.group_id, None, record.gateway_id, number])


def is_of_deliveries(key: bytes | None, group_id: str) -> bool:
    """Return True if this is the key of such a record of the group."""
    return key is not None and key.startswith(encode([group_id, None])[:-1] + b",")


def decode_deliveries(value: bytes) -> GroupDeliveries | None:
    """Return what a record's value says, None if it is of a later version or unreadable."""
    try:
        found = _decoder.decode(value)
    except msgspec.DecodeError:
        return None
    return found if found.version == RECORD_VERSION else None
