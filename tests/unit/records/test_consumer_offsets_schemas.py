"""The records of `__consumer_offsets`: what Kafka writes is read, in every version, and nothing else is."""

from importlib.resources import files
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.consumer_offsets.decode import decode
from records.consumer_offsets.schemas import SCHEMAS, UnknownRecord, read, record_type, schemas
from records.wire.primitives import ProtocolError
from records.wire.schema_notation import Schema
from tests.harness.coordinator_schemas import as_text, of_kafka
from tests.harness.kafkas_records import Message, as_content, random_content, written

MESSAGES_OF_A_VERSION = 25
KEY = (1).to_bytes(2) + b"\0\1g\0\6orders\0\0\0\3"


def versions(schema: Schema) -> range:
    first, _, last = schema["validVersions"].partition("-")
    return range(int(first), int(last or first) + 1)


def samples(random: Random) -> list[Message]:
    """Keys of all types, and values of all types and versions."""
    messages = [
        Message(schema, version, version if is_value else number, random_content(schema, version, random))
        for (number, is_value), schema in schemas().items()
        for version in versions(schema)
        for _ in range(MESSAGES_OF_A_VERSION)
    ]
    assert messages
    return messages


def a_key(number: int) -> bytes:
    """A key of a type: the members and topics in it have no meaning here."""
    fields = schemas()[number, False]["fields"]
    body = b"".join(b"\0\1g" if field["type"] == "string" else b"\0\0\0\1" for field in fields)
    return number.to_bytes(2) + body


def test_the_schemas_are_those_of_kafkas_jar() -> None:
    package_data = (files("records.consumer_offsets") / SCHEMAS).read_text()
    assert package_data == as_text(of_kafka()), "python -m tests.harness.coordinator_schemas writes them"


def test_what_kafka_writes_is_read_in_every_version() -> None:
    messages = samples(Random(1))
    for message, data in zip(messages, written(messages), strict=True):
        number = message.schema["apiKey"]
        if message.schema["type"] == "coordinator-key":
            found = read(data, None).key
        else:
            found = read(a_key(number), data).value
            decode(a_key(number), data)
        assert as_content(found, message.schema, message.version) == message.content, message.line


def test_a_value_that_is_cut_or_longer_is_refused() -> None:
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


def test_a_tombstone_has_no_value() -> None:
    assert read(KEY, None).value is None


def test_tags_of_later_versions_of_kafka_are_skipped() -> None:
    """KIP-915: a later Kafka adds nothing but tagged fields."""
    (data,) = written([Message(schemas()[3, True], 0, 0, {"epoch": 7, "metadataHash": 0})])
    assert data.endswith(b"\0")
    with_tag = data[:-1] + b"\1\x09\2ab"
    assert read(a_key(3), with_tag).value.epoch == 7


@given(st.binary(max_size=60), st.none() | st.binary(max_size=120), st.integers(0, 23), st.integers(0, 5))
def test_any_bytes_are_read_or_refused(key: bytes, value: bytes | None, number: int, version: int) -> None:
    for some_key in (key, number.to_bytes(2) + key, KEY):
        for some_value in (value, None if value is None else version.to_bytes(2) + value):
            try:
                decode(some_key, some_value)
            except (UnknownRecord, ProtocolError):
                continue


def test_the_type_of_a_record_is_in_its_key() -> None:
    assert record_type(KEY) == 1
    with pytest.raises(ProtocolError):
        record_type(b"\0")
