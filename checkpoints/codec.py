"""The state row: `(version int, payload binary)`.

applyInPandasWithState cannot change its schema later, so the row keeps its two columns and the payload has a
version. The payload is a msgpack map of group id -> encoded group, which begins with its protocol. It has one
entry because the operator is keyed by group. Several groups under one key would need no change here. Decoding
is strict: each version has its own reader, which refuses a group with a field more or less. The payload of an
earlier version is migrated version by version (`checkpoints.migrations`).
"""

from collections.abc import Callable, Mapping

import msgspec

from checkpoints.migrations import GroupV1, GroupV2, v1_to_v2, v2_to_v3
from state.dispatch import AnyGroup
from state.rocketmq.group import Group as RocketMqGroup

STATE_VERSION = 3
STATE_SCHEMA = "version int, payload binary"

_encoder = msgspec.msgpack.Encoder()
_groups_decoder = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_v1 = msgspec.msgpack.Decoder(GroupV1 | RocketMqGroup)
_v2 = msgspec.msgpack.Decoder(GroupV2 | RocketMqGroup)
_v3: msgspec.msgpack.Decoder[AnyGroup] = msgspec.msgpack.Decoder(AnyGroup)


def _read_v1(raw: msgspec.Raw) -> AnyGroup:
    group = _v1.decode(raw)
    return group if isinstance(group, RocketMqGroup) else v2_to_v3(v1_to_v2(group))


def _read_v2(raw: msgspec.Raw) -> AnyGroup:
    group = _v2.decode(raw)
    return group if isinstance(group, RocketMqGroup) else v2_to_v3(group)


def _read_v3(raw: msgspec.Raw) -> AnyGroup:
    group = _v3.decode(raw)
    # Fields of the current group have defaults, so msgspec would accept a group whose last fields are
    # missing.
    fields = 1 + len(group.__struct_fields__)  # the first field is the protocol
    if _array_length(raw) != fields:
        raise msgspec.ValidationError(f"it has {_array_length(raw)} fields instead of {fields}")
    return group


def _array_length(raw: msgspec.Raw) -> int:
    """The number of elements of a msgpack array of up to 65,535, by its first bytes."""
    first, *length = bytes(memoryview(raw)[:3])
    return first & 0x0F if first < 0xDC else int.from_bytes(length)


_READERS: Mapping[int, Callable[[msgspec.Raw], AnyGroup]] = {1: _read_v1, 2: _read_v2, 3: _read_v3}


class StateError(RuntimeError):
    """This code cannot read a state row, because its version is unknown or it is damaged. The message names
    the key, and the group if it is known.
    """


def encode(groups: Mapping[str, AnyGroup]) -> tuple[int, bytes]:
    """Encode these groups as a state row."""
    encoded = {group_id: msgspec.Raw(_encoder.encode(group)) for group_id, group in groups.items()}
    return STATE_VERSION, _encoder.encode(encoded)


def decode(key: str, version: int, payload: bytes) -> dict[str, AnyGroup]:
    """Decode the groups of a state row. Raises StateError naming the unreadable part."""
    if version not in _READERS:
        raise StateError(
            f"the state of {key!r} is of version {version}; this code reads versions 1 to {STATE_VERSION}"
        )
    try:
        encoded = _groups_decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise StateError(f"the state of {key!r} (version {version}) is damaged: {error}") from error
    return {group_id: _decode_group(group_id, version, raw) for group_id, raw in encoded.items()}


def _decode_group(group_id: str, version: int, raw: msgspec.Raw) -> AnyGroup:
    try:
        group = _READERS[version](raw)
    except msgspec.DecodeError as error:
        raise StateError(
            f"the state of group {group_id!r} (version {version}) is damaged: {error}"
        ) from error
    if group.group_id != group_id:
        raise StateError(
            f"the state of group {group_id!r} (version {version}) holds group {group.group_id!r}"
        )
    return group
