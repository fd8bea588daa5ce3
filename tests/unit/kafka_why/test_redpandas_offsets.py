"""Redpanda's `__consumer_offsets`: the form of its groups, and the partition that has one.

The bytes are laid out as by group_metadata_value::encode and member_state::encode (group_metadata.cc).
"""

import pytest

from kafka_why.observed.consumer_offsets.decode import decode
from kafka_why.observed.consumer_offsets.schemas import redpandas_partition, xxh64
from kafka_why.observed.records import ClassicGeneration
from kafka_why.wire.primitives import ProtocolError

KEY = bytes.fromhex("0002000167")
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
    group_id, says = decode(KEY, VALUE)
    assert isinstance(says, ClassicGeneration)
    assert (group_id, says.generation, says.leader_id, says.since_ms) == ("g", 7, "a-1", 1_700_000_000_000)
    members = [(m.member_id, m.group_instance_id, m.client_host) for m in says.members]
    assert members == [("a-1", "i-1", "10.0.0.1"), ("b-1", None, "10.0.0.2")]
    assert {(m.rebalance_timeout_ms, m.session_timeout_ms) for m in says.members} == {(300_000, 10_000)}
    assert {(m.subscription, m.assignment) for m in says.members} == {(SUBSCRIPTION, ASSIGNMENT)}


def test_record_of_neither_form_is_refused() -> None:
    of_another_version = VALUE.replace(b"\x00\x03\x00\x03a-1\x00\x03i", b"\x00\x04\x00\x03a-1\x00\x03i")
    for value in (VALUE[:-1], VALUE + b"\x00", of_another_version):
        with pytest.raises(ProtocolError):
            decode(KEY, value)


def test_partition_of_a_group_is_the_jump_hash_of_its_xxh64() -> None:
    published = {
        b"": 0xEF46_DB37_51D8_E999,
        b"abc": 0x44BC_2CF5_AD77_0999,
        b"Nobody inspects the spammish repetition": 0xFBCE_A83C_8A37_8BF1,
    }
    assert {text: xxh64(text) for text in published} == published
    assert {redpandas_partition(f"group-{n}", 16) for n in range(500)} == set(range(16))
    moved = [(redpandas_partition(f"g{n}", 16), redpandas_partition(f"g{n}", 17)) for n in range(500)]
    assert all(now in (was, 16) for was, now in moved), "a jump hash moves keys to the new partition alone"
