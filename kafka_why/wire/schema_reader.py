"""A decoder of messages by Kafka's own schemas: of clients' requests, and of the records of
`__consumer_offsets` (docs/decisions/0028).

The decoder accepts only the encodings that Kafka's writer produces, so that all later readers of the bytes
get the same message as the gateway. It refuses numbers that are longer than needed or have more than 31 bits,
tags that are duplicate or out of order, a tagged field that does not match its size, null where the schema
does not allow it, strings that exceed 32,767 bytes or are not UTF-8, and bytes after the end. A message is
read in one pass, in time proportional to its bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct, error, unpack_from
from typing import Any
from uuid import UUID

from kafka_why.wire.primitives import (
    FORMATS,
    STRING_MAX_BYTES,
    ProtocolError,
    Schema,
    attribute_of,
    field_runs,
    in_versions,
    is_nullable,
    is_tagged,
    next_tag,
    read_varint,
    skip,
)

_INT16, _INT32 = Struct(">h"), Struct(">i")
_NULL, _TAGGED_NULL, _PRESENT = 0xFF, 0, 1  # the first byte of a nullable structure
_ID_BYTES = 16
_NO_ID = bytes(_ID_BYTES)

# A frame could have millions of entries. Reading this many takes 20 to 200 ms.
ELEMENTS_MAX = 50_000
UNLIMITED = 2**31
# The number of entries between two pauses. Reading them takes some tenths of a millisecond.
_BETWEEN_PAUSES = 128

Pause = Callable[[], None]


@dataclass(slots=True)
class EntryBudget:
    """The number of array entries and tags that the rest of a message may have."""

    left: int
    pause: Pause | None  # called after every _BETWEEN_PAUSES entries


Value = Callable[[bytes, int, EntryBudget], tuple[Any, int]]
"""A function that reads a value. It returns the value and the position after it."""
Step = Callable[[Any, bytes, int, EntryBudget], int]
"""A function that reads some fields of a structure into an object. It returns the position after them."""


class SchemaReader:
    """A decoder of one version of a message into objects of `kind`.

    `kind` is kafka-python's class of the message, or a class with the same `json` (Kafka's schema) and
    `fields` (the `data_class` of each structure). A tag that is not in the schema is skipped if
    `unknown_tags`, else refused, because other readers of the bytes may know it.
    """

    def __init__(self, kind: Any, version: int, *, unknown_tags: bool) -> None:
        schema: Schema = kind.json
        self._name = f"{schema['name']} v{version}"
        flexible = in_versions(schema["flexibleVersions"], version)
        self._read = _Version(version, flexible, unknown_tags).structure(schema, kind)

    def read(
        self, message: bytes, at: int, pause: Pause | None = None, elements_max: int = ELEMENTS_MAX
    ) -> Any:
        """Return the message whose body begins at `at`. Raises ProtocolError.

        `pause` is called repeatedly during a long message.
        """
        try:
            request, at = self._read(message, at, EntryBudget(elements_max, pause))
            if at != len(message):
                raise ProtocolError(f"{len(message) - at} bytes after its end")
        except UnicodeDecodeError as why:
            raise ProtocolError(f"{self._name} has a string that is not UTF-8") from why
        except (error, IndexError):
            raise ProtocolError(f"not a {self._name}: a message that ends too early") from None
        except ProtocolError as why:
            raise ProtocolError(f"not a {self._name}: {why}") from why
        return request


class _Version:
    """A builder of the readers of one version's fields."""

    def __init__(self, version: int, flexible: bool, unknown_tags: bool) -> None:
        self._version = version
        self._flexible = flexible
        self._unknown_tags = unknown_tags

    def structure(self, schema: Schema, kind: Any) -> Value:
        """Return a reader of a structure's fields into an object of `kind`."""
        version, new = self._version, object.__new__
        steps = self._steps(schema, kind)

        def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
            target = new(kind)
            target._version, target.tags, target.unknown_tags = version, None, None
            for step in steps:
                at = step(target, data, at, budget)
            return target, at

        return read

    def _steps(self, schema: Schema, kind: Any) -> list[Step]:
        steps = [self._step(fields, kind) for fields in field_runs(schema, self._version)]
        if self._flexible:
            tagged = {
                field["tag"]: self._step([field], kind, is_tagged=True)
                for field in schema["fields"]
                if is_tagged(field, self._version)
            }
            of_other_versions = {field["tag"] for field in schema["fields"] if "tag" in field} - tagged.keys()
            steps.append(_tags(tagged, of_other_versions if self._unknown_tags else None))
        return steps

    def _step(self, fields: list[Schema], kind: Any, *, is_tagged: bool = False) -> Step:
        if fields[0]["type"] in FORMATS:
            return _numbers(fields)
        (field,) = fields
        return _into(attribute_of(field), self._value(field, kind, is_tagged=is_tagged))

    def _value(self, field: Schema, kind: Any, *, is_tagged: bool) -> Value:
        name: str = field["type"]
        nullable = is_nullable(field, self._version)
        inner = kind.fields[attribute_of(field)].data_class if "fields" in field else None
        if not name.startswith("[]"):
            null = (_TAGGED_NULL if is_tagged else _NULL) if nullable else None
            return self._single_value(name, field, inner, null)
        if name[2:] in FORMATS:
            return _number_array(self._count(nullable), FORMATS[name[2:]])
        return _array(self._count(nullable), self._single_value(name[2:], field, inner, None))

    def _single_value(self, name: str, field: Schema, kind: Any, null: int | None) -> Value:
        """Return a reader of a value of the type `name`.

        `null` is the first byte of a null structure, if it is nullable.
        """
        nullable = null is not None
        if name == "uuid":
            return _id
        if name == "string":
            return (compact_string if self._flexible else plain_string)(nullable=nullable)
        if name in ("bytes", "records"):
            return _bytes(self._count(nullable), name == "records")
        structure = self.structure(field, kind)
        return structure if null is None else _nullable(structure, null)

    def _count(self, nullable: bool) -> Value:
        return _compact_count(nullable) if self._flexible else _plain_count(nullable)


def _numbers(fields: list[Schema]) -> Step:
    """Return a step that reads a run of fields of fixed size."""
    whole = Struct(">" + "".join(FORMATS[field["type"]] for field in fields))
    names, unpack, size = [attribute_of(field) for field in fields], whole.unpack_from, whole.size
    sizes = [Struct(">" + FORMATS[field["type"]]).size for field in fields]
    flags = [sum(sizes[:n]) for n, field in enumerate(fields) if field["type"] == "bool"]

    def step(target: Any, data: bytes, at: int, budget: EntryBudget) -> int:
        for flag in flags:
            if data[at + flag] > 1:
                raise ProtocolError(f"a bool of {data[at + flag]}")
        for name, number in zip(names, unpack(data, at), strict=True):
            setattr(target, name, number)
        return at + size

    return step


def _into(name: str, value: Value) -> Step:
    def step(target: Any, data: bytes, at: int, budget: EntryBudget) -> int:
        found, at = value(data, at, budget)
        setattr(target, name, found)
        return at

    return step


def _tags(tagged: dict[int, Step], refused: set[int] | None) -> Step:
    """Return a step that reads the tag section, and refuses the tags in `refused`.

    None means all unknown tags. Kafka skips tags that no version of its schema has.
    """

    def step(target: Any, data: bytes, at: int, budget: EntryBudget) -> int:
        if data[at] == 0:  # no tags, as in most messages
            return at + 1
        count, at = read_varint(data, at)
        _charge(budget, count)
        last = -1
        for _ in range(count):
            last, at, end = next_tag(data, at, last)
            if last in tagged:
                at = tagged[last](target, data, at, budget)
                if at != end:
                    raise ProtocolError(f"tag {last} is not as long as its size")
            elif refused is None or last in refused:
                raise ProtocolError(f"the unknown tag {last}")
            at = end
        return at

    return step


def _id(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
    """Read a UUID, or None for zeros."""
    end = skip(data, at, _ID_BYTES)
    key = data[at:end]
    return (None if key == _NO_ID else UUID(bytes=key)), end


def compact_string(*, nullable: bool) -> Value:
    """Return a reader of strings in flexible versions."""

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        size = data[at]
        at += 1
        if size > 0x7F:
            size, at = read_varint(data, at - 1)
        if size == 0:
            if nullable:
                return None, at
            raise ProtocolError("a length of -1")
        end = at + size - 1
        if end > len(data) or size > STRING_MAX_BYTES + 1:
            raise ProtocolError(f"a message that ends within a string of {size - 1} bytes, or a longer one")
        return data[at:end].decode(), end

    return read


def plain_string(*, nullable: bool) -> Value:
    """Return a reader of strings in versions that are not flexible."""
    unpack = _INT16.unpack_from

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        size = unpack(data, at)[0]
        at += 2
        if size < 0:
            if size == -1 and nullable:
                return None, at
            raise ProtocolError(f"a length of {size}")
        end = skip(data, at, size)
        return data[at:end].decode(), end

    return read


def _compact_count(nullable: bool) -> Value:
    """Return a reader of the length of an array or of bytes in flexible versions."""

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        count, at = read_varint(data, at)
        if count == 0:
            if nullable:
                return None, at
            raise ProtocolError("a length of -1")
        return count - 1, at

    return read


def _plain_count(nullable: bool) -> Value:
    """Return a reader of the length of an array or of bytes in versions that are not flexible."""
    unpack = _INT32.unpack_from

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        count = unpack(data, at)[0]
        if count >= 0:
            return count, at + 4
        if count == -1 and nullable:
            return None, at + 4
        raise ProtocolError(f"a length of {count}")

    return read


def _bytes(count: Value, is_view: bool) -> Value:
    """Return a reader of bytes. Records are a view of the message, without a copy."""

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        size, at = count(data, at, budget)
        if size is None:
            return None, at
        end = skip(data, at, size)
        return (memoryview(data)[at:end] if is_view else data[at:end]), end

    return read


def _array(count: Value, item: Value) -> Value:
    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        left, at = count(data, at, budget)
        if left is None:
            return None, at
        if left > len(data) - at:  # each entry has at least one byte
            raise ProtocolError(f"a message that ends within an array of {left}")
        _charge(budget, left)
        items: list[Any] = []
        while left:
            some = min(left, _BETWEEN_PAUSES)
            for _ in range(some):
                entry, at = item(data, at, budget)
                items.append(entry)
            left -= some
            if left and budget.pause is not None:
                budget.pause()
        return items, at

    return read


def _number_array(count: Value, form: str) -> Value:
    size = Struct(">" + form).size

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        left, at = count(data, at, budget)
        if left is None:
            return None, at
        end = skip(data, at, left * size)
        _charge(budget, left)
        return list(unpack_from(f">{left}{form}", data, at)), end

    return read


def _nullable(structure: Value, null: int) -> Value:
    """Return a reader of a nullable structure, whose first byte is `null` or 1."""

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        if data[at] == null:
            return None, at + 1
        if data[at] != _PRESENT:
            raise ProtocolError(f"a structure that begins with {data[at]}")
        return structure(data, at + 1, budget)

    return read


def _charge(budget: EntryBudget, count: int) -> None:
    budget.left -= count
    if budget.left < 0:
        raise ProtocolError(f"more than {ELEMENTS_MAX} entries")
