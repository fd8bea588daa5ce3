"""A decoder of messages by Kafka's own schemas: of clients' requests, and of the records of
`__consumer_offsets` (docs/decisions/0028).

The decoder accepts only the encodings that Kafka's writer produces, so that all later readers of the bytes
get the same message as the gateway. It refuses numbers that are longer than needed or have more than 31 bits,
tags that are duplicate or out of order, a tagged field that does not match its size, null where the schema
does not allow it, strings that exceed 32,767 bytes or are not UTF-8, and bytes after the end. A message is
read in one pass, in time proportional to its bytes.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka_why.wire.primitives import STRING_MAX_BYTES, ProtocolError, next_tag, read_varint, skip
from kafka_why.wire.schema_fields import FORMATS, STRUCTURE, Field, message_of, runs_of

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_NULL, _TAGGED_NULL, _PRESENT = 0xFF, 0, 1  # the first byte of a nullable structure
_ID_BYTES = 16
_NO_ID = bytes(_ID_BYTES)

# A frame could have millions of entries. Reading this many takes 20 to 200 ms.
ELEMENTS_MAX = 50_000
UNLIMITED = 2**31
# The number of entries between two pauses. Reading them takes some tenths of a millisecond.
_BETWEEN_PAUSES = 128

Pause = Callable[[], None]
"""A function that lets other work run while a long message is decoded."""


@dataclass(slots=True)
class EntryBudget:
    """A limit of a message's array entries and tags, which is reduced while the message is read."""

    left: int  # how many the rest of the message may have
    pause: Pause | None  # called after every _BETWEEN_PAUSES entries


Value = Callable[[bytes, int, EntryBudget], tuple[Any, int]]
"""A function that reads a value. It returns the value and the position after it."""
Step = Callable[[Any, bytes, int, EntryBudget], int]
"""A function that reads some fields of a structure into an object. It returns the position after them."""


class SchemaReader:
    """A decoder of one version of a message into objects of the class `kind`.

    `kind` is kafka-python's class of the message, or a class with the same two attributes. `json` is Kafka's
    schema of the message. `fields` has the fields by name; a field whose type is a structure has the class of
    this structure as its `data_class`. A tag that is not in the schema is skipped if `unknown_tags`. Else it
    is refused, because other readers of the bytes may know it.
    """

    def __init__(self, kind: Any, version: int, *, unknown_tags: bool) -> None:
        self._name = f"{kind.json['name']} v{version}"
        self._version, self._unknown_tags = version, unknown_tags
        self._read = self._structure_reader(message_of(kind.json, version), kind)

    def read(
        self, message: bytes, at: int, pause: Pause | None = None, elements_max: int = ELEMENTS_MAX
    ) -> Any:
        """Return the message whose body begins at `at`. Raises ProtocolError.

        `pause` is called repeatedly during a long message. A message of more than `elements_max` array
        entries and tags is refused.
        """
        try:
            request, at = self._read(message, at, EntryBudget(elements_max, pause))
            if at != len(message):
                raise ProtocolError(f"{len(message) - at} bytes after its end")
        except UnicodeDecodeError as why:
            raise ProtocolError(f"{self._name} has a string that is not UTF-8") from why
        except (struct.error, IndexError):
            raise ProtocolError(f"not a {self._name}: a message that ends too early") from None
        except ProtocolError as why:
            raise ProtocolError(f"not a {self._name}: {why}") from why
        return request

    def _structure_reader(self, field: Field, kind: Any) -> Value:
        """Return a reader of a structure, which returns a new object of the class `kind`."""
        version, is_flexible, new = self._version, field.is_flexible, object.__new__
        read_fields = self._fields_step((one for one in field.fields if one.tag is None), kind)
        tag_steps = {one.tag: self._fields_step([one], kind) for one in field.fields if one.tag is not None}
        all_tags = {one["tag"] for one in field.schema["fields"] if "tag" in one}
        read_tags = _tags_step(tag_steps, all_tags - tag_steps.keys(), unknown_tags=self._unknown_tags)

        def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
            target = new(kind)
            target._version, target.tags, target.unknown_tags = version, None, None
            at = read_fields(target, data, at, budget)
            if is_flexible:  # most tag sections are empty: one zero byte
                at = read_tags(target, data, at, budget) if data[at] else at + 1
            return target, at

        return read

    def _fields_step(self, fields: Iterable[Field], kind: Any) -> Step:
        """Return a step that reads these fields of a structure, whose class is `kind`."""
        # A Value with the name of its field, or None with a Step that reads several numbers.
        steps: list[tuple[str | None, Any]] = []
        for are_numbers, run in runs_of(fields):
            if are_numbers:
                steps.append((None, _numbers_step([*run])))
            else:
                steps += [(field.name, self._value_reader(field, kind)) for field in run]

        def step(target: Any, data: bytes, at: int, budget: EntryBudget) -> int:
            for name, read in steps:
                if name is None:
                    at = read(target, data, at, budget)
                else:
                    value, at = read(data, at, budget)
                    setattr(target, name, value)
            return at

        return step

    def _value_reader(self, field: Field, kind: Any) -> Value:
        """Return a reader of one field of a structure, whose class is `kind`. The field is not a number."""
        if field.type == STRUCTURE:
            structure = self._structure_reader(field, kind.fields[field.name].data_class)
            null_byte = _NULL if field.tag is None else _TAGGED_NULL
            return _nullable_reader(structure, null_byte) if field.is_nullable else structure
        if field.type == "uuid":
            return _read_uuid
        if field.type == "string":
            return (_compact_string_reader if field.is_flexible else _plain_string_reader)(
                nullable=field.is_nullable
            )
        read_count = (_compact_count_reader if field.is_flexible else _plain_count_reader)(
            nullable=field.is_nullable
        )
        if field.item is None:  # not an array
            return _bytes_reader(read_count, is_view=field.type == "records")
        if field.item.type in FORMATS:
            return _number_array_reader(read_count, FORMATS[field.item.type])
        return _array_reader(read_count, self._value_reader(field.item, kind))


def _numbers_step(fields: Sequence[Field]) -> Step:
    """Return a step that reads consecutive fields of fixed size."""
    form = ">" + "".join([FORMATS[field.type] for field in fields])
    bool_offsets = [struct.calcsize(form[:n]) for n, letter in enumerate(form) if letter == "?"]
    names, whole = [field.name for field in fields], struct.Struct(form)
    unpack, size = whole.unpack_from, whole.size

    def step(target: Any, data: bytes, at: int, budget: EntryBudget) -> int:
        for offset in bool_offsets:
            if data[at + offset] > 1:  # `struct` would read it as true, but Kafka writes only 0 and 1
                raise ProtocolError(f"a bool of {data[at + offset]}")
        for name, number in zip(names, unpack(data, at), strict=True):
            setattr(target, name, number)
        return at + size

    return step


def _tags_step(tag_steps: dict[int, Step], of_other_versions: set[int], *, unknown_tags: bool) -> Step:
    """Return a step that reads the tag section. `tag_steps` has a step for each tag of this version.

    Tags that only other versions have are refused. Tags that no version has are skipped if `unknown_tags`, as
    by Kafka, else refused.
    """

    def step(target: Any, data: bytes, at: int, budget: EntryBudget) -> int:
        count, at = read_varint(data, at)
        _spend(budget, count)
        tag = -1
        for _ in range(count):
            tag, at, end = next_tag(data, at, last=tag)
            if tag in tag_steps:
                at = tag_steps[tag](target, data, at, budget)
                if at != end:
                    raise ProtocolError(f"tag {tag} is not as long as its size")
            elif tag in of_other_versions or not unknown_tags:
                raise ProtocolError(f"the unknown tag {tag}")
            at = end
        return at

    return step


def _read_uuid(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
    """Read a UUID, or None for zeros."""
    end = skip(data, at, _ID_BYTES)
    key = data[at:end]
    return (None if key == _NO_ID else UUID(bytes=key)), end


def _compact_string_reader(*, nullable: bool) -> Value:
    """Return a reader of strings in flexible versions."""

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        size_plus_1 = data[at]  # 0 for null
        at += 1
        if size_plus_1 > 0x7F:  # a varint of more than one byte
            size_plus_1, at = read_varint(data, at - 1)
        if size_plus_1 == 0:
            if nullable:
                return None, at
            raise ProtocolError("a length of -1")
        size = size_plus_1 - 1
        end = at + size
        if end > len(data) or size > STRING_MAX_BYTES:
            raise ProtocolError(f"a string of {size} bytes, longer than the message or the maximum")
        return data[at:end].decode(), end

    return read


def _plain_string_reader(*, nullable: bool) -> Value:
    """Return a reader of strings in versions that are not flexible."""
    unpack = _INT16.unpack_from

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        (size,) = unpack(data, at)
        at += 2
        if size >= 0:
            end = skip(data, at, size)
            return data[at:end].decode(), end
        if size == -1 and nullable:
            return None, at
        raise ProtocolError(f"a length of {size}")

    return read


def _compact_count_reader(*, nullable: bool) -> Value:
    """Return a reader of the length of an array or bytes in flexible versions."""

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        count_plus_1, at = read_varint(data, at)  # 0 for null
        if count_plus_1 == 0:
            if nullable:
                return None, at
            raise ProtocolError("a length of -1")
        return count_plus_1 - 1, at

    return read


def _plain_count_reader(*, nullable: bool) -> Value:
    """Return a reader of the length of an array or bytes in versions that are not flexible."""
    unpack = _INT32.unpack_from

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        (count,) = unpack(data, at)
        if count >= 0:
            return count, at + 4
        if count == -1 and nullable:
            return None, at + 4
        raise ProtocolError(f"a length of {count}")

    return read


def _bytes_reader(read_count: Value, *, is_view: bool) -> Value:
    """Return a reader of bytes, as a view of the message without a copy if `is_view`."""

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        size, at = read_count(data, at, budget)
        if size is None:
            return None, at
        end = skip(data, at, size)
        return (memoryview(data)[at:end] if is_view else data[at:end]), end

    return read


def _array_reader(read_count: Value, read_item: Value) -> Value:
    """Return a reader of an array of anything but numbers."""

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        remaining, at = read_count(data, at, budget)
        if remaining is None:
            return None, at
        if remaining > len(data) - at:  # each entry has at least one byte
            raise ProtocolError(f"a message that ends within an array of {remaining}")
        _spend(budget, remaining)
        items: list[Any] = []
        while remaining:
            until_pause = min(remaining, _BETWEEN_PAUSES)
            for _ in range(until_pause):
                entry, at = read_item(data, at, budget)
                items.append(entry)
            remaining -= until_pause
            if remaining and budget.pause is not None:
                budget.pause()
        return items, at

    return read


def _number_array_reader(read_count: Value, form: str) -> Value:
    """Return a reader of an array of numbers in the format `form` of `struct`."""
    size = struct.Struct(">" + form).size

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        count, at = read_count(data, at, budget)
        if count is None:
            return None, at
        end = skip(data, at, count * size)
        _spend(budget, count)
        return list(struct.unpack_from(f">{count}{form}", data, at)), end

    return read


def _nullable_reader(structure: Value, null_byte: int) -> Value:
    """Return a reader of a nullable structure, which begins with `null_byte` if it is null, else with 1."""

    def read(data: bytes, at: int, budget: EntryBudget) -> tuple[Any, int]:
        if data[at] == null_byte:
            return None, at + 1
        if data[at] != _PRESENT:
            raise ProtocolError(f"a structure that begins with {data[at]}")
        return structure(data, at + 1, budget)

    return read


def _spend(budget: EntryBudget, count: int) -> None:
    """Subtract entries from the budget. Raises ProtocolError if it has fewer."""
    budget.left -= count
    if budget.left < 0:
        raise ProtocolError(f"{-budget.left} entries more than the limit")
