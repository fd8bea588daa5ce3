"""Packs: records that carry several requests or several responses, so that the cost of a record is shared.

A pack is a first line `pack` and then one message a line: JSON as msgspec writes it has no line feeds. The
first line marks the pack. The key cannot, because a group id may be any string. The key of a pack of requests
names its slot: `crc32(group id) mod PACK_SLOTS`. All its requests are for groups of that slot and of the
record's partition. Clients do not need to know how many shards the coordinator has, see
`streaming.query.admission`.
"""

from collections.abc import Iterable, Sequence
from zlib import crc32

PACK_SLOTS = 64
PACK_MAX_REQUESTS = 1_000
PACK_MAX_BYTES = 1024 * 1024

PACK_PREFIX = b"pack\n"

# The beginning of the error message with which a coordinator refuses a packed request, because it has more
# shards than slots. A client then writes single requests.
NO_PACKS = "this coordinator reads no packs"


def slot_of(group_id: str) -> int:
    """Return the slot of a group's requests."""
    return crc32(group_id.encode()) % PACK_SLOTS


def pack_key(slot: int) -> bytes:
    """Return the key of a pack of this slot's requests."""
    return b"%d" % slot


def pack(messages: Iterable[bytes]) -> bytes:
    """Return the value of a record that carries these messages, each without a line feed."""
    return PACK_PREFIX + b"\n".join(messages)


def is_pack(value: bytes) -> bool:
    """Return True if the value of a record is a pack."""
    return value.startswith(PACK_PREFIX)


def unpack(value: bytes) -> Sequence[bytes]:
    """Return the messages of a record's value, which is a pack or one message."""
    return value[len(PACK_PREFIX) :].split(b"\n") if is_pack(value) else (value,)
