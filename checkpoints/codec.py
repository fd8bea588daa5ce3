"""The state row: `(version int, payload binary)`.

applyInPandasWithState cannot change its schema later, so the row's two columns stay and the payload carries a
version. The payload is a msgpack map of group id -> encoded group, which begins with its protocol. It has one
entry as long as the operator is keyed by group; several groups under one key need no change here. Decoding is
strict: what is not exactly of a known version is an error.
"""

from collections.abc import Mapping

import msgspec

from state.dispatch import AnyGroup

# Version 2 appended two fields to Kafka's Group, which have their defaults in a group of version 1.
STATE_VERSION = 2
_READABLE = range(1, STATE_VERSION + 1)
STATE_SCHEMA = "version int, payload binary"

_encoder = msgspec.msgpack.Encoder()
_groups_decoder = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_group_decoder: msgspec.msgpack.Decoder[AnyGroup] = msgspec.msgpack.Decoder(AnyGroup)


class StateError(RuntimeError):
    """A state row that this code cannot read: of another version, or damaged. Names the key, and the group if
    known.
    """


def encode(groups: Mapping[str, AnyGroup]) -> tuple[int, bytes]:
    """The state row for these groups."""
    encoded = {group_id: msgspec.Raw(_encoder.encode(group)) for group_id, group in groups.items()}
    return STATE_VERSION, _encoder.encode(encoded)


def decode(key: str, version: int, payload: bytes) -> dict[str, AnyGroup]:
    """The groups of a state row; raises StateError naming what could not be read."""
    if version not in _READABLE:
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
        group = _group_decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise StateError(
            f"the state of group {group_id!r} (version {version}) is damaged: {error}"
        ) from error
    if group.group_id != group_id:
        raise StateError(
            f"the state of group {group_id!r} (version {version}) holds group {group.group_id!r}"
        )
    return group
