"""Packs: several messages in one record."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.codec import encode, is_pack, pack, slot_of, unpack
from streaming.query.admission import MAX_SHARDS, check_shards, shard_of, takes_packs


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
def test_the_slot_of_a_pack_decides_the_shard(group_id: str, partition: int, shards: int) -> None:
    assert takes_packs(shards)
    assert shard_of(group_id, partition, shards) == partition * shards + slot_of(group_id) % shards


@pytest.mark.parametrize("shards", [0, -1, 3, 65, 2 * MAX_SHARDS])
def test_number_of_shards_must_be_a_power_of_two(shards: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        check_shards(shards)
