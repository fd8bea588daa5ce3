"""Frequent responses are encoded without message objects, to the same bytes as by the general codec."""

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import codec
from gateway.wire.framing import RequestHeader
from gateway.wire.schema_encoder import SchemaEncoder
from tests.harness.examples import examples

COMMIT, FETCH, HEARTBEAT = 8, 9, 68
VERSIONS = [(key, version) for key in (COMMIT, FETCH, HEARTBEAT) for version in codec.versions(key)]

error_codes = st.integers(-1, 120)
names = st.text(max_size=5) | st.just("long" * 50)
committed = st.fixed_dictionaries({"partition_index": st.integers(-1, 2**31 - 1), "error_code": error_codes})
fetched = st.fixed_dictionaries(
    {
        "partition_index": st.integers(0, 2**31 - 1),
        "committed_offset": st.integers(-(2**63), 2**63 - 1),
        "metadata": st.none() | names,
        "error_code": error_codes,
    },
    optional={"committed_leader_epoch": st.integers(-1, 2**31 - 1)},
)


def topics(
    partitions: st.SearchStrategy[Any], **more: st.SearchStrategy[Any]
) -> st.SearchStrategy[list[dict[str, Any]]]:
    fields = {"name": names, **more, "partitions": st.lists(partitions, max_size=3)}
    return st.lists(st.fixed_dictionaries(fields), max_size=2)


groups = st.lists(
    st.fixed_dictionaries(
        {"group_id": names, "error_code": error_codes, "topics": topics(fetched, topic_id=st.uuids())}
    ),
    max_size=2,
)
assigned = st.fixed_dictionaries(
    {"topic_id": st.uuids(), "partitions": st.lists(st.integers(0, 2**31 - 1), max_size=3)}
)
bodies = {
    COMMIT: st.fixed_dictionaries({"topics": topics(committed, topic_id=st.uuids())}),
    FETCH: st.fixed_dictionaries(
        {"topics": topics(fetched), "groups": groups}, optional={"error_code": error_codes}
    ),
    HEARTBEAT: st.fixed_dictionaries(
        {
            "error_message": st.none() | names,
            "member_id": st.none() | names,
            "assignment": st.none()
            | st.fixed_dictionaries({"topic_partitions": st.lists(assigned, max_size=2)}),
        },
        optional={"error_code": error_codes, "member_epoch": st.integers(-2, 2**31 - 1)},
    ),
}


def general(api_key: int, version: int, body: dict[str, Any]) -> bytes:
    """Return the body as kafka-python's messages encode it."""
    message = codec._message(codec.RESPONSES[api_key], body, version=version)
    return bytes(message.encode())


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_a_response_is_encoded_as_by_the_general_codec(api_key: int, version: int) -> None:
    @examples(40)
    @given(bodies[api_key])
    def holds(body: dict[str, Any]) -> None:
        header = RequestHeader(api_key, version, 7, None, 0)
        encoded = codec.encode_response(header, body)
        assert encoded.endswith(general(api_key, version, body))
        decoded = codec.decode_response(api_key, version, encoded)
        assert codec.encode_response(header, decoded) == encoded

    holds()


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
def test_a_long_list_is_encoded_as_by_the_general_codec(api_key: int, version: int) -> None:
    many = [{"partition_index": n, "error_code": n % 3} for n in range(300)]
    wide: dict[str, Any] = {"topics": [{"name": "orders", "partitions": many}]}
    if api_key == FETCH:
        wide["groups"] = [{"group_id": "g", **wide}]
    if api_key == HEARTBEAT:
        owned = {"topic_id": UUID(int=7), "partitions": list(range(300))}
        wide = {"assignment": {"topic_partitions": [owned]}}
    header = RequestHeader(api_key, version, 7, None, 0)
    assert codec.encode_response(header, wide).endswith(general(api_key, version, wide))


def test_values_that_do_not_fit_are_refused() -> None:
    encoder = SchemaEncoder(codec.RESPONSES[FETCH].json, 5)
    partition = {"partition_index": 0, "committed_offset": 0, "metadata": "x" * 40_000}
    with pytest.raises(struct.error):
        encoder.encode({"topics": [{"name": "t", "partitions": [partition]}]})
    with pytest.raises(ValueError, match="name is null"):
        encoder.encode({"topics": [{"name": None, "partitions": []}]})
