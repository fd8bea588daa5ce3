"""Large Fetch responses in parts: what a client gets, whatever the parts are."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import codec
from gateway.wire.fetch_messages import FIRST_VERSION, tail_of
from gateway.wire.framing import RequestHeader

FETCH, SHARE_FETCH = 1, 78
VERSIONS = st.integers(FIRST_VERSION, codec.versions(FETCH).stop - 1)
ENDPOINTS = st.lists(
    st.fixed_dictionaries(
        {"node_id": st.integers(0, 300), "host": st.text(max_size=9), "port": st.integers(0, 65_535)}
    ),
    max_size=3,
)
ABORTED = st.fixed_dictionaries({"producer_id": st.integers(0, 9), "first_offset": st.integers(0, 9)})
EPOCH = st.fixed_dictionaries({"leader_id": st.integers(0, 9), "leader_epoch": st.integers(0, 9)})
PARTITION = st.fixed_dictionaries(
    {
        "partition_index": st.integers(0, 2**31 - 1),
        "error_code": st.sampled_from([0, 6]),
        "high_watermark": st.integers(-1, 2**63 - 1),
        "last_stable_offset": st.just(0),
        "log_start_offset": st.just(0),
        "aborted_transactions": st.none() | st.lists(ABORTED, max_size=200),
        "preferred_read_replica": st.just(-1),
        "records": st.none() | st.binary(max_size=300),
    },
    optional={"current_leader": EPOCH},
)
TOPIC = st.fixed_dictionaries({"topic_id": st.uuids(), "partitions": st.lists(PARTITION, max_size=3)})
RESPONSE = st.fixed_dictionaries(
    {
        "throttle_time_ms": st.just(7),
        "error_code": st.just(0),
        "session_id": st.integers(0, 9),
        "responses": st.lists(TOPIC, max_size=3),
        "node_endpoints": ENDPOINTS,
    }
)


SHARE_PARTITION = st.fixed_dictionaries(
    {
        "partition_index": st.integers(0, 2**31 - 1),
        "error_code": st.sampled_from([0, 6]),
        "error_message": st.none() | st.text(max_size=9),
        "acknowledge_error_code": st.sampled_from([0, 121]),
        "acknowledge_error_message": st.none() | st.text(max_size=9),
        "current_leader": EPOCH,
        "records": st.binary(max_size=300),
        "acquired_records": st.lists(
            st.fixed_dictionaries(
                {"first_offset": st.just(1), "last_offset": st.just(3), "delivery_count": st.just(1)}
            ),
            max_size=3,
        ),
    }
)
SHARE_TOPIC = st.fixed_dictionaries(
    {"topic_id": st.uuids(), "partitions": st.lists(SHARE_PARTITION, max_size=3)}
)
SHARE_RESPONSE = st.fixed_dictionaries(
    {
        "throttle_time_ms": st.just(7),
        "error_message": st.none() | st.text(max_size=9),
        "acquisition_lock_timeout_ms": st.just(30_000),
        "responses": st.lists(SHARE_TOPIC, max_size=3),
        "node_endpoints": st.lists(
            st.fixed_dictionaries(
                {
                    "node_id": st.integers(0, 300),
                    "host": st.text(max_size=200),
                    "port": st.integers(0, 65_535),
                }
            ),
            max_size=200,
        ),
    }
)
SHARE_VERSIONS = st.integers(1, codec.versions(SHARE_FETCH).stop - 1)


def in_parts(header: RequestHeader, message: bytes, ends: list[int]) -> bytes:
    """Return what a client gets of a response that comes in parts."""
    tail, passed, at = tail_of(header), b"", 0
    assert tail is not None
    for end in [*sorted(end for end in ends if end < len(message)), len(message)]:
        passed += tail.feed(message[at:end])
        at = end
    return passed + tail.end()


@given(RESPONSE, VERSIONS, st.lists(st.integers(0, 2_000), max_size=20))
def test_fetch_response_sent_in_parts_is_complete_without_broker_addresses(
    fields: dict[str, Any], version: int, ends: list[int]
) -> None:
    header = RequestHeader(FETCH, version, 5, "me", 0)
    message = codec.encode_response(header, fields)
    passed = in_parts(header, message, ends)
    assert len(passed) == len(message)
    got = codec.decode_response(FETCH, version, passed)
    assert not got.node_endpoints
    without = codec.encode_response(header, {**fields, "node_endpoints": []})
    if not fields["node_endpoints"]:
        assert passed == message == without
    else:
        assert passed.startswith(without[:-1])


@given(SHARE_RESPONSE, SHARE_VERSIONS, st.lists(st.integers(0, 2_000), max_size=20))
def test_share_fetch_sent_in_parts_keeps_its_size_without_broker_addresses(
    fields: dict[str, Any], version: int, ends: list[int]
) -> None:
    header = RequestHeader(SHARE_FETCH, version, 5, "me", 0)
    message = codec.encode_response(header, fields)
    passed = in_parts(header, message, ends)
    assert len(passed) == len(message)
    assert not codec.decode_frequent(SHARE_FETCH, version, passed).node_endpoints
    without = codec.encode_response(header, {**fields, "node_endpoints": []})
    assert passed.startswith(without[:-1])
