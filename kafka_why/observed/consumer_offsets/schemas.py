"""Reads records of `__consumer_offsets` by Kafka's schemas.

`schemas.json` has the definitions of Kafka 4.4 (`common/message` in the jar of its group coordinator),
without comments and with common structures inlined. They cover all versions since Kafka 0.9. Redpanda writes
a version before each member of a classic group. A record is read as Redpanda's if it cannot be read as
Kafka's. Source of the format: CoordinatorRecordSerde.java, CoordinatorRecordType.java; Redpanda's
group_metadata.cc.

Source of a group's partition: GroupCoordinator.partitionFor; Redpanda's coordinator_ntp_mapper.h, xx.h and
jump_consistent_hash.h.
"""

from copy import deepcopy
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh64_intdigest

from kafka_why.wire.primitives import ProtocolError
from kafka_why.wire.schema_fields import Schema, default_of, snake_case, versions_of
from kafka_why.wire.schema_reader import SchemaReader

SCHEMAS = "schemas.json"
# The version of keys in all versions of Kafka. The first two bytes of a key are the type of the record.
_KEY_VERSION = 0
_PREFIX_BYTES = 2  # of a key, its type; of a value, its version
_VALUE = "coordinator-value"  # the schema type of values
# The same partitions are committed repeatedly, so keys are cached. Long keys are not cached, because clients
# choose the names in a key.
_KEYS_CACHED = 10_000
_CACHED_KEY_MAX_BYTES = 512
# The maximum number of entries in a record. The largest is a target assignment of this many partitions.
ENTRIES_MAX = 1_000_000


# Redpanda's records of classic groups.
_REDPANDA_TYPE, _REDPANDA_VERSION = 2, 3


class UnknownRecord(ValueError):
    """The error when Kafka 4.4 does not have a record's type or version."""


class RawRecord(NamedTuple):
    """A record. Its key and value have the fields of Kafka's messages as attributes in snake_case.

    A field that the version lacks has Kafka's default.
    """

    type: int  # CoordinatorRecordType
    key: Any
    value: Any  # None for a tombstone


class _Field(NamedTuple):
    """A structure in a record, with the attribute that `SchemaReader` needs."""

    data_class: Any


def read(key: bytes, value: bytes | None) -> RawRecord:
    """Read a record. Raises UnknownRecord, or ProtocolError if its bytes do not fit its type and version."""
    decode = _decode_key_cached if len(key) <= _CACHED_KEY_MAX_BYTES else _decode_key
    number, key_fields = decode(key)
    value_fields = None
    if value is not None:
        if len(value) < _PREFIX_BYTES:
            raise ProtocolError(f"a value of {len(value)} bytes has no version")
        version = int.from_bytes(value[:_PREFIX_BYTES], signed=True)
        try:
            value_fields = _reader(number, version, is_value=True).read(
                value, _PREFIX_BYTES, elements_max=ENTRIES_MAX
            )
        except ProtocolError:
            if (number, version) != (_REDPANDA_TYPE, _REDPANDA_VERSION):
                raise
            value_fields = _read_redpanda(value)
    return RawRecord(number, key_fields, value_fields)


def _read_redpanda(value: bytes) -> Any:
    """Read the value of a classic group's record as Redpanda writes it. Raises ProtocolError."""
    group = _redpanda_reader().read(value, _PREFIX_BYTES, elements_max=ENTRIES_MAX)
    if any(member.version != _REDPANDA_VERSION for member in group.members):
        raise ProtocolError(f"members that are not of Redpanda's version {_REDPANDA_VERSION}")
    return group


@cache
def _redpanda_reader() -> SchemaReader:
    """Return a reader with Kafka's schema of a classic group, and a version before each member."""
    schema: Any = deepcopy(schemas()[_REDPANDA_TYPE, True])
    (members,) = (field for field in schema["fields"] if field["name"] == "members")
    members["fields"].insert(0, {"name": "version", "type": "int16", "versions": "0+"})
    return SchemaReader(_class(schema), _REDPANDA_VERSION, unknown_tags=True)


def _decode_key(key: bytes) -> tuple[int, Any]:
    """Return a key's type and its fields, which callers must not change, because they may be cached."""
    number = record_type(key)
    return number, _reader(number, _KEY_VERSION, is_value=False).read(key, _PREFIX_BYTES)


_decode_key_cached = lru_cache(_KEYS_CACHED)(_decode_key)


def record_type(key: bytes) -> int:
    """Return the type of the record with this key. Raises ProtocolError."""
    if len(key) < _PREFIX_BYTES:
        raise ProtocolError(f"a key of {len(key)} bytes has no type")
    return int.from_bytes(key[:_PREFIX_BYTES], signed=True)


@cache
def schemas() -> dict[tuple[int, bool], Schema]:
    """Return Kafka's schemas by (record type, is_value)."""
    definitions = msgspec.json.decode((files(__package__) / SCHEMAS).read_bytes())
    return {(schema["apiKey"], schema["type"] == _VALUE): schema for schema in definitions}


def record_types() -> frozenset[int]:
    """Return the types of records that Kafka 4.4 has."""
    return frozenset(number for number, _ in schemas())


@cache  # errors are not cached, because a record can have any type and version
def _reader(number: int, version: int, *, is_value: bool) -> SchemaReader:
    """Return the reader of keys or values of this record type and version. Raises UnknownRecord."""
    schema = schemas().get((number, is_value))
    if schema is None:
        raise UnknownRecord(f"a record of the unknown type {number}")
    if version not in versions_of(schema["validVersions"]):
        raise UnknownRecord(f"{schema['name']} of the unknown version {version}")
    return SchemaReader(_class(schema), version, unknown_tags=True)


def _class(schema: Schema) -> type:
    """Return a class for records of this schema. Its class attributes are the defaults of the fields."""
    body: dict[str, Any] = {snake_case(field["name"]): default_of(field) for field in schema["fields"]}
    body["json"] = schema
    body["fields"] = {
        snake_case(field["name"]): _Field(_class(field)) for field in schema["fields"] if "fields" in field
    }
    return type(schema["name"], (), body)


_MASK_64_BITS = (1 << 64) - 1
_JUMP_MULTIPLIER = 2_862_933_555_777_941_757  # of the jump consistent hash


def kafka_partition(group_id: str, partitions: int) -> int:
    """Return a group's partition in Kafka, of a topic with `partitions` partitions.

    It is derived from the absolute value of the id's String.hashCode. As in Utils.abs, the absolute value of
    the minimum int is 0.
    """
    utf16_units = memoryview(group_id.encode("utf-16-le", "surrogatepass")).cast("H")
    hash_code = 0  # as an unsigned number of 32 bits
    for unit in utf16_units:
        hash_code = (31 * hash_code + unit) & 0xFFFF_FFFF
    absolute = min(hash_code, (1 << 32) - hash_code)  # 2^31 for the minimum int
    return absolute % (1 << 31) % partitions


def redpanda_partition(group_id: str, partitions: int) -> int:
    """Return a group's partition in Redpanda, of a topic with `partitions` partitions.

    It is the jump consistent hash of the id's XXH64.
    """
    key, bucket, next_bucket = xxh64_intdigest(group_id.encode()), -1, 0
    while next_bucket < partitions:
        bucket = next_bucket
        key = (key * _JUMP_MULTIPLIER + 1) & _MASK_64_BITS
        next_bucket = int((bucket + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return bucket
