"""The topics of a Produce request are found by a walk that does not decode its records."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import codec, produce
from gateway.wire.framing import PRODUCE, ProtocolError, request_header
from gateway.wire.produce import produced_topics, transactional_id_of

partitions = st.lists(st.fixed_dictionaries({"index": st.integers(0, 9), "records": st.none() | st.binary()}))
topics_data = st.lists(st.tuples(st.text(), st.uuids(), partitions), max_size=4)


@given(st.sampled_from(codec.versions(PRODUCE)), topics_data, st.none() | st.text())
def test_the_topics_of_a_produce_are_found_without_decoding_it(
    version: int, topics: list[Any], transactional_id: str | None
) -> None:
    data = [{"name": n, "topic_id": key, "partition_data": p} for n, key, p in topics]
    message = codec.encode_request(
        PRODUCE, version, 1, "me", {"transactional_id": transactional_id, "acks": 1, "topic_data": data}
    )
    expected = [key.bytes if version >= 13 else n.encode() for n, key, _ in topics]
    header = request_header(message)
    assert produced_topics(header, message) == expected
    assert transactional_id_of(header, message) == transactional_id
    for end in range(header.client_id_end, len(message) - 1):
        with pytest.raises(ProtocolError):
            produced_topics(header, message[:end])


@pytest.mark.parametrize("version", [3, 9])
def test_a_produce_has_only_so_many_partitions(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "PARTITIONS_MAX", 100)
    data = [{"index": 0, "records": None}] * 98
    topics = [{"name": "a", "partition_data": data}]
    for more in ([], [{"name": "b", "partition_data": []}] * 2):
        message = codec.encode_request(PRODUCE, version, 1, "me", {"topic_data": topics + more})
        if more:
            with pytest.raises(ProtocolError, match="more than 100 partitions"):
                produced_topics(request_header(message), message)
        else:
            assert produced_topics(request_header(message), message) == [b"a"]
