"""The records of `__consumer_offsets`: what Kafka and Redpanda write is read, in every version."""

import base64
import json
import subprocess
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded.java import find_java
from kafka_why.observed.consumer_offsets.decode import decode
from kafka_why.observed.consumer_offsets.schemas import (
    SCHEMAS,
    UnknownRecord,
    read,
    redpanda_partition,
    schemas,
)
from kafka_why.observed.records import ClassicGeneration
from kafka_why.wire.primitives import ProtocolError
from kafka_why.wire.schema_fields import STRUCTURE, Field, Schema, message_of, versions_of
from tests.harness.coordinator_schemas import as_text, of_kafka
from tests.harness.java_tools import java_options

WRITER = Path(__file__).with_name("kafkas_records.java")
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_TEXTS = ("", "g", "orders", "a b", "größe", "x" * 300)


class Message(NamedTuple):
    """A key or value to write: its schema, its version, what precedes it, and Kafka's JSON of it."""

    schema: Schema
    version: int
    prefix: int
    content: dict[str, Any]

    @property
    def line(self) -> str:
        return f"{self.prefix} {self.version} {self.schema['name']} {json.dumps(self.content)}"


def written(messages: Sequence[Message]) -> list[bytes]:
    command = [str(find_java()), *java_options(), "-Dlog4j2.level=OFF", str(WRITER)]
    lines = "".join(f"{message.line}\n" for message in messages)
    done = subprocess.run(command, input=lines.encode(), capture_output=True, timeout=120, check=True)
    return [bytes.fromhex(line) for line in done.stdout.decode().split()]


def random_content(structure: Field, random: Random) -> dict[str, Any]:
    """Return random values for the fields of a version, as Kafka's JSON has them."""
    return {_json_name(field): _value(field, random) for field in structure.fields}


def _json_name(field: Field) -> str:
    name: str = field.schema["name"]
    return name[0].lower() + name[1:]


def _value(field: Field, random: Random) -> Any:
    if field.is_nullable and random.random() < 0.3:
        return None
    if field.item is not None:
        # Kafka does not write an empty list in a tag whose default is null.
        least = 1 if "tag" in field.schema else 0
        return [_value(field.item, random) for _ in range(random.randrange(least, 4))]
    if field.type == STRUCTURE:
        return random_content(field, random)
    match field.type:
        case "string":
            return random.choice(_TEXTS)
        case "bytes":
            return base64.b64encode(random.randbytes(random.randrange(200))).decode()
        case "uuid":
            return base64.urlsafe_b64encode(random.randbytes(16)).decode().rstrip("=")
        case "uint16":
            return random.randrange(2**16)
        case "bool":
            return random.random() < 0.5
    half = 2 ** (_BITS[field.type] - 1)
    return random.choice((-1, 0, 1, half - 1, -half, random.randrange(-half, half)))


def as_content(read: Any, structure: Field) -> dict[str, Any]:
    """Return the fields of a message that was read, as Kafka's JSON has them."""
    return {_json_name(field): _as_json(getattr(read, field.name), field) for field in structure.fields}


def _as_json(value: Any, field: Field) -> Any:
    if value is not None and field.item is not None:
        return [_as_json(one, field.item) for one in value]
    if value is not None and field.type == STRUCTURE:
        return as_content(value, field)
    if isinstance(value, UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


MESSAGES_OF_A_VERSION = 25
KEY = (1).to_bytes(2) + b"\0\1g\0\6orders\0\0\0\3"


def samples(random: Random) -> list[Message]:
    """Keys of all types, and values of all types and versions."""
    messages = [
        Message(schema, version, version if is_value else number, random_content(structure, random))
        for (number, is_value), schema in schemas().items()
        for version in versions_of(schema["validVersions"])
        for structure in [message_of(schema, version)] * MESSAGES_OF_A_VERSION
    ]
    assert messages
    return messages


def a_key(number: int) -> bytes:
    """Return a key of a type: the members and topics in it have no meaning here."""
    fields = schemas()[number, False]["fields"]
    body = b"".join(b"\0\1g" if field["type"] == "string" else b"\0\0\0\1" for field in fields)
    return number.to_bytes(2) + body


def test_offsets_topic_schemas_equal_those_of_kafkas_jar() -> None:
    package_data = (files("kafka_why.observed.consumer_offsets") / SCHEMAS).read_text()
    assert package_data == as_text(of_kafka()), "python -m tests.harness.coordinator_schemas writes them"


def test_records_written_by_kafka_are_read_in_every_version() -> None:
    messages = samples(Random(1))
    for message, data in zip(messages, written(messages), strict=True):
        number = message.schema["apiKey"]
        if message.schema["type"] == "coordinator-key":
            found = read(data, None).key
        else:
            found = read(a_key(number), data).value
            decode(a_key(number), data)
        structure = message_of(message.schema, message.version)
        assert as_content(found, structure) == message.content, message.line


def test_truncated_or_overlong_record_value_is_refused() -> None:
    messages = [m for m in samples(Random(2)) if m.schema["type"] == "coordinator-value"][::10]
    for message, data in zip(messages, written(messages), strict=True):
        key = a_key(message.schema["apiKey"])
        for damaged in (data[:-1], data + b"\0", data[: len(data) // 2]):
            with pytest.raises(ProtocolError):
                read(key, damaged)


@pytest.mark.parametrize("number", [-1, 9, 18, 24, 32767])
def test_a_record_of_an_unknown_type_is_named(number: int) -> None:
    with pytest.raises(UnknownRecord, match=f"unknown type {number}"):
        read(number.to_bytes(2, signed=True) + b"\0\1g", None)


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_a_value_of_an_unknown_version_is_named(version: int) -> None:
    with pytest.raises(UnknownRecord, match=f"OffsetCommitValue of the unknown version {version}"):
        read(KEY, version.to_bytes(2, signed=True) + bytes(20))


def test_tags_of_later_versions_of_kafka_are_skipped() -> None:
    """KIP-915: a later Kafka adds nothing but tagged fields."""
    (data,) = written([Message(schemas()[3, True], 0, 0, {"epoch": 7, "metadataHash": 0})])
    assert data.endswith(b"\0")
    with_tag = data[:-1] + b"\1\x09\2ab"
    assert read(a_key(3), with_tag).value.epoch == 7


@given(st.binary(max_size=60), st.none() | st.binary(max_size=120), st.integers(0, 23), st.integers(0, 5))
def test_random_bytes_decode_or_raise_a_protocol_error(
    key: bytes, value: bytes | None, number: int, version: int
) -> None:
    for some_key in (key, number.to_bytes(2) + key, KEY):
        for some_value in (value, None if value is None else version.to_bytes(2) + value):
            try:
                decode(some_key, some_value)
            except (UnknownRecord, ProtocolError):
                continue


REDPANDAS_KEY = bytes.fromhex("0002000167")
SUBSCRIPTION = bytes.fromhex("00000000000100066f7264657273ffffffff")
ASSIGNMENT = bytes.fromhex("00000000000100066f7264657273000000020000000000000001ffffffff")
VALUE = bytes.fromhex(
    "00030008636f6e73756d657200000007000572616e67650003612d310000018bcfe568000000000200030003612d3100"
    "03692d31000161000831302e302e302e31000493e0000027100000001200000000000100066f7264657273ffffffff00"
    "00001e00000000000100066f7264657273000000020000000000000001ffffffff00030003622d31ffff000162000831"
    "302e302e302e32000493e0000027100000001200000000000100066f7264657273ffffffff0000001e00000000000100"
    "066f7264657273000000020000000000000001ffffffff"
)


def test_group_record_of_redpanda_is_decoded() -> None:
    group_id, says = decode(REDPANDAS_KEY, VALUE)
    assert isinstance(says, ClassicGeneration)
    assert (group_id, says.generation, says.leader_id, says.since_ms) == ("g", 7, "a-1", 1_700_000_000_000)
    members = [(m.member_id, m.group_instance_id, m.client_host) for m in says.members]
    assert members == [("a-1", "i-1", "10.0.0.1"), ("b-1", None, "10.0.0.2")]
    assert {(m.rebalance_timeout_ms, m.session_timeout_ms) for m in says.members} == {(300_000, 10_000)}
    assert {(m.subscription, m.assignment) for m in says.members} == {(SUBSCRIPTION, ASSIGNMENT)}


def test_group_record_unlike_kafkas_and_redpandas_is_refused() -> None:
    of_another_version = VALUE.replace(b"\x00\x03\x00\x03a-1\x00\x03i", b"\x00\x04\x00\x03a-1\x00\x03i")
    for value in (VALUE[:-1], VALUE + b"\x00", of_another_version):
        with pytest.raises(ProtocolError):
            decode(REDPANDAS_KEY, value)


def test_partition_of_a_group_is_the_jump_hash_of_its_xxh64() -> None:
    known = {"": 7, "orders": 14, "payments-of-a-long-name-with-more-than-32-bytes": 6}
    assert {group_id: redpanda_partition(group_id, 16) for group_id in known} == known
    assert {redpanda_partition(f"group-{n}", 16) for n in range(500)} == set(range(16))
    moved = [(redpanda_partition(f"g{n}", 16), redpanda_partition(f"g{n}", 17)) for n in range(500)]
    assert all(now in (was, 16) for was, now in moved), "a jump hash moves keys to the new partition alone"
