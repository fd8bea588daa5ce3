"""Requests as bytes that a client of Kafka never sends, made field by field."""

from struct import pack
from uuid import UUID

from bench.load.flexible import array as array
from bench.load.flexible import compact as compact
from bench.load.flexible import varint as varint

FETCH = 1
_RECORD_BYTES = 1_048_576


def tag(number: int | bytes, content: bytes) -> bytes:
    """Return a tagged field. A tag may be given as the bytes of its number."""
    return (number if isinstance(number, bytes) else varint(number)) + varint(len(content)) + content


def tags(*fields: bytes) -> bytes:
    """Return a tag section."""
    return varint(len(fields)) + b"".join(fields)


def request(api_key: int, version: int, body: bytes, header_tags: bytes = b"\0") -> bytes:
    """Return a request of a flexible version, without the frame's size."""
    return pack(">hhih", api_key, version, 1, 2) + b"me" + header_tags + body


def fetch_partition(section: bytes = b"\0") -> bytes:
    """Return partition 0 of a Fetch, from its first record on."""
    return pack(">iiqiqi", 0, -1, 0, -1, -1, _RECORD_BYTES) + section


def fetch_topic(topic_id: UUID, *partitions: bytes) -> bytes:
    return topic_id.bytes + array(*partitions) + b"\0"


def fetch_end(*, section: bytes = b"\0") -> bytes:
    """Return what follows the topics of a Fetch: no forgotten topics, no rack, tags."""
    return array() + compact(b"") + section


def fetch(*topics: bytes, count: int | None = None, end: bytes = b"") -> bytes:
    """Return a Fetch without a session. `count` is the number of topics that it claims."""
    head = pack(">iiibii", 100, 1, _RECORD_BYTES, 0, 0, -1)
    listed = varint((len(topics) if count is None else count) + 1) + b"".join(topics)
    return request(FETCH, 17, head + listed + (end or fetch_end()))


# 2^32: tag 0 to Kafka, which drops what is beyond 32 bits, an unknown tag to other readers.
OVERFLOWING_0 = bytes([0x80, 0x80, 0x80, 0x80, 0x10])
_UNKNOWN = 100


def fetch_with_hidden_topic(allowed: UUID, secret: UUID) -> bytes:
    """Return a Fetch that names `allowed` twice to a reader that keeps the tag's bits. To Kafka the tag is 0,
    ReplicaDirectoryId, which has 16 bytes whatever its size says, so that the rest of the field is `secret`
    as the second topic, and an unknown field with all that follows.
    """
    shown = b"\0" + fetch_topic(allowed, fetch_partition()) + fetch_end()
    swallowed = varint(1) + varint(_UNKNOWN) + varint(len(shown))
    hidden = b"\0" + fetch_topic(secret, fetch_partition()) + fetch_end(section=swallowed)
    section = tags(tag(OVERFLOWING_0, bytes(16) + hidden))
    first = allowed.bytes + array(fetch_partition(section))
    return fetch(first + shown, count=2, end=b" ")[:-1]
