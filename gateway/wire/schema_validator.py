"""Walks a broker's response by Kafka's own schema without decoding it, and finds its tags.

The cost of a walk grows with fields, not with bytes. So it can find whether a response full of records
carries broker addresses. What clients send is read by `schema_reader`.
"""

from collections.abc import Callable
from functools import partial
from struct import Struct

from gateway.wire.framing import ProtocolError, read_tags, read_varint, skip, skip_tagged_fields
from records.wire.schema_notation import Schema, in_versions, is_nullable, is_tagged

Skip = Callable[[bytes, int], int]

_FIXED = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "bitfield": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
_INT16, _INT32 = Struct(">h"), Struct(">i")


class SchemaValidator:
    """The fields of one version of a message, in their order.

    `schema` is Kafka's JSON for the message (clients/src/main/resources/common/message).
    """

    def __init__(self, schema: Schema, version: int) -> None:
        self._name = f"{schema['name']} v{version}"
        self._flexible = in_versions(schema["flexibleVersions"], version)
        self._fields = _fields(schema, version, self._flexible)

    def tags(self, message: bytes, at: int) -> frozenset[int]:
        """Return the tags after the message's own fields, which begin at `at`. Raises ProtocolError if the
        message does not match the schema.
        """
        tags: frozenset[int] = frozenset()
        try:
            for field in self._fields:
                at = field(message, at)
            if self._flexible:
                tags, at = read_tags(message, at)
            if at != len(message):
                raise ProtocolError(f"{len(message) - at} bytes behind its end")
        except ProtocolError as error:
            raise ProtocolError(f"not a {self._name}: {error}") from error
        return tags

    def last_length(self, message: bytes, at: int) -> int:
        """Return the length of the array that is the last field of a flexible version. The fields begin at
        `at`. Raises ProtocolError if those before it do not match the schema.
        """
        for field in self._fields[:-1]:
            at = field(message, at)
        return read_varint(message, at)[0] - 1


def _fields(schema: Schema, version: int, flexible: bool) -> list[Skip]:
    return [
        _field(field, version, flexible)
        for field in schema["fields"]
        if in_versions(field["versions"], version) and not (flexible and is_tagged(field, version))
    ]


def _field(field: Schema, version: int, flexible: bool) -> Skip:
    kind: str = field["type"]
    nullable = is_nullable(field, version)
    if kind.startswith("[]"):
        item = _element(field, kind[2:], version, flexible)
        return partial(_skip_array, _Length(_INT32, flexible, nullable), item)
    if kind in ("string", "bytes", "records"):
        return partial(_skip_sized, _Length(_INT16 if kind == "string" else _INT32, flexible, nullable))
    item = _element(field, kind, version, flexible)
    return partial(_skip_nullable, item) if nullable else item


def _element(field: Schema, kind: str, version: int, flexible: bool) -> Skip:
    if kind in _FIXED:
        return partial(_skip_fixed, _FIXED[kind])
    if kind in ("string", "bytes"):
        return partial(_skip_sized, _Length(_INT16 if kind == "string" else _INT32, flexible, nullable=False))
    return partial(_skip_struct, _fields(field, version, flexible), flexible)


class _Length:
    """Reads a length, None for null. It is a number of fixed size, or in flexible versions a varint that
    holds the length plus one.
    """

    def __init__(self, plain: Struct, flexible: bool, nullable: bool) -> None:
        self._plain = plain
        self._flexible = flexible
        self._nullable = nullable

    def read(self, data: bytes, at: int) -> tuple[int, int]:
        if self._flexible:
            length, at = read_varint(data, at)
            length -= 1
        else:
            end = skip(data, at, self._plain.size)
            length, at = self._plain.unpack_from(data, at)[0], end
        if length < 0 and not (length == -1 and self._nullable):
            raise ProtocolError(f"a length of {length}")
        return max(length, 0), at


def _skip_fixed(size: int, data: bytes, at: int) -> int:
    return skip(data, at, size)


def _skip_nullable(item: Skip, data: bytes, at: int) -> int:
    """A nullable structure begins with a byte that is negative for null."""
    end = skip(data, at, 1)
    return end if data[at] > 0x7F else item(data, end)


def _skip_sized(length: _Length, data: bytes, at: int) -> int:
    size, at = length.read(data, at)
    return skip(data, at, size)


def _skip_array(length: _Length, item: Skip, data: bytes, at: int) -> int:
    count, at = length.read(data, at)
    for _ in range(count):
        at = item(data, at)
    return at


def _skip_struct(fields: list[Skip], flexible: bool, data: bytes, at: int) -> int:
    for field in fields:
        at = field(data, at)
    return skip_tagged_fields(data, at) if flexible else at
