"""ShareFetch and ShareAcknowledge: member ids of requests, and responses read whole and in parts."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import codec
from gateway.wire.fetch_messages import ShareResponseHandler, share_response_reader, with_member_id
from gateway.wire.framing import RequestHeader, request_header
from tests.harness.share_frames import ACKNOWLEDGE, FETCH, fetched
from tests.unit.gateway.test_fetch_tail import EPOCH, SHARE_RESPONSE, SHARE_TOPIC, SHARE_VERSIONS

Told = list[tuple[Any, ...]]

OFFSETS = st.integers(-(2**63), 2**63 - 1)
ACQUIRED = st.fixed_dictionaries(
    {"first_offset": OFFSETS, "last_offset": OFFSETS, "delivery_count": st.integers(0, 2**15 - 1)}
)
PARTITION = st.fixed_dictionaries(
    {
        "partition_index": st.integers(0, 2**31 - 1),
        "error_code": st.sampled_from([0, 121]),
        "error_message": st.none() | st.text(max_size=200),
        "current_leader": EPOCH,
    }
)
ACKNOWLEDGED = st.fixed_dictionaries(
    {
        "error_code": st.sampled_from([0, 122]),
        "error_message": st.none() | st.text(max_size=200),
        "acquisition_lock_timeout_ms": st.integers(0, 2**31 - 1),
        "responses": st.lists(
            st.fixed_dictionaries({"topic_id": st.uuids(), "partitions": st.lists(PARTITION, max_size=3)}),
            max_size=3,
        ),
    }
)


class Record(ShareResponseHandler):
    """Records the calls of the reader."""

    def __init__(self) -> None:
        self.told: Told = []

    def begin(self, error_code: int, lock_ms: int | None) -> None:
        self.told.append(("top", error_code, lock_ms))

    def acknowledged(self, topic_id: bytes, partition: int, error_code: int) -> None:
        self.told.append(("acknowledged", topic_id, partition, error_code))

    def acquired(self, topic_id: bytes, partition: int, first: int, last: int, delivery_count: int) -> None:
        self.told.append(("acquired", topic_id, partition, first, last, delivery_count))

    def end(self) -> None:
        self.told.append(("end",))


def read(header: RequestHeader, message: bytes, ends: Sequence[int] = ()) -> Told:
    record, at = Record(), 0
    response = share_response_reader(header, record)
    for end in [*sorted(end for end in ends if end < len(message)), len(message)]:
        response.feed(message[at:end])
        at = end
    return record.told


def decoded(header: RequestHeader, message: bytes) -> Told:
    """Return the same content decoded by the codec."""
    answer = codec.decode_response(header.api_key, header.api_version, message)
    is_fetch = header.api_key == FETCH
    lock_ms = answer.acquisition_lock_timeout_ms if is_fetch or header.api_version > 1 else None
    told: Told = [("top", answer.error_code, lock_ms)]
    for topic in answer.responses:
        for p in topic.partitions:
            place = topic.topic_id.bytes, p.partition_index
            told.append(("acknowledged", *place, p.acknowledge_error_code if is_fetch else p.error_code))
            for a in p.acquired_records if is_fetch else ():
                told.append(("acquired", *place, a.first_offset, a.last_offset, a.delivery_count))
    return [*told, ("end",)]


@given(SHARE_RESPONSE, st.lists(ACQUIRED, max_size=200), SHARE_VERSIONS, st.lists(st.integers(0, 4_000)))
def test_sp31_share_fetch_read_in_parts_equals_the_whole(
    fields: dict[str, Any], acquired: list[dict[str, int]], version: int, ends: list[int]
) -> None:
    for topic in fields["responses"]:
        for partition in topic["partitions"]:
            partition["acquired_records"] = acquired
    header = RequestHeader(FETCH, version, 5, "me", 0)
    message = codec.encode_response(header, fields)
    assert read(header, message, ends) == read(header, message) == decoded(header, message)


@given(SHARE_TOPIC, SHARE_VERSIONS)
def test_sp31_share_fetch_may_be_split_at_every_byte(topic: dict[str, Any], version: int) -> None:
    header = RequestHeader(FETCH, version, 5, "me", 0)
    message = codec.encode_response(header, {"responses": [topic]})
    assert read(header, message, range(1, len(message))) == decoded(header, message)


@given(ACKNOWLEDGED, SHARE_VERSIONS, st.lists(st.integers(0, 1_000)))
def test_sp30_share_acknowledge_read_in_parts_equals_the_whole(
    fields: dict[str, Any], version: int, ends: list[int]
) -> None:
    header = RequestHeader(ACKNOWLEDGE, version, 5, "me", 0)
    message = codec.encode_response(header, fields)
    assert read(header, message, ends) == decoded(header, message)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300)))
def test_malformed_share_response_does_not_raise(noise: bytes, ends: list[int]) -> None:
    read(RequestHeader(FETCH, 2, 5, "me", 0), noise, ends)


def test_share_response_reader_does_not_buffer_records() -> None:
    """Whatever comes of a long record, the reader has no more than the few bytes that it waits for."""
    header = RequestHeader(FETCH, 2, 5, "me", 0)
    leader = {"leader_id": 1, "leader_epoch": 1}
    partition = {"partition_index": 0, "current_leader": leader, "records": b"r" * 100_000}
    topic = {"topic_id": UUID(int=7), "partitions": [partition]}
    message = codec.encode_response(header, {"responses": [topic]})
    response = share_response_reader(header, Record())
    for at in range(0, len(message), 1_000):
        response.feed(message[at : at + 1_000])
        assert len(response._buffered) < 20


def test_tagged_fields_of_acquired_records_are_skipped() -> None:
    header = RequestHeader(FETCH, 2, 5, "me", 0)
    acquired = {"first_offset": 1, "last_offset": 3, "delivery_count": 1}
    leader = {"leader_id": 1, "leader_epoch": 1}
    partition = {"partition_index": 0, "current_leader": leader, "acquired_records": [acquired]}
    topic = {"topic_id": UUID(int=7), "partitions": [partition]}
    message = codec.encode_response(header, {"responses": [topic]})
    rest = b"\0\0\1\0"  # tagged fields of the partition and the topic, addresses, tagged fields
    assert message.endswith(b"\0" + rest)
    with_tag = message[: -len(rest) - 1] + b"\1\5\2hi" + rest
    assert read(header, with_tag) == read(header, message)


@pytest.mark.parametrize("key", [FETCH, ACKNOWLEDGE])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("group_id", "member_id", "other_id"),
    [("g", "m", "other"), ("", "", ""), ("g" * 126, "m" * 127, "o" * 126), ("ü" * 300, "ü" * 300, "ü" * 63)],
)
def test_forwarded_share_request_differs_only_in_its_member_id(
    key: int, version: int, group_id: str, member_id: str, other_id: str
) -> None:
    def request(member_id: str) -> bytes:
        body = fetched("orders", "prices", group_id=group_id, member_id=member_id, offsets=(5, 7))
        return codec.encode_request(key, version, 7, "me", body)

    whole = request(member_id)
    assert with_member_id(request_header(whole), whole, other_id) == request(other_id)
