"""Makes requests of every API and version by Kafka's schemas, well-formed and damaged in every part that has
a form of its own: numbers, lengths, nulls, tags, texts, ids, ends.
"""

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from struct import calcsize, pack

from bench.load.flexible import varint
from gateway import apis
from gateway.wire import codec
from kafka_why.wire.primitives import STRING_MAX_BYTES
from kafka_why.wire.schema_fields import FORMATS, STRUCTURE, Field, message_of

_READ = {*apis.SERVED, *apis.SASL, *(key for key, api in apis.PASSED.items() if api.versions is not None)}
APIS = sorted((key, version) for key in _READ for version in codec.versions(key))
Damage = Callable[[int, Random], bytes]
# The share of parts that are damaged, and how many at most: one of these for each frame.
_DAMAGES = ((0.0, 0), (0.03, 1), (0.1, 1), (0.1, 1), (0.3, 1), (0.1, 2), (0.1, 5), (0.4, 1_000))
_RATE_OF_KNOWN_TAGS = 0.3  # they are few
_TEXTS = (b"", b"g", b"orders", b"m" * 36, b"x" * 127, b"x" * 128, "grün €".encode())
_DAMAGED_TEXTS = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\0", b"\xe2\x82")
_LONG_TEXTS = (b"x" * STRING_MAX_BYTES, b"x" * (STRING_MAX_BYTES + 1), b"x" * 40_000)
_LENGTHS = (0, 1, 2**15 - 1, 2**15, 2**16, 2**31 - 2, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
_UNKNOWN_TAGS = (0, 1, 2, 3, 9, 127, 128, 2**31 - 1, 2**31, 2**32 - 1)


@cache
def _request(key: int, version: int) -> Field:
    return message_of(codec.REQUESTS[key].json, version)


def _has_tags(structure: Field) -> bool:
    return any(field.tag is not None or _has_tags(field.item or field) for field in structure.fields)


@cache
def _with_tags() -> list[tuple[int, int]]:
    """Return the versions that have tagged fields."""
    return [api for api in APIS if _has_tags(_request(*api))]


class Frames:
    """A source of random requests. The same `random` gives the same requests."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._rate, self._left = 0.0, 0
        self._flexible = False

    def next(self) -> bytes:
        """Return a request without the frame's size. One of ten is of the few versions that have tagged
        fields.
        """
        key, version = self._random.choice(_with_tags() if self._random.random() < 0.1 else APIS)
        return self.of(key, version)

    def of(self, key: int, version: int) -> bytes:
        """Return a request of this API and version."""
        self._rate, self._left = self._random.choice(_DAMAGES)
        request = _request(key, version)
        self._flexible = request.is_flexible
        frame = self._header(key, version) + self._structure(request.fields)
        return self._damaged(frame) if self._hits() else frame

    def _header(self, key: int, version: int) -> bytes:
        name = self._text()[:STRING_MAX_BYTES]
        length = len(name)
        if self._random.random() < 0.1 or self._hits():
            name, length = b"", self._random.choice((-1, -1, -1, -2, -32_768))
        begin = pack(">hhih", key, version, self._random.getrandbits(31), length) + name
        return begin + (self._tags(()) if self._flexible else b"")

    def _structure(self, fields: Sequence[Field]) -> bytes:
        out = b"".join([self._value(field) for field in fields if field.tag is None])
        return (
            out + self._tags([field for field in fields if field.tag is not None]) if self._flexible else out
        )

    def _value(self, field: Field) -> bytes:
        if field.item is None:
            return self._one(field)
        if self._is_null(field.is_nullable):
            return self._length(None, ">i")
        items = [self._one(field.item) for _ in range(self._random.choice((0, 1, 1, 2, 3)))]
        if items and self._random.random() < 0.1:
            items.append(items[0])
        return self._length(len(items), ">i") + b"".join(items)

    def _one(self, field: Field) -> bytes:
        if field.type == STRUCTURE:
            return self._maybe_structure(field)
        if field.type == "bool":
            return bytes([self._random.choice((2, 0x7F, 0xFF) if self._hits() else (0, 1))])
        if field.type == "uuid":
            return self._random.choice((bytes(16), bytes(15) + b"\1", self._random.randbytes(16)))
        if field.type in FORMATS:
            return self._number(8 * calcsize(">" + FORMATS[field.type]))
        form = ">h" if field.type == "string" else ">i"
        if self._is_null(field.is_nullable):
            return self._length(None, form)
        text = self._text() if field.type == "string" else self._random.randbytes(self._random.randrange(40))
        return self._length(len(text), form) + text

    def _maybe_structure(self, field: Field) -> bytes:
        if not field.is_nullable:
            return self._structure(field.fields)
        begin = b"\xff" if self._random.random() < 0.3 else b"\1"
        if self._hits():
            begin = self._random.randbytes(1)
        return begin if begin == b"\xff" else begin + self._structure(field.fields)

    def _number(self, bits: int) -> bytes:
        edges = (0, 0, 1, 2**bits - 1, 2**bits - 2, 2 ** (bits - 1), 2 ** (bits - 1) - 1)
        number = self._random.choice((*edges, self._random.getrandbits(bits)))
        return number.to_bytes(bits // 8, "big")

    def _text(self) -> bytes:
        if not self._hits():
            return self._random.choice(_TEXTS)
        return self._random.choice(_LONG_TEXTS if self._random.random() < 0.02 else _DAMAGED_TEXTS)

    def _is_null(self, nullable: bool) -> bool:
        return (nullable and self._random.random() < 0.2) or self._hits()

    def _length(self, length: int | None, form: str) -> bytes:
        """Return the length of a string, of bytes or of an array, None for null."""
        if self._hits():
            length = self._random.choice((*_LENGTHS, (length or 0) + 1, (length or 1) - 1))
        if self._flexible:
            return self._varint(0 if length is None else length + 1)
        bits = 16 if form == ">h" else 32
        number = -1 if length is None else length
        if self._hits():
            number = self._random.choice((-2, -3, -(2 ** (bits - 1))))
        return (number & ((1 << bits) - 1)).to_bytes(bits // 8, "big")

    def _varint(self, number: int) -> bytes:
        if not self._hits():
            return varint(number)
        damage: Damage = self._random.choice(_DAMAGED_VARINTS)
        damaged: bytes = damage(number, self._random)
        return damaged

    def _tags(self, fields: Sequence[Field]) -> bytes:
        known = [(field.tag or 0, self._value(field)) for field in fields if self._random.random() < 0.4]
        found = [self._varint(tag) + self._sized(content) for tag, content in known]
        if self._hits(_RATE_OF_KNOWN_TAGS if known else 0.0):
            found = self._damaged_tags(known, found)
        count = len(found) + (self._random.choice((-1, 1, 2)) if self._hits() else 0)
        return self._varint(max(count, 0)) + b"".join(found)

    def _damaged_tags(self, known: list[tuple[int, bytes]], found: list[bytes]) -> list[bytes]:
        match self._random.randrange(4):
            case 0:
                return found + found
            case 1:
                return found[::-1]
            case 2 if known:  # a known tag with bits beyond the 32nd, and with more than its bytes
                tag, content = self._random.choice(known)
                more = content + self._random.randbytes(self._random.randrange(24))
                return [varint(tag + (self._random.randint(1, 7) << 32)) + self._sized(more)]
        tag = self._random.choice(_UNKNOWN_TAGS)
        unknown = self._varint(tag) + self._sized(self._random.randbytes(self._random.randrange(20)))
        return [*found, unknown]

    def _sized(self, content: bytes) -> bytes:
        size = len(content)
        if self._hits():
            size = self._random.choice(
                (0, size + 1, max(size - 1, 0), self._random.randrange(64), 2**31, 2**32 - 1)
            )
        return self._varint(size) + content

    def _damaged(self, frame: bytes) -> bytes:
        at = self._random.randrange(8, len(frame) + 1)
        match self._random.randrange(5):
            case 0:
                return frame[:at]
            case 1:
                return frame + self._random.randbytes(self._random.randint(1, 5))
            case 2:
                return frame + b"\0"
            case 3:
                return frame[:at] + self._random.randbytes(1) + frame[at + 1 :]
        return frame[:at] + self._random.randbytes(self._random.randint(1, 3)) + frame[at:]

    def _hits(self, at_least: float = 0.0) -> bool:
        """Return True if this part is to be damaged."""
        if not self._left or self._random.random() >= max(self._rate, at_least):
            return False
        self._left -= 1
        return True


def _longer(number: int, random: Random) -> bytes:
    """Return a varint that is longer than needed. Kafka accepts up to five bytes."""
    return varint(number, len(varint(number)) + random.randint(1, 4))


def _overflowing(number: int, random: Random) -> bytes:
    """Return a varint that a reader of 32 bits would take for this number."""
    return varint(number + (random.randint(1, 7) << 32))


def _endless(number: int, random: Random) -> bytes:
    return b"\xff" * random.randint(5, 12) + b"\1"


def _cut(number: int, random: Random) -> bytes:
    """Return a varint whose last byte announces another, so that its reader continues in what follows."""
    whole = varint(number)
    return whole[:-1] + bytes([whole[-1] | 0x80])


_DAMAGED_VARINTS: tuple[Damage, ...] = (_longer, _longer, _overflowing, _endless, _cut)
