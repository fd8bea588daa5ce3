"""The records of the telemetry topic: metrics that clients pushed (KIP-714), and counts of share groups'
deliveries by gateways. See docs/protocol.md.

They help to explain rebalances and failures. The coordinator does not read them.
"""

from typing import TypeVar

import msgspec
from msgspec import Struct

from kafka_why.contract.codec import encode
from kafka_why.contract.messages import RECORD_VERSION

# Names of metrics in `MemberTelemetry.metrics`.
LAST_POLL = "consumer.last.poll.seconds.ago"
LAST_HEARTBEAT = "consumer.coordinator.last.heartbeat.seconds.ago"
POLL_IDLE_RATIO = "consumer.poll.idle.ratio.avg"


class MemberTelemetry(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The metrics in one push of a member's client. The record's timestamp is the time of the push.

    The client names its group and its member. `client_id`, `client_host` and `principal` are from the
    gateway's connection.
    """

    version: int  # no default, so that it is always written
    group_id: str
    member_id: str
    client_instance_id: str
    client_id: str
    client_host: str
    principal: str
    push_interval_ms: int
    metrics: dict[str, float]  # by Kafka's names without the prefix `org.apache.kafka.`, in Kafka's units
    group_instance_id: str | None = None
    terminating: bool = False  # True in the client's last push


def telemetry_key(group_id: str, member_id: str) -> bytes:
    """Return the key of a member's records. Compaction retains each member's last record."""
    return encode([group_id, member_id])


def is_of_group(key: bytes | None, group_id: str) -> bool:
    """Return True if this is the key of a record about a member of the group."""
    key_start = encode([group_id]).removesuffix(b"]")
    return key is not None and key.startswith(key_start + b',"')


# The outcomes of a `Suspect`.
REJECTED = "rejected"
"""A member rejected the record, so the record is archived, or written to the dead-letter queue."""
GONE = "gone"
"""Inferred: the last delivery that the limit allows was released, or ended without an acknowledgement."""
ACCEPTED = "accepted"
OPEN = "open"
"""The record will probably be delivered again."""


class Counted(Struct, kw_only=True, omit_defaults=True, gc=False):
    """The numbers of offsets of one partition that one member acquired, by outcome.

    A `delivered` offset is still acquired, or has one of the outcomes `accepted`, `released`, `rejected`,
    `gaps`, `expired`, `ended` and `unfollowed`.
    """

    topic: str = ""
    partition: int = -1
    member_id: str = ""
    delivered: int = 0
    redelivered: int = 0
    before_last: int = 0
    """The number of offsets that may be delivered once more before the limit."""
    last: int = 0
    """The number of offsets that were delivered as often as the limit allows."""
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    renewed: int = 0
    gaps: int = 0  # offsets without a record
    expired: int = 0  # the lock ended (inferred)
    ended: int = 0  # the member's session ended
    unfollowed: int = 0  # the gateway did not have the memory to follow the offset
    late: int = 0  # acknowledgements after the end of the lock
    processed_ms: int = 0  # sum of the times from delivery to acknowledgement
    processed_max_ms: int = 0  # the longest of these times

    def add(self, other: "Counted") -> None:
        """Add the counts of `other`."""
        for name in _SUMMED_FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.processed_max_ms = max(self.processed_max_ms, other.processed_max_ms)

    @property
    def acknowledged(self) -> int:
        """The number of records that were accepted, released or rejected."""
        return self.accepted + self.released + self.rejected


_NOT_SUMMED = frozenset({"topic", "partition", "member_id", "processed_max_ms"})
_SUMMED_FIELDS = tuple(name for name in Counted.__struct_fields__ if name not in _NOT_SUMMED)


class Suspect(Struct, kw_only=True, omit_defaults=True, gc=False):
    """A record that may be poison (every attempt to process it fails), with one gateway's counts."""

    topic: str = ""
    partition: int = -1
    offset: int = -1
    deliveries: int = 0
    releases: int = 0  # number of releases, by any member
    released_by: tuple[str, ...] = ()  # the first members that released it
    rejected_by: str = ""  # the member that rejected it, or ""
    is_last: bool = False
    """True if the record was delivered as often as the limit allows."""
    outcome: str = OPEN  # REJECTED, GONE, ACCEPTED or OPEN


class GroupDeliveries(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One gateway's counts of a share group's deliveries."""

    version: int  # no default, so that it is always written
    group_id: str
    gateway_id: str
    took_ms: int  # length of the interval that is counted, which ends at the record's timestamp
    delivery_limit: int  # the brokers' `share.delivery.count.limit`, or Kafka's default
    is_limit_known: bool = False  # False if `delivery_limit` is Kafka's default
    lock_ms: int = 0  # latest AcquisitionLockTimeoutMs, or 0 if unknown
    sessions: int = 0  # number of connections of members
    rows: list[Counted] = []  # by partition and member
    others: Counted | None = None  # sums of the partitions and members that did not fit into `rows`
    suspects: list[Suspect] = []


def deliveries_key(record: GroupDeliveries, number: int) -> bytes:
    """Return the key of a gateway's `number`th record. Keys are unique, so compaction retains all records."""
    return encode([record.group_id, None, record.gateway_id, number])


def is_of_deliveries(key: bytes | None, group_id: str) -> bool:
    """Return True if this is the key of a record of the group's deliveries."""
    key_start = encode([group_id, None]).removesuffix(b"]")
    return key is not None and key.startswith(key_start + b",")


T = TypeVar("T", MemberTelemetry, GroupDeliveries)


def decode_telemetry(value: bytes, kind: type[T]) -> T | None:
    """Decode a record's value, or return None if it has a later version or is unreadable."""
    try:
        record = msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError:
        return None
    return record if record.version == RECORD_VERSION else None
