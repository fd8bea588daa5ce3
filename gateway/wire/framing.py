"""Frames of Kafka's wire protocol, and functions that read single fields of a message. Nothing here does IO.

A frame is a 32-bit size and that many bytes. A request begins with its api key, api version, correlation id
and client id; from header version 2 on, tagged fields follow.
"""

import struct

import msgspec
from kafka.protocol.api_key import ApiKey

from kafka_why.wire.primitives import ProtocolError as ProtocolError
from kafka_why.wire.primitives import next_tag, read_varint, skip

_SIZE = _CORRELATION_ID = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id
_INT16 = struct.Struct(">h")

_CHUNK_BYTES = 16 * 1024
_PRODUCE = ApiKey.Produce  # looked up once: an attribute of an enum takes 0.15 us
_PRODUCE_FIRST_FLEXIBLE = 9
_PRODUCE_FIRST_TRANSACTIONAL = 3


class FrameBuffer:
    """A buffer that assembles the frames of one direction of a connection from pieces of any length."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        """The maximum size of a frame. A change applies to frames whose size has not been read yet."""
        self._chunks: list[bytes | bytearray] = []
        """The pieces of the frame that has begun. They are joined when it is complete."""
        self._partial_bytes = 0
        self._needed_bytes = _SIZE.size
        """The number of bytes at which the chunks are joined: the size field's, or the whole frame's."""

    @property
    def has_partial(self) -> bool:
        """True if a frame has begun and is incomplete."""
        return bool(self._chunks)

    @property
    def partial_bytes(self) -> int:
        """The number of received bytes of an incomplete frame."""
        return self._partial_bytes if self._chunks else 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes, and return the frames that are now complete, without their sizes.

        Raises ProtocolError for a frame that is too large, as soon as its size is read.
        """
        if self._chunks:
            self._store(data)
            if self._partial_bytes < self._needed_bytes:
                return []
            data = b"".join(self._chunks)
            self._chunks = []
        frames: list[bytes] = []
        at = 0
        self._needed_bytes = _SIZE.size
        while len(data) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(data, at)
            if not 0 <= size <= self.max_bytes:
                raise ProtocolError(f"a frame of {size} bytes, where 0 to {self.max_bytes} are allowed")
            end = at + _SIZE.size + size
            if len(data) < end:
                self._needed_bytes = end - at
                break
            frames.append(data[at + _SIZE.size : end])
            at = end
        if at < len(data):
            self._partial_bytes = 0
            self._store(data[at:])
        return frames

    def _store(self, data: bytes) -> None:
        """Store a piece. Small pieces share a chunk, because each chunk costs memory."""
        self._partial_bytes += len(data)
        if len(data) >= _CHUNK_BYTES:
            self._chunks.append(data)
        elif self._chunks and isinstance(last := self._chunks[-1], bytearray) and len(last) < _CHUNK_BYTES:
            last += data
        else:
            self._chunks.append(bytearray(data))


def framed(message: bytes) -> bytes:
    """Return the message as a frame."""
    return size_prefix(len(message)) + message


def size_prefix(size: int) -> bytes:
    """Return the bytes that precede a message of this size in a frame."""
    return _SIZE.pack(size)


class RequestHeader(msgspec.Struct, frozen=True):
    """The header of a request. `client_id_end` is the position after the client id."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    client_id_end: int

    def at_version(self, api_version: int) -> "RequestHeader":
        """Return the same header with another API version."""
        return msgspec.structs.replace(self, api_version=api_version)


def request_header(message: bytes) -> RequestHeader:
    """Read the header of a request. Raises ProtocolError."""
    try:
        api_key, api_version, correlation_id, length = _HEADER.unpack_from(message)
    except struct.error:
        raise ProtocolError(f"a request of {len(message)} bytes has no header") from None
    end = _HEADER.size + max(length, 0)
    if length < -1 or end > len(message):
        raise ProtocolError(f"a client id of {length} bytes")
    client_id = None
    if length >= 0:
        try:
            client_id = message[_HEADER.size : end].decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a client id that is not UTF-8") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, end)


def correlation_id_of(response: bytes) -> int:
    """Read the correlation id of a response. Raises ProtocolError."""
    if len(response) < _CORRELATION_ID.size:
        raise ProtocolError(f"a response of {len(response)} bytes has no header")
    return int(_CORRELATION_ID.unpack_from(response)[0])


def expects_response(header: RequestHeader, message: bytes) -> bool:
    """Return False for a Produce with acks=0, the only request without a response. Raises ProtocolError."""
    if header.api_key != _PRODUCE:
        return True
    at = header.client_id_end
    try:
        if header.api_version >= _PRODUCE_FIRST_FLEXIBLE:
            at = skip_compact_bytes(message, skip_tagged_fields(message, at))
        elif header.api_version >= _PRODUCE_FIRST_TRANSACTIONAL:
            at = skip_string(message, at)
        acks: int = _INT16.unpack_from(message, at)[0]
    except struct.error:
        raise ProtocolError("a Produce that ends before its acks") from None
    return acks != 0


def skip_string(data: bytes, at: int) -> int:
    """Return the position after a nullable string with a 16-bit length. Raises ProtocolError."""
    end = skip(data, at, _INT16.size)
    return skip(data, end, max(_INT16.unpack_from(data, at)[0], 0))


def skip_compact_bytes(data: bytes, at: int) -> int:
    """Return the position after a nullable string, or bytes, of a flexible version. Raises ProtocolError."""
    length_plus_1, at = read_varint(data, at)  # 0 for null
    return skip(data, at, max(length_plus_1 - 1, 0))


def skip_tagged_fields(data: bytes, at: int) -> int:
    """Return the position after the tagged fields. Raises ProtocolError."""
    count, at = read_varint(data, at)
    last_tag = -1
    for _ in range(count):
        last_tag, _, at = next_tag(data, at, last_tag)
    return at


# Names of users in SASL messages.


_TRIMMED = "".join(map(chr, range(0x21)))


def trimmed(subject: str) -> str:
    """Return the subject without the characters up to U+0020 at both ends, as Java's `String.trim` does."""
    return subject.strip(_TRIMMED)


# Possessive, because a name of megabytes would otherwise take memory for each character.
NAME_PATTERN = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)++"


def unescaped(name: str) -> str:
    """Decode a name in a message of SCRAM or OAUTHBEARER (RFC 5801, saslname)."""
    return name.replace("=2C", ",").replace("=3D", "=")
