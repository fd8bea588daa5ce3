"""The encoding of an observed group in the state row of its shard (`checkpoints.codec`)."""

import msgspec

from checkpoints.codec import StateError, StoredGroup
from kafka_why.observed.group import ObservedGroup

OBSERVED_VERSION = 2
"""The version of the groups that this code writes and reads."""

_encoder = msgspec.msgpack.Encoder()
_group = msgspec.msgpack.Decoder(ObservedGroup)


def encode_observed(group: ObservedGroup) -> StoredGroup:
    """Encode a group. It has no deadlines."""
    return StoredGroup(OBSERVED_VERSION, None, _encoder.encode(group))


def decode_observed(group_id: str, entry: StoredGroup) -> ObservedGroup:
    """Decode a group. Raises StateError, which names the group, for another version or a damaged group."""
    name = f"observed group {group_id!r}"
    if entry.version != OBSERVED_VERSION:
        raise StateError(f"{name} is of version {entry.version}; this code reads version {OBSERVED_VERSION}")
    try:
        return _group.decode(entry.group)
    except msgspec.DecodeError as error:
        raise StateError(f"{name} (version {entry.version}) is damaged: {error}") from error
