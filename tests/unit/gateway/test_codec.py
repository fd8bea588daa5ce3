"""The codec beside kio's, an independent one from the same schemas, for every API and version that is served,
and beside Kafka's classes for those that kio lacks.
"""

import asyncio
import dataclasses
import datetime
import io
import struct
import types
import typing
from enum import Enum
from functools import cache
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_key import ApiKey
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from gateway.wire import codec, offload
from gateway.wire.framing import ProtocolError, RequestHeader, request_header
from gateway.wire.schema_encoder import SchemaEncoder
from tests.harness.waiting import asynchronous

SOMETHING: dict[str, Any] = {
    "bool": True,
    "int8": 1,
    "int16": 3,
    "uint16": 40_000,
    "int32": 70_000,
    "int64": 2**40,
    "float64": 1.5,
    "uuid": UUID("01234567-89ab-cdef-0123-456789abcdef"),
    "string": "héllo",
    "bytes": b"\x00\xff",
    "records": b"\x00\xff",
    "error_code": ErrorCode(27),
    "timedelta_i32": datetime.timedelta(milliseconds=70_000),
    "timedelta_i64": datetime.timedelta(milliseconds=80_000),
    "datetime_i64": datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC),
}


class Fill(Enum):
    """The content of fields: a value; one with a length of two bytes; null if the field is nullable; or the
    smallest value.
    """

    FULL = "full"
    LONG = "long"
    NULL = "null"
    EMPTY = "empty"


MANY = 130
SERVED = sorted(codec.REQUESTS)
# kio does not know them: see REQUESTS below.
NEWER = {
    (ApiKey.ApiVersions, 5),
    (ApiKey.DeleteGroups, 3),
    (ApiKey.TxnOffsetCommit, 6),
    (ApiKey.StreamsGroupHeartbeat, 1),
    (ApiKey.StreamsGroupDescribe, 1),
}
CASES = [
    pytest.param(key, version, id=f"{codec.REQUESTS[key].name}-{version}")
    for key in SERVED
    for version in codec.versions(key)
    if (key, version) not in NEWER
]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def sample(kind: Any, fill: Fill) -> Any:
    """Return a filled instance of one of kio's dataclasses."""
    hints = _hints(kind)
    values = {f.name: _value(hints[f.name], f.metadata, fill) for f in dataclasses.fields(kind)}
    return kind(**values)


def _value(hint: Any, metadata: Any, fill: Fill) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        # Records have their own format, which this file does not decode.
        if fill is Fill.NULL or metadata.get("kafka_type") == "records":
            return None
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        if fill is Fill.EMPTY:
            return ()
        first = _value(item, metadata, fill)
        if fill is Fill.LONG:
            has_lists = dataclasses.is_dataclass(item) and "tuple[" in str(typing.get_type_hints(item))
            return (first,) * (1 if has_lists else MANY)
        return (first, _value(item, metadata, Fill.FULL))
    if dataclasses.is_dataclass(hint):
        return sample(hint, fill)
    kind = metadata["kafka_type"]
    return "long" * MANY if fill is Fill.LONG and kind == "string" else SOMETHING[kind]


def written(message: Any) -> bytes:
    """kio's encoding of a message."""
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def request_bytes(key: int, version: int, fill: Fill) -> tuple[bytes, bytes]:
    """Return a request encoded by kio: header, body."""
    body = sample(load_request_schema(key, version), fill)
    header: Any = type(body).__header_schema__
    fields = {"request_api_key": i16(key), "request_api_version": i16(version), "correlation_id": i32(7)}
    return written(header(**fields, client_id=None if fill is Fill.NULL else "me")), written(body)


@pytest.mark.parametrize(("key", "version"), CASES)
def test_requests_of_the_kio_library_are_decoded_and_reencoded_identically(key: int, version: int) -> None:
    for fill in Fill:
        header, body = request_bytes(key, version, fill)
        read = request_header(header + body)
        assert (read.api_key, read.api_version, read.correlation_id) == (key, version, 7)
        assert read.client_id == (None if fill is Fill.NULL else "me")
        decoded = codec.decode_request(read, header + body)
        assert codec.with_body(read, header + body, decoded) == header + body, fill


@pytest.mark.parametrize(("key", "version"), CASES)
def test_responses_are_encoded_as_by_the_kio_library(key: int, version: int) -> None:
    """By the general codec, and by `SchemaEncoder` those that are frequent."""
    kind: Any = load_response_schema(key, version)
    for fill in Fill:
        message = sample(kind, fill)
        if key == ApiKey.ApiVersions:
            # A response with an error has the encoding of version 0, whatever version was requested.
            message = dataclasses.replace(message, error_code=ErrorCode(0))
        expected = written(kind.__header_schema__(correlation_id=i32(7))) + written(message)
        decoded = codec.decode_response(key, version, expected)
        for response in (decoded, decoded.to_dict(json=False)):
            assert codec.encode_response(RequestHeader(key, version, 7, None, 0), response) == expected, fill


def test_values_that_do_not_fit_are_refused() -> None:
    for version in (5, 6):  # 6 is flexible
        encoder = SchemaEncoder(codec.RESPONSES[ApiKey.OffsetFetch].json, version)
        for name, metadata, why in (("t", "x" * 32_768, "requires -32768"), (None, "", "name is null")):
            partition = {"partition_index": 0, "committed_offset": 0, "metadata": metadata}
            with pytest.raises((struct.error, ValueError), match=why):
                encoder.encode({"topics": [{"name": name, "partitions": [partition]}]})


@pytest.mark.parametrize(("number", "is_at_once"), [(1, True), (2_000, False)])
@asynchronous
async def test_large_gateway_request_is_encoded_in_the_codec_thread(number: int, is_at_once: bool) -> None:
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    body = {"topics": [topic | {"name": f"t{index}"} for index in range(number)], "timeout_ms": 1}
    request: Any = (ApiKey.CreateTopics, 7, 1, "me", body)
    encoding = asyncio.create_task(offload.encode_request(*request))
    await asyncio.sleep(0)
    assert encoding.done() is is_at_once
    assert await encoding == codec.encode_request(*request)


@pytest.mark.parametrize(("key", "version"), CASES)
def test_truncated_request_or_trailing_bytes_are_rejected(key: int, version: int) -> None:
    header, body = request_bytes(key, version, Fill.FULL)
    whole = header + body
    read = request_header(whole)
    with pytest.raises(ProtocolError):
        codec.decode_request(read, whole + b"\0")
    for end in range(len(header), len(whole)):
        with pytest.raises(ProtocolError):
            codec.decode_request(read, whole[:end])


# Versions that kafka-python and kio lack, as the classes of kafka-clients 4.4.0 write them.
ID = UUID("01234567-89ab-cdef-0123-456789abcdef")
SOFTWARE = {"client_software_name": "me", "client_software_version": "1"}
COMMITTED = {
    "partition_index": 1,
    "committed_offset": 5,
    "committed_leader_epoch": 3,
    "committed_metadata": "x",
}
COMMIT = {
    "transactional_id": "t",
    "group_id": "g",
    "producer_id": 7,
    "producer_epoch": 2,
    "generation_id": 4,
    "member_id": "m",
    "group_instance_id": "i",
    "topics": [{"topic_id": ID, "partitions": [COMMITTED]}],
}
REFUSED = {"topic_id": ID, "partitions": [{"partition_index": 1, "error_code": 100}]}
RESULTS = [{"group_id": "g", "error_code": 68, "error_message": "why"}, {"group_id": "h", "error_code": 0}]
TOPIC_ID = ID.hex

TASKS = [{"subtopology_id": "0", "partitions": [1]}]
NO_TASKS: dict[str, Any] = {"standby_tasks": [], "warmup_tasks": []}
ENDPOINT = {"host": "h", "port": 40_000}
CHANGELOG = {"name": "c", "replication_factor": 2, "topic_configs": [{"key": "k", "value": "v"}]}
SUBTOPOLOGY = {
    "subtopology_id": "0",
    "source_topics": ["a"],
    "state_changelog_topics": [CHANGELOG],
    "repartition_sink_topics": ["r"],
    "copartition_groups": [{"source_topics": [0]}],
}
BEAT = {"group_id": "g", "member_id": "m", "member_epoch": 4, "endpoint_information_epoch": 2}
JOINING = {
    **{"group_id": "g", "member_id": "m", "member_epoch": 0, "endpoint_information_epoch": -1},
    **{"instance_id": "i", "rack_id": "k", "rebalance_timeout_ms": 7},
    **{"topology": {"epoch": 3, "subtopologies": [SUBTOPOLOGY]}, "active_tasks": TASKS, **NO_TASKS},
    **{"process_id": "p", "user_endpoint": ENDPOINT, "client_tags": [{"key": "t", "value": "u"}]},
    "task_offsets": [{"subtopology_id": "0", "partition": 1, "offset": 5}],
    "shutdown_application": True,
}
BEATEN = {
    **{
        "member_id": "m",
        "member_epoch": 4,
        "heartbeat_interval_ms": 5_000,
        "task_offset_interval_ms": 60_000,
    },
    **{"acceptable_recovery_lag": 10_000, "status": [{"status_code": 6, "status_detail": "d"}]},
    **{"active_tasks": TASKS, **NO_TASKS, "endpoint_information_epoch": 9},
    "partitions_by_user_endpoint": [
        {"user_endpoint": ENDPOINT, "active_partitions": [{"topic": "a", "partitions": [0, 1]}]}
        | {"standby_partitions": []}
    ],
}
DESCRIBED = {
    **{"group_id": "g", "group_state": "Stable", "group_epoch": 3, "assignment_epoch": 3},
    **{"assignor_name": "sticky", "topology_description_status": 1},
    "topology": {"epoch": 0, "subtopologies": [{"subtopology_id": "0", "source_topics": ["a"]}]},
    "members": [
        {"member_id": "m", "member_epoch": 3, "client_id": "c", "client_host": "/h", "process_id": "p"}
        | {"user_endpoint": ENDPOINT, "assignment": {"active_tasks": TASKS}, "target_assignment": {}}
    ],
}

REQUESTS: list[tuple[int, int, dict[str, Any], str]] = [
    (ApiKey.ApiVersions, 5, {**SOFTWARE, "cluster_id": "c1", "node_id": 3}, "036d6502310363310000000300"),
    (ApiKey.ApiVersions, 5, SOFTWARE, "036d65023100ffffffff00"),
    (ApiKey.DeleteGroups, 3, {"groups_names": ["g", "h"]}, "030267026800"),
    (
        ApiKey.TxnOffsetCommit,
        6,
        COMMIT,
        "0274026700000000000000070002"
        "00000004026d026902" + TOPIC_ID + "0200000001"
        "0000000000000005000000030278000000",
    ),
    (ApiKey.StreamsGroupHeartbeat, 1, BEAT, "0267026d00000004000000020000ffffffffff00000000ff0000000000"),
    (
        ApiKey.StreamsGroupHeartbeat,
        1,
        JOINING,
        "0267026d00000000ffffffff0269026b00000007010000000302023002026101020263000000000002"
        "02026b027600000202720102020000010100000002023002000000010001010270"
        "0102689c400002027402750002023000000001000000000000000500000100",
    ),
    (
        ApiKey.StreamsGroupDescribe,
        1,
        {"group_ids": ["g"], "include_authorized_operations": True, "include_topology_description": True},
        "020267010100",
    ),
]
RESPONSES: list[tuple[int, int, dict[str, Any], str]] = [
    (
        ApiKey.ApiVersions,
        5,
        {"api_keys": [{"api_key": 18, "min_version": 0, "max_version": 5}], "throttle_time_ms": 7},
        "000002001200000005000000000700",
    ),
    (ApiKey.DeleteGroups, 3, {"results": RESULTS}, "000000000302670044047768790002680000000000"),
    (ApiKey.TxnOffsetCommit, 6, {"topics": [REFUSED]}, "0000000002" + TOPIC_ID + "02000000010064000000"),
    (
        ApiKey.StreamsGroupHeartbeat,
        1,
        {"error_code": 30},
        "00000000001e0001000000000000000000000000ffffffffffffffff0100000000000000000000",
    ),
    (
        ApiKey.StreamsGroupHeartbeat,
        1,
        {"error_code": 30, "error_message": None},
        "00000000001e0001000000000000000000000000ffffffffffffffff0100000000000000000000",
    ),
    (
        ApiKey.StreamsGroupHeartbeat,
        1,
        BEATEN,
        "00000000000000026d00000004000013880000ea600000000000002710020602640002023002000000010001"
        "0100000000090202689c400002026103000000000000000100010000",
    ),
    (
        ApiKey.StreamsGroupDescribe,
        1,
        {"groups": [DESCRIBED]},
        "0000000002000000026707537461626c65000000030000000301000000000202300202610101010000"
        "02026d0000000300000263032f680000000002700102689c40000101010202300200000001000101000101010000"
        "0080000000ff0107737469636b790000",
    ),
]


@pytest.mark.parametrize(("key", "version", "fields", "kafkas"), REQUESTS)
def test_a_request_is_read_and_written_as_by_kafka(
    key: int, version: int, fields: dict[str, Any], kafkas: str
) -> None:
    written = codec.encode_request(key, version, 7, "me", fields)
    header = request_header(written)
    assert written[header.client_id_end + 1 :] == bytes.fromhex(kafkas)
    read = codec.decode_request(header, written)
    plain = {name: value for name, value in fields.items() if not isinstance(value, list | dict)}
    assert {name: getattr(read, name) for name in plain} == plain
    assert codec.with_body(header, written, codec.decode_passed(header, written)) == written


@pytest.mark.parametrize(("key", "version", "fields", "kafkas"), RESPONSES)
def test_a_response_is_written_and_read_as_by_kafka(
    key: int, version: int, fields: dict[str, Any], kafkas: str
) -> None:
    written = codec.encode_response(RequestHeader(key, version, 7, None, 0), fields)
    tags = b"" if key == ApiKey.ApiVersions else b"\0"
    assert written == (7).to_bytes(4, "big") + tags + bytes.fromhex(kafkas)
    read = codec.decode_response(key, version, written)
    assert codec.encode_response(RequestHeader(key, version, 7, None, 0), read) == written


def test_importing_the_codec_leaves_kafka_python_messages_unchanged() -> None:
    for key in (ApiKey.ApiVersions, ApiKey.DeleteGroups, ApiKey.TxnOffsetCommit):
        registered = ResponseClassRegistry._response_class_registry[key]
        assert registered.max_version == codec.versions(key).stop - 2
