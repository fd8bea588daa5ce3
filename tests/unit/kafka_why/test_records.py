"""Records that are requests or packs, and those that are refused, with their reasons and responses."""

import json
from itertools import product
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.codec import (
    DEAD_LETTER_MAX_BYTES,
    MESSAGE_MAX_CHARS,
    Address,
    Reason,
    Refusal,
    clock_record,
    decode_request,
    encode,
    is_clock_record,
    is_pack,
    pack,
    refuse,
    refuse_unreadable,
    slot_of,
    unpack,
)
from kafka_why.contract.early_answers import (
    AsOf,
    EarlyAnswers,
    Headers,
    ReplicaId,
    as_of,
    commits_of,
    early_headers,
    is_from_query,
    marker_headers,
    marker_of,
)
from kafka_why.contract.kafka.requests import (
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    SyncGroup,
    TopicMetadata,
)
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode, ReleaseGroup
from streaming.query.admission import MAX_SHARDS, allows_packs, check_shards, shard_of

COMMON: dict[str, Any] = {"group_id": "g", "correlation_id": "c", "reply_partition": 1, "api_version": 3}
HEARTBEAT = COMMON | {"type": "Heartbeat", "generation_id": 1, "member_id": "m"}
JOIN = COMMON | {
    "type": "JoinGroup",
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 60_000,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": "AAE="}],
}
TOPIC_ID = "bc1a8a0e-3b7f-4e0b-9c51-8f6a2f1d7e90"
TOPIC_METADATA = {
    "type": "TopicMetadata",
    "group_id": "g",
    "topics": {"t": {"id": TOPIC_ID, "partitions": 4}, "u": None},
}
ADDRESS = Address("c", 1, "g")


def decoded(request: dict[str, Any]) -> object:
    return decode_request(json.dumps(request).encode())


def refused(value: bytes) -> Refusal:
    refusal = decode_request(value)
    assert isinstance(refusal, Refusal)
    return refusal


@pytest.mark.parametrize(
    ("request_", "of"),
    [
        (JOIN, JoinGroup),
        (COMMON | {"type": "SyncGroup", "generation_id": 1, "member_id": "m"}, SyncGroup),
        (HEARTBEAT, Heartbeat),
        (COMMON | {"type": "LeaveGroup", "members": [{"member_id": "m"}]}, LeaveGroup),
        (COMMON | {"type": "ReleaseGroup"}, ReleaseGroup),
        (TOPIC_METADATA, TopicMetadata),
    ],
    ids=lambda given: given["type"] if isinstance(given, dict) else "",
)
def test_each_request_round_trips(request_: dict[str, Any], of: type) -> None:
    request = decoded(request_)
    assert type(request) is of
    assert decode_request(encode(request)) == request


def test_topic_id_is_an_optional_uuid_in_text_form() -> None:
    partitions = [{"partition_index": 0, "committed_offset": 5}]
    topics = [{"name": "t", "topic_id": TOPIC_ID, "partitions": partitions}, {"name": "t", "partitions": []}]
    commit = decoded(COMMON | {"type": "OffsetCommit", "topics": topics})
    assert isinstance(commit, OffsetCommit)
    assert [topic.topic_id for topic in commit.topics] == [UUID(TOPIC_ID), None]
    assert isinstance(decoded(TOPIC_METADATA | {"topics": {"t": {"id": "t", "partitions": 4}}}), Refusal)


def test_unknown_request_fields_are_ignored() -> None:
    assert decoded(HEARTBEAT | {"since": "a later release"}) == decoded(HEARTBEAT)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"type": "Fetch"}, "$.type"),
        ({"generation_id": "1"}, "$.generation_id"),
        ({"generation_id": 1.0}, "$.generation_id"),
        ({"generation_id": 2**31}, "$.generation_id"),
        ({"generation_id": 10**400}, "$.generation_id"),
        ({"generation_id": None}, "$.generation_id"),
        ({"api_version": -(2**15) - 1}, "$.api_version"),
        ({"member_id": "m" * 32_768}, "$.member_id"),
        ({"client_id": ["a"]}, "$.client_id"),
    ],
)
def test_invalid_field_is_named_to_the_sender(fields: dict[str, Any], named: str) -> None:
    refusal = refused(json.dumps(HEARTBEAT | fields).encode())
    assert (refusal.reason, refusal.address) == (Reason.INVALID_REQUEST, ADDRESS)
    assert named in refusal.message


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"Heartbeat"',
        b"\xef\xbb\xbf{}",
        b"\xff",
        json.dumps(HEARTBEAT).encode("utf-16"),
        json.dumps(HEARTBEAT).encode() + b"{}",
        json.dumps(HEARTBEAT)[:-1].encode(),
        json.dumps(HEARTBEAT | {"member_id": "\ud800"}).encode(),
        json.dumps(HEARTBEAT | {"correlation_id": 7}).encode(),
        json.dumps(HEARTBEAT | {"correlation_id": "c" * 32_768}).encode(),
        json.dumps(HEARTBEAT | {"reply_partition": 2**31}).encode(),
        json.dumps(HEARTBEAT)[:-1].encode() + b',"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        json.dumps(HEARTBEAT)[:-1].encode() + b',"z":' + b'{"a":' * 100_000,
        clock_record(1_700_000_000_000),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_request_without_a_reply_address_is_refused_silently(value: bytes) -> None:
    refusal = refused(value)
    assert (refusal.reason, refusal.address) == (Reason.INVALID_REQUEST, None)
    assert refusal.message
    assert refusal.response("requests-0-1") is None


@pytest.mark.parametrize("version", [0, 2, -1, 10**4_200])
def test_unsupported_record_version_gets_unsupported_version(version: int) -> None:
    refusal = refused(json.dumps(HEARTBEAT | {"version": version}).encode())
    assert refusal.reason is Reason.UNSUPPORTED_VERSION
    response = refusal.response("requests-0-1")
    assert response is not None
    assert response.error_code is ErrorCode.UNSUPPORTED_VERSION


def test_number_with_too_many_digits_is_refused() -> None:
    value = json.dumps(HEARTBEAT).replace(
        '"generation_id": 1', '"generation_id": 1, "version": ' + "9" * 5_000
    )
    refusal = refused(value.encode())
    assert (refusal.reason, refusal.address) == (Reason.INVALID_REQUEST, ADDRESS)


@pytest.mark.parametrize("reason", Reason)
def test_refused_record_is_answered_with_kafkas_error_for_its_reason(reason: Reason) -> None:
    response = Refusal(reason, "why", ADDRESS).response("requests-0-1")
    expected = {
        Reason.UNSUPPORTED_VERSION: ErrorCode.UNSUPPORTED_VERSION,
        Reason.REQUEST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    }
    assert response is not None
    assert msgspec.json.decode(encode(response)) == {
        "type": "Error",
        "group_id": "g",
        "correlation_id": "c",
        "request": "requests-0-1",
        "error_code": expected.get(reason, ErrorCode.INVALID_REQUEST),
        "error_message": "why",
        "rule": "X1",
        "version": 1,
    }


def test_refusal_is_addressed_to_the_sender_if_known() -> None:
    request = decoded(HEARTBEAT)
    assert isinstance(request, Heartbeat)
    assert refuse(request, Reason.KEY_MISMATCH, "why") == Refusal(Reason.KEY_MISMATCH, "why", ADDRESS)
    value = json.dumps(HEARTBEAT).encode()
    assert refuse_unreadable(value, Reason.REQUEST_TOO_LARGE, "why").address == ADDRESS
    assert refuse_unreadable(b"?", Reason.REQUEST_TOO_LARGE, "why").address is None


def test_long_message_of_a_sender_is_truncated() -> None:
    response = Refusal(Reason.KEY_MISMATCH, "x" * 1_000_000, ADDRESS).response("requests-0-1")
    assert response is not None
    assert len(response.error_message) == MESSAGE_MAX_CHARS


def test_clock_record_has_exactly_these_bytes() -> None:
    assert clock_record(1_700_000_000_000) == b'{"type":"Clock","time_ms":1700000000000}'
    of_owner = b'{"type":"Clock","time_ms":1700000000000,"owner_epoch":3}'
    assert clock_record(1_700_000_000_000, owner_epoch=3) == of_owner
    assert is_clock_record(None, of_owner)
    assert is_clock_record(None, clock_record(0))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", clock_record(0)),
        (None, None),
        (None, clock_record(0) + b"\n"),
        (None, b'{"type":"Clock","time_ms":0,"owner_epoch":-1}'),
        (None, b'{"type":"Clock","time_ms":0,"owner_epoch":1234567890123456}'),
    ],
)
def test_records_unlike_a_clock_record_are_not_taken_for_one(key: bytes | None, value: bytes | None) -> None:
    assert not is_clock_record(key, value)


@given(st.lists(st.dictionaries(st.text(), st.text()), min_size=1))
def test_packed_messages_unpack_unchanged(messages: list[dict[str, str]]) -> None:
    encoded = [encode(message) for message in messages]
    assert is_pack(pack(encoded))
    assert list(unpack(pack(encoded))) == encoded


@given(st.dictionaries(st.text(), st.text()))
def test_single_message_is_not_a_pack(message: dict[str, str]) -> None:
    assert not is_pack(encode(message))
    assert list(unpack(encode(message))) == [encode(message)]


@given(st.text(), st.integers(0, 5), st.sampled_from([2**power for power in range(7)]))
def test_packed_record_goes_to_the_shard_of_its_slot(group_id: str, partition: int, shards: int) -> None:
    assert allows_packs(shards)
    assert shard_of(group_id, partition, shards) == partition * shards + slot_of(group_id) % shards


@pytest.mark.parametrize("shards", [0, -1, 3, 65, 2 * MAX_SHARDS])
def test_number_of_shards_must_be_a_power_of_two(shards: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        check_shards(shards)


def test_dead_letter_of_any_record_fits_into_a_record() -> None:
    """The sink fails every time on a record that is too large, so no input may cause one."""
    worst = 2 * DEAD_LETTER_MAX_BYTES * 4 // 3 + DEAD_LETTER_MAX_BYTES + 6 * MESSAGE_MAX_CHARS
    assert worst < TopicLayout.named().view_max_bytes


OLD, NEW = ReplicaId(3, 9), ReplicaId(4, 1)


OTHERS: list[Headers | None] = [None, [], [("trace", b"1")], [("trace", None)]]


def test_early_answer_and_marker_headers_round_trip_and_are_distinguished() -> None:
    early, marker = early_headers(OLD, 1_795_000_000_123), marker_headers(NEW)
    assert (as_of(early), marker_of(marker)) == (AsOf(OLD, 1_795_000_000_123), NEW)
    assert [as_of(headers) for headers in (*OTHERS, marker)] == [None] * 5
    assert [marker_of(headers) for headers in (*OTHERS, early)] == [None] * 5
    assert [is_from_query(headers) for headers in (*OTHERS, early, marker)] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    ("records", "counts"),
    [
        ([None, marker_headers(NEW), None, [("trace", b"1")]], [True, False, True, True]),
        (
            [early_headers(OLD, 1), marker_headers(NEW), early_headers(OLD, 2), early_headers(NEW, 2)],
            [True, False, False, True],
        ),
        ([marker_headers(NEW), marker_headers(OLD), early_headers(OLD, 1)], [False, False, False]),
        (
            [
                marker_headers(ReplicaId(4, 10)),
                *(early_headers(ReplicaId(*it), 1) for it in ((4, 9), (4, 11), (5, 1))),
            ],
            [False, False, True, True],
        ),
    ],
    ids=["the query's", "a replaced replica", "an old marker that comes late", "replicas of one owner"],
)
def test_answers_of_a_replica_count_until_the_marker_of_a_later_replica(
    records: list[Headers | None], counts: list[bool]
) -> None:
    answers = EarlyAnswers()
    assert [answers.accepts(0, headers) for headers in records] == counts
    assert answers.accepts(1, early_headers(OLD, 2)), "each partition has its markers"


def test_responses_record_with_unreadable_headers_is_ignored() -> None:
    answers = EarlyAnswers()
    for name, value in product(("early", "replicas-since"), (None, b"", b"3", b"3.x 1", b"\xff")):
        assert not answers.accepts(0, [(name, value)])
    assert answers.accepts(0, early_headers(OLD, 1)), "and it marks nothing"


def test_commits_are_listed_in_headers_if_they_fit_the_record() -> None:
    commits = {0: [5, 2**62], 7: [-1]}
    assert commits_of(early_headers(ReplicaId(1, 2), 3, commits, max_commits_bytes=100)) == commits
    assert commits_of(early_headers(ReplicaId(1, 2), 3, commits, max_commits_bytes=10)) == {}
    assert commits_of(early_headers(ReplicaId(1, 2), 3)) == commits_of(None) == {}
