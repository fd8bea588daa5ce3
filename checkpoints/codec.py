"""The state row: `(version int, payload binary)`, the groups of one shard.

applyInPandasWithState cannot change its schema later, so the row keeps its two columns and the payload has a
version. The payload is a msgpack map of group id -> `Entry`, compressed, with its size before compression in
front (4 bytes, big-endian). Groups resemble each other: compression takes 1 ms for 1,000 groups, and leaves a
tenth of what Spark passes, stores and searches for deadlines in each batch.

The version of the row covers the map only: each entry has the version of its group, and a group that rests
keeps its encoding when others of its shard change.
Decoding is strict: each version of a group has its own reader, which refuses a group with a field more or
less. A group of an earlier version is migrated version by version (`checkpoints.migrations`).

Rows of versions 1 to 3 had one group each, under the group's id, and no entries. From version 4 on
rows have the same map. Groups may have offsets in transactions from version 5 on. From version 6 on they may
speak the consumer protocol, and an entry may be the settings of a group that does not exist. From version 7
on consumer groups know the patterns whose topics are filtered. `read_row` reads them all.
"""

from collections.abc import Callable, Mapping

import msgspec
import pyarrow as pa
from msgspec import Struct

from checkpoints.migrations import (
    ConsumerGroupV5,
    GroupV1,
    GroupV2,
    GroupV3,
    GroupV4,
    v1_to_v2,
    v2_to_v3,
    v3_to_v4,
    v4_to_v5,
    v5_to_v6,
)
from state.dispatch import AnyGroup
from state.kafka.classic_group import ClassicGroup
from state.kafka.configs_only import ConfigsOnly
from state.rocketmq.group import Group as RocketMqGroup

STATE_VERSION = 7
STATE_SCHEMA = "version int, payload binary"
GROUP_VERSION = 6
"""The version of a group's own encoding. Up to version 3 it was the version of the row."""

# The next deadline of a group whose row had none. It is in the past, so the first call finds the real one.
UNKNOWN_DEADLINE_MS = 0
# The same of a group that was imported to new topics. The first call also writes its records of compacted
# topics.
UNPUBLISHED_DEADLINE_MS = -1


class Entry(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A group at rest: the version and the bytes of its encoding, and its next deadline in ms.

    `next_deadline_ms` is never later than the group's earliest deadline. None: it has no deadline.
    """

    version: int
    next_deadline_ms: int | None
    group: bytes


_SIZE_BYTES = 4
_FIRST_VERSION_WITH_ENTRIES = 4

_encoder = msgspec.msgpack.Encoder()
_zstd = pa.Codec("zstd", compression_level=1)
_entries_decoder = msgspec.msgpack.Decoder(dict[str, Entry])
_groups_decoder = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_v1 = msgspec.msgpack.Decoder(GroupV1 | RocketMqGroup)
_v2 = msgspec.msgpack.Decoder(GroupV2 | RocketMqGroup)
_v3 = msgspec.msgpack.Decoder(GroupV3 | RocketMqGroup)
_v4 = msgspec.msgpack.Decoder(GroupV4 | RocketMqGroup)
_v5: msgspec.msgpack.Decoder[ClassicGroup | ConsumerGroupV5 | ConfigsOnly | RocketMqGroup] = (
    msgspec.msgpack.Decoder(ClassicGroup | ConsumerGroupV5 | ConfigsOnly | RocketMqGroup)
)
_v6: msgspec.msgpack.Decoder[AnyGroup] = msgspec.msgpack.Decoder(AnyGroup)


def _read_v1(encoded: bytes) -> AnyGroup:
    group = _v1.decode(encoded)
    return group if isinstance(group, RocketMqGroup) else v4_to_v5(v3_to_v4(v2_to_v3(v1_to_v2(group))))


def _read_v2(encoded: bytes) -> AnyGroup:
    group = _v2.decode(encoded)
    return group if isinstance(group, RocketMqGroup) else v4_to_v5(v3_to_v4(v2_to_v3(group)))


def _read_v3(encoded: bytes) -> AnyGroup:
    group = _v3.decode(encoded)
    return group if isinstance(group, RocketMqGroup) else v4_to_v5(v3_to_v4(group))


def _read_v4(encoded: bytes) -> AnyGroup:
    group = _v4.decode(encoded)
    return group if isinstance(group, RocketMqGroup) else v4_to_v5(group)


def _read_v5(encoded: bytes) -> AnyGroup:
    group = _v5.decode(encoded)
    _check_length(encoded, group)
    return v5_to_v6(group) if isinstance(group, ConsumerGroupV5) else group


def _read_v6(encoded: bytes) -> AnyGroup:
    group = _v6.decode(encoded)
    _check_length(encoded, group)
    return group


def _check_length(encoded: bytes, group: Struct) -> None:
    """Fields of the group have defaults, so msgspec would accept a group whose last fields are missing."""
    fields = 1 + len(group.__struct_fields__)  # the first field is the protocol
    if _array_length(encoded) != fields:
        raise msgspec.ValidationError(f"it has {_array_length(encoded)} fields instead of {fields}")


def _array_length(encoded: bytes) -> int:
    """The number of elements of a msgpack array of up to 65,535, by its first bytes."""
    first, *length = encoded[:3]
    return first & 0x0F if first < 0xDC else int.from_bytes(length)


_READERS: Mapping[int, Callable[[bytes], AnyGroup]] = {
    1: _read_v1,
    2: _read_v2,
    3: _read_v3,
    4: _read_v4,
    5: _read_v5,
    6: _read_v6,
}


class StateError(RuntimeError):
    """This code cannot read a state row, because its version is unknown or it is damaged. The message names
    the key, and the group if it is known.
    """


def encode_group(group: AnyGroup, next_deadline_ms: int | None) -> Entry:
    """Encode a group with the time of its next deadline in ms."""
    return Entry(GROUP_VERSION, next_deadline_ms, _encoder.encode(group))


def decode_group(group_id: str, entry: Entry) -> AnyGroup:
    """Decode a group of any version. Raises StateError naming it if it is not readable."""
    reader = _READERS.get(entry.version)
    if reader is None:
        raise StateError(
            f"group {group_id!r} is of version {entry.version}; this code reads versions 1 to {GROUP_VERSION}"
        )
    try:
        group = reader(entry.group)
    except msgspec.DecodeError as error:
        raise StateError(
            f"the state of group {group_id!r} (version {entry.version}) is damaged: {error}"
        ) from error
    if group.group_id != group_id:
        raise StateError(
            f"the state of group {group_id!r} (version {entry.version}) holds group {group.group_id!r}"
        )
    return group


def earliest_deadline_ms(entries: Mapping[str, Entry]) -> int | None:
    """The earliest next deadline of these groups in ms, None if none has a deadline."""
    return min((e.next_deadline_ms for e in entries.values() if e.next_deadline_ms is not None), default=None)


def write_row(entries: Mapping[str, Entry]) -> tuple[int, bytes]:
    """Encode the groups of a shard as a state row."""
    encoded = _encoder.encode(entries)
    return STATE_VERSION, len(encoded).to_bytes(_SIZE_BYTES) + _zstd.compress(encoded, asbytes=True)


def read_row(key: str, version: int, payload: bytes) -> dict[str, Entry]:
    """Read the groups of a state row, without decoding them. `key` names the row in errors.

    Raises StateError if the row's version is unknown, or if the row is damaged.
    """
    if not 1 <= version <= STATE_VERSION:
        raise StateError(
            f"the state of {key!r} is of version {version}; this code reads versions 1 to {STATE_VERSION}"
        )
    try:
        if version >= _FIRST_VERSION_WITH_ENTRIES:
            return _entries_decoder.decode(_decompressed(payload))
        groups = _groups_decoder.decode(payload)
    except (msgspec.DecodeError, OSError) as error:
        raise StateError(f"the state of {key!r} (version {version}) is damaged: {error}") from error
    return {
        group_id: Entry(version, UNKNOWN_DEADLINE_MS, bytes(memoryview(raw)))
        for group_id, raw in groups.items()
    }


def _decompressed(payload: bytes) -> memoryview:
    """Raises OSError, as pyarrow does."""
    size = int.from_bytes(payload[:_SIZE_BYTES])
    return memoryview(_zstd.decompress(memoryview(payload)[_SIZE_BYTES:], size))
