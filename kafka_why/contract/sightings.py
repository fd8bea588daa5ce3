"""Records of the sightings topic: classic groups that a poll of their brokers found rebalancing.

The key is `<partition>/<group id>`, with the group's partition of `__consumer_offsets`. The value is JSON. It
has no times, only ages at the time when the record was written. `decode_sighting` subtracts the ages from the
record's append time, so the result does not depend on the writer's clock.
"""

import msgspec
from msgspec import Struct

from kafka_why.contract.messages import RECORD_VERSION


class SeenMember(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A member of a rebalancing group. It has joined, or the group waits for it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str


class RebalanceSeen(Struct, frozen=True):
    """A classic group that was rebalancing when its broker was polled."""

    run: str  # id of the unbroken series of polls that found the group rebalancing
    state: str  # PreparingRebalance or CompletingRebalance, unless `is_over`
    first_ms: int  # when the group was first seen rebalancing
    seen_ms: int  # time of the poll
    within_ms: int  # the group was not rebalancing at `first_ms - within_ms`
    # Before the writer wrote this record, it had processed all records that were in the group's partition of
    # `__consumer_offsets` at this time. None if unknown.
    read_ms: int | None
    is_over: bool  # True if the group is no longer rebalancing
    members: tuple[SeenMember, ...] | None  # None if there are too many


MEMBERS_MAX = 1_000
"""The maximum number of members in a record. A larger group is written without its members."""


class SightingRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of a record: the fields of `RebalanceSeen`, with ages (`ago`) instead of times."""

    version: int = RECORD_VERSION
    run: str
    state: str
    first_ago_ms: int
    seen_ago_ms: int
    within_ms: int
    read_ago_ms: int | None = None
    is_over: bool = False
    members: tuple[SeenMember, ...] | None = None


_decode = msgspec.json.Decoder(SightingRecord).decode


def sighting_key(group_id: str, partition: int) -> bytes:
    """Return the key of a record about this group."""
    return b"%d/%b" % (partition, group_id.encode())


def decode_sighting(key: bytes, value: bytes, at_ms: int) -> tuple[str, RebalanceSeen]:
    """Decode a record that was appended at `at_ms`. Return the group id and the sighting.

    Raises msgspec.DecodeError and ValueError.
    """
    _, slash, group_id = key.partition(b"/")
    if not slash:
        raise ValueError(f"the key of a sighting has no group: {key[:64]!r}")
    record = _decode(value)
    if record.version != RECORD_VERSION:
        raise ValueError(f"a sighting of version {record.version}; this code reads version {RECORD_VERSION}")
    return group_id.decode(), RebalanceSeen(
        run=record.run,
        state=record.state,
        first_ms=at_ms - record.first_ago_ms,
        seen_ms=at_ms - record.seen_ago_ms,
        within_ms=record.within_ms,
        read_ms=None if record.read_ago_ms is None else at_ms - record.read_ago_ms,
        is_over=record.is_over,
        members=record.members,
    )
