"""Versions of messages that kafka-python and kio lack, as the classes of kafka-clients 4.4.0 write them."""

from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_key import ApiKey

from gateway.wire import codec
from gateway.wire.framing import RequestHeader, request_header

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
]


@pytest.mark.parametrize(("key", "version", "fields", "kafkas"), REQUESTS)
def test_a_request_is_read_and_written_as_by_kafka(
    key: int, version: int, fields: dict[str, Any], kafkas: str
) -> None:
    written = codec.encode_request(key, version, 7, "me", fields)
    header = request_header(written)
    assert written[header.client_id_end + 1 :] == bytes.fromhex(kafkas)
    read = codec.decode_request(header, written)
    assert {name: getattr(read, name) for name in fields if name != "topics"} == {
        name: value for name, value in fields.items() if name != "topics"
    }
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


def test_kafka_pythons_own_clients_keep_its_messages() -> None:
    for key in (ApiKey.ApiVersions, ApiKey.DeleteGroups, ApiKey.TxnOffsetCommit):
        registered = ResponseClassRegistry._response_class_registry[key]
        assert registered.max_version == codec.versions(key).stop - 2
