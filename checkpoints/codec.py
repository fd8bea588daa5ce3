"""The state row: `(version int, payload binary)`, the groups of one shard. A shard is the set of groups that
share one key of Spark's state. applyInPandasWithState cannot change its schema later, so the payload has a
version. The payload is a msgpack map of group id -> `StoredGroup`, compressed, with its size before
compression in front (4 bytes, big-endian). Groups are similar, so compression takes 1 ms for 1,000 groups and
leaves a tenth of the data that Spark passes, stores and scans for deadlines in each batch.

The version of the row covers the map only: each entry has the version of its group, and an unchanged group
keeps its encoding when others of its shard change. Decoding is strict: a missing or an extra field is
refused. A group of an earlier version is migrated version by version (`EARLIER`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Struct

from kafka_why.errors import UserFacingError
from kafka_why.observed.group import ObservedGroup
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.group import ConfigsOnly
from state.kafka.share_group import ShareGroup
from state.rocketmq.group import RocketMqGroup

# The earlier state versions that this code reads, and the migration of each to the next.
#
# To change a group's layout: raise `STATE_VERSION`, copy the old structs to this module, and add their
# version to `EARLIER`. Such a copy never changes.


class Migration(NamedTuple):
    """A migration to the next version. `groups` is the union of the earlier version's structs, and `migrate`
    converts one of them.
    """

    groups: Any
    migrate: Callable[[Any], Any]


def _keep_layout(group: Any) -> Any:
    """Migrate a group to a version in which its layout is the same."""
    return group


EARLIER: dict[int, Migration] = {
    # Version 4 adds streams groups and changes no other layout.
    3: Migration(ClassicGroup | ConsumerGroup | ShareGroup | ConfigsOnly | RocketMqGroup, _keep_layout),
}
"""Migrations by the version from which they start, without a gap up to the one before `STATE_VERSION`."""


STATE_VERSION = 4
"""The version of a row and of the groups in it that this code writes."""
STATE_SCHEMA = "version int, payload binary"

# The next deadline of a group that was imported to new topics. It is in the past, so the operator's first
# call for the group's shard decodes the group, computes the real deadline, and writes the group's records to
# the compacted topics.
UNPUBLISHED_DEADLINE_MS = -1


class ShardRow(NamedTuple):
    """A row of the state, with Spark's key. `read_row` decodes it."""

    key: str
    version: int
    payload: bytes


class StoredGroup(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A stored group."""

    version: int  # of the encoding
    next_deadline_ms: int | None  # not later than the group's earliest deadline, None if it has none
    group: bytes  # encoded


_SIZE_BYTES = 4

_encoder = msgspec.msgpack.Encoder()
_zstd = pa.Codec("zstd", compression_level=1)
_entries = msgspec.msgpack.Decoder(dict[str, StoredGroup])
_group: msgspec.msgpack.Decoder[AnyGroup] = msgspec.msgpack.Decoder(AnyGroup)


class StateError(UserFacingError):
    """A state row has an unknown version or is damaged. The message names the key, and the group if known."""


def encode_group(group: AnyGroup, next_deadline_ms: int | None) -> StoredGroup:
    """Encode a group with the time of its next deadline in ms."""
    return StoredGroup(STATE_VERSION, next_deadline_ms, _encoder.encode(group))


def decode_group(group_id: str, entry: StoredGroup) -> AnyGroup:
    """Decode a group of any version. Raises StateError, which names an unreadable group."""
    _check_version(f"group {group_id!r}", entry.version)
    try:
        group = _decode(entry)
    except msgspec.DecodeError as error:
        raise StateError(
            f"the state of group {group_id!r} (version {entry.version}) is damaged: {error}"
        ) from error
    if group.group_id != group_id:
        raise StateError(
            f"the state of group {group_id!r} (version {entry.version}) holds group {group.group_id!r}"
        )
    return group


def earliest_deadline_ms(entries: Mapping[str, StoredGroup]) -> int | None:
    """Return the earliest next deadline of these groups in ms, None if none has a deadline."""
    return min((e.next_deadline_ms for e in entries.values() if e.next_deadline_ms is not None), default=None)


def write_row(entries: Mapping[str, StoredGroup]) -> tuple[int, bytes]:
    """Encode the groups of a shard as a state row."""
    encoded = _encoder.encode(entries)
    return STATE_VERSION, len(encoded).to_bytes(_SIZE_BYTES) + _zstd.compress(encoded, asbytes=True)


def read_row(key: str, version: int, payload: bytes) -> dict[str, StoredGroup]:
    """Return the groups of a state row by id, without decoding them. `key` names the row in errors.

    Raises StateError if the row's version is unknown, or if the row is damaged.
    """
    _check_version(f"the state of {key!r}", version)
    try:
        return _entries.decode(_decompressed(payload))
    except (msgspec.DecodeError, OSError) as error:
        raise StateError(f"the state of {key!r} (version {version}) is damaged: {error}") from error


def _decompressed(payload: bytes) -> memoryview:
    """Return the decompressed bytes. Raises OSError, as pyarrow does, if they are not a compressed frame."""
    size = int.from_bytes(payload[:_SIZE_BYTES])
    return memoryview(_zstd.decompress(memoryview(payload)[_SIZE_BYTES:], size))


def _decode(entry: StoredGroup) -> AnyGroup:
    """Decode a group, and migrate one of an earlier version. Raises msgspec.DecodeError."""
    if entry.version == STATE_VERSION:
        group = _group.decode(entry.group)
        _check_length(entry.group, group)
        return group
    migrated: AnyGroup = msgspec.msgpack.decode(entry.group, type=EARLIER[entry.version].groups)
    _check_length(entry.group, migrated)
    for version in range(entry.version, STATE_VERSION):
        migrated = EARLIER[version].migrate(migrated)
    return migrated


def _check_length(encoded: bytes, group: Struct) -> None:
    """Raise ValidationError if the encoded group lacks fields, for which msgspec would use the defaults."""
    # msgspec encodes the struct as an array: its tag, which names the type of group, and its fields.
    expected = 1 + len(group.__struct_fields__)
    if _array_length(encoded) != expected:
        raise msgspec.ValidationError(f"it has {_array_length(encoded)} fields instead of {expected}")


def _array_length(encoded: bytes) -> int:
    """Return the number of elements of a msgpack array of up to 65,535 elements."""
    # A fixarray has its length in the lower half of the first byte, an array 16 in the two bytes after 0xDC.
    first, *second_and_third = encoded[:3]
    is_fixarray = first < 0xDC
    return first & 0x0F if is_fixarray else int.from_bytes(second_and_third)


def _check_version(name: str, version: int) -> None:
    """Raise StateError, which begins with `name`, if this code cannot read the version."""
    if version != STATE_VERSION and version not in EARLIER:
        readable = ", ".join(map(str, sorted({*EARLIER, STATE_VERSION})))
        raise StateError(f"{name} is of version {version}; this code reads version {readable}")


# The encoding of an observed group in the state row of its shard (`checkpoints.codec`).


OBSERVED_VERSION = 2
"""The version of the groups that this code writes and reads."""

_observed_group = msgspec.msgpack.Decoder(ObservedGroup)


def encode_observed(group: ObservedGroup) -> StoredGroup:
    """Encode an observed group, which has no deadlines."""
    return StoredGroup(OBSERVED_VERSION, None, _encoder.encode(group))


def decode_observed(group_id: str, entry: StoredGroup) -> ObservedGroup:
    """Decode a group. Raises StateError, which names the group, for another version or a damaged group."""
    name = f"observed group {group_id!r}"
    if entry.version != OBSERVED_VERSION:
        raise StateError(f"{name} is of version {entry.version}; this code reads version {OBSERVED_VERSION}")
    try:
        return _observed_group.decode(entry.group)
    except msgspec.DecodeError as error:
        raise StateError(f"{name} (version {entry.version}) is damaged: {error}") from error
