"""The user data of the sticky assignors' members, byte by byte, in all versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData

from kafka_why.contract.protocols.subscriptions import (
    NO_GENERATION,
    Claim,
    Subscription,
    TopicPartition,
    cooperative_claim,
    decode_sticky_user_data,
    encode_cooperative_user_data,
    encode_sticky_user_data,
    sticky_claim,
)
from kafka_why.contract.protocols.wire import ProtocolError

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
WITHOUT_GENERATION = bytes.fromhex("00000001 0001 74 00000002 00000001 00000000")

partitions = st.builds(TopicPartition, st.text("tuv", max_size=3), st.integers(0, 9))
claims = st.builds(
    Claim, st.lists(partitions, unique=True).map(lambda some: tuple(sorted(some))), st.integers(-1, 2**31 - 1)
)


def test_sticky_user_data_has_kafkas_schema() -> None:
    data = encode_sticky_user_data(Claim((U0, T1, T0), 7))
    topic_t = "0001 74 00000002 00000001 00000000"
    assert data == bytes.fromhex(f"00000002 {topic_t} 0001 75 00000001 00000000 00000007")


@given(claim=claims)
def test_sticky_user_data_round_trips(claim: Claim) -> None:
    assert decode_sticky_user_data(encode_sticky_user_data(claim)) == claim


def test_user_data_of_version_0_and_of_kafka_python_is_read() -> None:
    assert decode_sticky_user_data(WITHOUT_GENERATION) == Claim((T1, T0), NO_GENERATION)
    data = StickyAssignorUserData([("t", [1, 0]), ("u", [0])], 7).encode()
    assert decode_sticky_user_data(data) == Claim((T1, T0, U0), 7)
    assert decode_sticky_user_data(StickyAssignorUserData([], 7).encode()) == Claim((), 7)


@pytest.mark.parametrize("data", [None, b"", b"\x00", WITHOUT_GENERATION[:-1], b"\xff" * 12, b"nonsense"])
def test_unreadable_user_data_claims_no_partition(data: bytes | None) -> None:
    assert decode_sticky_user_data(data) == Claim()


@given(data=st.binary(max_size=40))
def test_any_user_data_is_decoded_without_an_error(data: bytes) -> None:
    assert isinstance(decode_sticky_user_data(data), Claim)


def test_claim_too_large_for_the_user_data_format_is_refused() -> None:
    with pytest.raises(ProtocolError, match="generation 2147483648 is no int32"):
        encode_sticky_user_data(Claim((), 2**31))


def test_sticky_claim_is_read_from_the_user_data_only() -> None:
    subscription = Subscription(("t",), encode_sticky_user_data(Claim((T0,), 4)), (T1,), 5)
    assert sticky_claim(subscription) == Claim((T0,), 4)
    assert sticky_claim(Subscription(("t",), None, (T1,), 5)) == Claim()


def test_cooperative_claim_is_read_from_the_owned_partitions() -> None:
    # The field of KIP-792 has priority over the user data, which may contain anything.
    data = encode_cooperative_user_data(4)
    assert data == bytes.fromhex("00000004")
    assert cooperative_claim(Subscription(("t",), data, (T1,), 5)) == Claim((T1,), 5)
    assert cooperative_claim(Subscription(("t",), data, (T1,))) == Claim((T1,), 4)
    assert cooperative_claim(Subscription(("t",), b"?", (T1,))) == Claim((T1,), NO_GENERATION)
    assert cooperative_claim(Subscription(("t",), None, (T1,))) == Claim((T1,), NO_GENERATION)
