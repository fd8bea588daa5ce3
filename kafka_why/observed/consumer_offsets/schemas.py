"""Reads records of `__consumer_offsets` by Kafka's schemas.

`schemas.json` has the definitions of Kafka 4.4 (`common/message` in the jar of its group coordinator),
without comments and with common structures inlined. They cover all versions since Kafka 0.9. Redpanda writes
a version before each member of a classic group. A record is read as Redpanda's if it cannot be read as
Kafka's. Source of the format: CoordinatorRecordSerde.java, CoordinatorRecordType.java; Redpanda's
group_metadata.cc.

Source: GroupCoordinator.partitionFor; Redpanda's coordinator_ntp_mapper.h, xx.h and jump_consistent_hash.h.
"""

from copy import deepcopy
from functools import cache, lru_cache
from importlib.resources import files
from struct import unpack_from
from typing import Any, NamedTuple

import msgspec

from kafka_why.wire.primitives import ProtocolError, Schema, attribute_of, in_versions
from kafka_why.wire.schema_reader import SchemaReader

SCHEMAS = "schemas.json"
# The version of keys in all versions of Kafka. The first two bytes of a key are the type of the record.
_KEY_VERSION = 0
_PREFIX_BYTES = 2
_VALUE = "coordinator-value"
# The same partitions are committed repeatedly, so keys are cached. Long keys are not cached, because clients
# choose the names in a key.
_KEYS_CACHED = 10_000
_CACHED_KEY_MAX_BYTES = 512
# The maximum number of entries in a record. The largest is a target assignment of this many partitions.
ENTRIES_MAX = 1_000_000


# The type and the version of Redpanda's records of classic groups.
_REDPANDAS = (2, 3)


class UnknownRecord(ValueError):
    """The error when Kafka 4.4 does not have a record's type or version."""


class RawRecord(NamedTuple):
    """A record, with the fields of Kafka's messages as attributes in snake_case.

    A field that the version lacks has Kafka's default.
    """

    type: int
    key: Any
    value: Any  # None for a tombstone


class _Field(NamedTuple):
    data_class: Any


def read(key: bytes, value: bytes | None) -> RawRecord:
    """Read a record. Raises UnknownRecord, or ProtocolError if its bytes do not fit its type and version."""
    number, fields = (_cached_key if len(key) <= _CACHED_KEY_MAX_BYTES else _key)(key)
    values = None
    if value is not None:
        if len(value) < _PREFIX_BYTES:
            raise ProtocolError(f"a value of {len(value)} bytes has no version")
        version = int.from_bytes(value[:_PREFIX_BYTES], signed=True)
        try:
            values = _reader(number, version, True).read(value, _PREFIX_BYTES, elements_max=ENTRIES_MAX)
        except ProtocolError:
            if (number, version) != _REDPANDAS:
                raise
            values = _read_redpandas(value)
    return RawRecord(number, fields, values)


def _read_redpandas(value: bytes) -> Any:
    values = _redpandas_reader().read(value, _PREFIX_BYTES, elements_max=ENTRIES_MAX)
    if any(member.version != _REDPANDAS[1] for member in values.members):
        raise ProtocolError(f"members that are not of Redpanda's version {_REDPANDAS[1]}")
    return values


@cache
def _redpandas_reader() -> SchemaReader:
    number, version = _REDPANDAS
    schema: Any = deepcopy(schemas()[number, True])
    (members,) = (field for field in schema["fields"] if field["name"] == "members")
    members["fields"].insert(0, {"name": "version", "type": "int16", "versions": "0+"})
    return SchemaReader(_class(schema), version, unknown_tags=True)


def _key(key: bytes) -> tuple[int, Any]:
    """Return a key's type and its fields, which callers must not change, because they may be cached."""
    number = record_type(key)
    return number, _reader(number, _KEY_VERSION, False).read(key, _PREFIX_BYTES)


_cached_key = lru_cache(_KEYS_CACHED)(_key)


def record_type(key: bytes) -> int:
    """Return the type of the record with this key. Raises ProtocolError."""
    if len(key) < _PREFIX_BYTES:
        raise ProtocolError(f"a key of {len(key)} bytes has no type")
    return int.from_bytes(key[:_PREFIX_BYTES], signed=True)


@cache
def schemas() -> dict[tuple[int, bool], Schema]:
    """Return Kafka's schemas, by record type and True for values or False for keys."""
    found = msgspec.json.decode((files(__package__) / SCHEMAS).read_bytes())
    return {(schema["apiKey"], schema["type"] == _VALUE): schema for schema in found}


def record_types() -> frozenset[int]:
    """Return the types of records that Kafka 4.4 has."""
    return frozenset(number for number, _ in schemas())


@cache  # errors are not cached, because a record can have any type and version
def _reader(number: int, version: int, is_value: bool) -> SchemaReader:
    schema = schemas().get((number, is_value))
    if schema is None:
        raise UnknownRecord(f"a record of the unknown type {number}")
    if not in_versions(schema["validVersions"], version):
        raise UnknownRecord(f"{schema['name']} of the unknown version {version}")
    return SchemaReader(_class(schema), version, unknown_tags=True)


def _class(schema: Schema) -> type:
    """Return a class of a structure's objects. Its attributes are the defaults of the fields."""
    body: dict[str, Any] = {attribute_of(field): _default(field) for field in schema["fields"]}
    body["json"] = schema
    body["fields"] = {
        attribute_of(field): _Field(_class(field)) for field in schema["fields"] if "fields" in field
    }
    return type(schema["name"], (), body)


def _default(field: Schema) -> Any:
    default, kind = field.get("default"), field["type"]
    if "default" in field and default in (None, "null"):
        return None
    if kind == "string":
        return default or ""
    if kind.startswith("[]"):
        return ()
    if kind == "bool":
        return default in (True, "true")
    return int(default or 0) if kind.startswith("int") else None


_MIN = 1 << 31
_ALL = (1 << 64) - 1
_PRIMES = (
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
)
_STRIPE_BYTES = 32
_JUMP = 2_862_933_555_777_941_757


def partition_of_offsets(group_id: str, partitions: int) -> int:
    """Return a group's partition in Kafka, of a topic with `partitions` partitions (String.hashCode)."""
    units = memoryview(group_id.encode("utf-16-le", "surrogatepass")).cast("H")
    code = 0
    for unit in units:
        code = (31 * code + unit) & 0xFFFF_FFFF
    # As in Utils.abs, the minimum int becomes 0, because it has no absolute value.
    return (0 if code == _MIN else code if code < _MIN else (1 << 32) - code) % partitions


def redpandas_partition(group_id: str, partitions: int) -> int:
    """Return a group's partition in Redpanda, of a topic with `partitions` partitions.

    It is the jump consistent hash of the id's XXH64.
    """
    key, found, following = xxh64(group_id.encode()), -1, 0
    while following < partitions:
        found = following
        key = (key * _JUMP + 1) & _ALL
        following = int((found + 1) * (float(1 << 31) / float((key >> 33) + 1)))
    return found


def xxh64(data: bytes) -> int:
    """Return the XXH64 hash of `data` with seed 0."""
    prime_1, prime_2, prime_3, prime_4, prime_5 = _PRIMES
    at, code = 0, prime_5
    if len(data) >= _STRIPE_BYTES:
        lanes = [(prime_1 + prime_2) & _ALL, prime_2, 0, -prime_1 & _ALL]
        for at in range(0, len(data) - _STRIPE_BYTES + 1, _STRIPE_BYTES):
            words = unpack_from("<4Q", data, at)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
        at += _STRIPE_BYTES
        code = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _ALL
        for lane in lanes:
            code = ((code ^ _round(0, lane)) * prime_1 + prime_4) & _ALL
    code = (code + len(data)) & _ALL
    while at + 8 <= len(data):
        code = (_rotated(code ^ _round(0, unpack_from("<Q", data, at)[0]), 27) * prime_1 + prime_4) & _ALL
        at += 8
    if at + 4 <= len(data):
        word = unpack_from("<I", data, at)[0] * prime_1 & _ALL
        code = (_rotated(code ^ word, 23) * prime_2 + prime_3) & _ALL
        at += 4
    for byte in data[at:]:
        code = _rotated(code ^ (byte * prime_5 & _ALL), 11) * prime_1 & _ALL
    code = (code ^ (code >> 33)) * prime_2 & _ALL
    code = (code ^ (code >> 29)) * prime_3 & _ALL
    return code ^ (code >> 32)


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _PRIMES[1]) & _ALL, 31) * _PRIMES[0] & _ALL


def _rotated(number: int, bits: int) -> int:
    return ((number << bits) | (number >> (64 - bits))) & _ALL
