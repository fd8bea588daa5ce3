"""The fields that a version of a message has, by Kafka's JSON definitions of messages.

The definitions are in clients/src/main/resources/common/message. Decoders and encoders are compiled from the
fields, so that only this module reads the notation of types, versions, nullability and tags.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

import msgspec

Schema = Mapping[str, Any]

STRUCTURE = "structure"
_VERSION_MAX = 2**15 - 1
_WORD_START = re.compile(r"(?<!^)(?=[A-Z])")  # each capital letter except the first letter of the name

FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "bitfield": "i",  # kafka-python's, for sets of operations
}
"""The types of fixed size except ids, with their formats in `struct`."""


class Field(msgspec.Struct, frozen=True):
    """A field as one version of a message has it, an item of an array, or the whole message."""

    schema: Schema
    name: str  # in snake_case, as decoded messages have it
    type: str  # Kafka's, or STRUCTURE
    is_flexible: bool
    is_nullable: bool
    tag: int | None  # None in a version that has the field outside its tag section
    fields: "Sequence[Field]"  # of a structure, possibly none
    item: "Field | None"  # of an array; None for other types


def message_of(schema: Schema, version: int) -> Field:
    """Return a message with the fields of this version."""
    return _field(schema, version, version in versions_of(schema["flexibleVersions"]))


def _field(schema: Schema, version: int, is_flexible: bool) -> Field:
    """Return a field, or the whole message, with the nested fields of this version."""
    name, type_, fields = snake_case(schema["name"]), schema["type"], []
    if "fields" in schema:
        of_version = [field for field in schema["fields"] if version in versions_of(field["versions"])]
        fields = [_field(field, version, is_flexible) for field in of_version]
    is_array = type_.startswith("[]")
    item_type = STRUCTURE if "fields" in schema else type_.removeprefix("[]")  # of the field if no array
    is_nullable = "nullableVersions" in schema and version in versions_of(schema["nullableVersions"])
    is_tagged = "taggedVersions" in schema and version in versions_of(schema["taggedVersions"])
    tag = schema["tag"] if is_tagged else None
    if not is_array:
        return Field(schema, name, item_type, is_flexible, is_nullable, tag, fields, item=None)
    item = Field(schema, name, item_type, is_flexible, is_nullable=False, tag=None, fields=fields, item=None)
    return Field(schema, name, type_, is_flexible, is_nullable, tag, fields=(), item=item)


def runs_of(fields: Iterable[Field]) -> Iterable[tuple[bool, Iterator[Field]]]:
    """Return runs of consecutive numbers, each with True, and runs of other fields, each with False."""
    return groupby(fields, lambda field: field.type in FORMATS)


@cache
def versions_of(text: str) -> range:
    """Return the versions in Kafka's notation, such as `2+`, `0-3`, `1` or `none`."""
    if text == "none":
        return range(0)
    first, _, last = text.removesuffix("+").partition("-")
    return range(int(first), _VERSION_MAX + 1 if text.endswith("+") else int(last or first) + 1)


@cache
def snake_case(name: str) -> str:
    """Return the name of a field as decoded messages have it."""
    return _WORD_START.sub("_", name).lower()


def default_of(field: Schema) -> Any:
    """Return Kafka's default of a field, or None for a structure, a uuid and bytes."""
    default, kind = field.get("default"), field["type"]
    if default == "null" or (default is None and "default" in field):
        return None
    if kind == "string":
        return default or ""
    if kind in FORMATS:
        return default in (True, "true") if kind == "bool" else int(default or 0)
    return () if kind[:2] == "[]" else None
