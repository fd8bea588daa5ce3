"""The consumer protocol's bytes: Kafka's own, kafka-python's, and the errors for invalid bytes."""

import pickle
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from kafka_why.contract.protocols.subscriptions import (
    HIGHEST_VERSION,
    Assignment,
    ProtocolError,
    Subscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
    encode_subscription,
    java_order,
)

VERSIONS = range(HIGHEST_VERSION + 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(max_size=6)
PARTITIONS = st.lists(st.builds(TopicPartition, TEXT, INT32), max_size=8).map(tuple)
USER_DATA = st.none() | st.binary(max_size=8)

subscriptions = st.builds(
    Subscription,
    topics=st.lists(TEXT, max_size=5).map(tuple),
    user_data=USER_DATA,
    owned_partitions=PARTITIONS,
    generation_id=st.none() | st.integers(0, 2**31 - 1),
    rack_id=st.none() | st.text(min_size=1, max_size=6),
)
assignments = st.builds(Assignment, partitions=PARTITIONS, user_data=USER_DATA)


def owned(*partitions: tuple[str, int]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(*partition) for partition in partitions)


def grouped(partitions: tuple[TopicPartition, ...]) -> list[tuple[str, list[int]]]:
    """Return the partitions of each topic, topics in order of first appearance, as on the wire."""
    numbers_of: dict[str, list[int]] = {}
    for topic, number in partitions:
        numbers_of.setdefault(topic, []).append(number)
    return list(numbers_of.items())


# Recorded from ConsumerProtocol of kafka-clients 4.3.0.


@pytest.mark.parametrize(
    ("version", "subscription", "recorded"),
    [
        (0, Subscription(("b", "a"), None, owned(("a", 1)), 4, "r"), "0000 00000002 000161 000162 ffffffff"),
        (
            1,
            Subscription(("b", "a", "a-b"), b"\x00\xff", owned(("b", 2), ("a", 3), ("b", 0)), 4, "r"),
            "0001 00000003 000161 0003612d62 000162 00000002 00ff"
            "00000002 000161 00000001 00000003 000162 00000002 00000000 00000002",
        ),
        (2, Subscription(("t",), b""), "0002 00000001 000174 00000000 00000000 ffffffff"),
        (
            3,
            Subscription(("t",), None, owned(("t", 1), ("t", 0)), 7, "rack-é"),
            "0003 00000001 000174 ffffffff 00000001 000174 00000002 00000000 00000001"
            "00000007 0007 7261636b2dc3a9",
        ),
        (3, Subscription((), generation_id=0), "0003 00000000 ffffffff 00000000 00000000 ffff"),
        (9, Subscription(("t",), generation_id=0), "0003 00000001 000174 ffffffff 00000000 00000000 ffff"),
    ],
)
def test_subscription_is_encoded_as_by_kafka(version: int, subscription: Subscription, recorded: str) -> None:
    assert encode_subscription(subscription, version) == bytes.fromhex(recorded)


@pytest.mark.parametrize(
    ("version", "assignment", "recorded"),
    [
        (0, Assignment(owned(("t", 0))), "0000 00000001 000174 00000001 00000000 ffffffff"),
        (
            3,
            Assignment(owned(("b", 2), ("a", 1), ("b", 0)), b"\x00\xff"),
            "0003 00000002 000162 00000002 00000002 00000000 000161 00000001 00000001 00000002 00ff",
        ),
        (1, Assignment(()), "0001 00000000 ffffffff"),
        (9, Assignment(()), "0003 00000000 ffffffff"),
    ],
)
def test_assignment_is_encoded_as_by_kafka(version: int, assignment: Assignment, recorded: str) -> None:
    assert encode_assignment(assignment, version) == bytes.fromhex(recorded)


# Written bytes are read back.


@given(assignment=assignments, version=st.sampled_from(VERSIONS))
def test_decoded_assignment_is_grouped_by_topic(assignment: Assignment, version: int) -> None:
    decoded = decode_assignment(encode_assignment(assignment, version))
    assert grouped(decoded.partitions) == grouped(assignment.partitions)
    assert len(decoded.partitions) == len(assignment.partitions)
    assert decoded.user_data == assignment.user_data


# The same bytes as kafka-python's.


@given(subscription=subscriptions, version=st.sampled_from(VERSIONS))
def test_subscription_is_encoded_as_by_kafka_python(subscription: Subscription, version: int) -> None:
    generation_id = subscription.generation_id
    owned_partitions = sorted(subscription.owned_partitions, key=lambda p: (java_order(p.topic), p.partition))
    theirs = ConsumerProtocolSubscription(
        topics=sorted(subscription.topics, key=java_order),
        user_data=subscription.user_data,
        owned_partitions=grouped(tuple(owned_partitions)),
        generation_id=-1 if generation_id is None else generation_id,
        rack_id=subscription.rack_id,
    ).encode(version=version)
    assert encode_subscription(subscription, version) == theirs


@given(
    topics=st.lists(TEXT, max_size=5),
    runs=st.lists(st.tuples(TEXT, st.lists(INT32, max_size=3)), max_size=5),
    generation_id=INT32,
    rack_id=st.none() | TEXT,
    version=st.sampled_from([*VERSIONS, HIGHEST_VERSION + 1, 2**15 - 1]),
    left_over=st.binary(max_size=4),
)
def test_kafka_python_bytes_are_decoded_as_by_kafka_python(
    topics: list[str],
    runs: list[tuple[str, list[int]]],
    generation_id: int,
    rack_id: str | None,
    version: int,
    left_over: bytes,
) -> None:
    message = ConsumerProtocolSubscription(
        topics=topics, user_data=b"u", owned_partitions=runs, generation_id=generation_id, rack_id=rack_id
    )
    body = message.encode(version=min(version, HIGHEST_VERSION), header=False)
    data = version.to_bytes(2, "big") + body + left_over
    ours, theirs = decode_subscription(data), ConsumerProtocolSubscription.decode(data)
    assert ours.topics == tuple(theirs.topics)
    assert ours.user_data == theirs.user_data
    assert ours.owned_partitions == tuple(
        TopicPartition(run.topic, number) for run in theirs.owned_partitions for number in run.partitions
    )
    # As in Kafka, but not in kafka-python, a negative generation and an empty rack are read as None.
    assert ours.generation_id == (theirs.generation_id if theirs.generation_id >= 0 else None)
    assert ours.rack_id == (theirs.rack_id or None)


# Versions.


@pytest.mark.parametrize("version", [0, 3, 4, 2**15 - 1, -1])
def test_unknown_version_is_reported_verbatim(version: int) -> None:
    assert decode_version(version.to_bytes(2, "big", signed=True)) == version


def test_newer_version_is_decoded_as_the_highest_known() -> None:
    subscription = Subscription(("t",), b"u", owned(("t", 0)), 5, "r")
    newer = b"\x00\x07" + encode_subscription(subscription)[2:] + b"fields to come"
    assert decode_subscription(newer) == subscription
    assignment = Assignment(owned(("t", 0)), b"u")
    assert decode_assignment(b"\x00\x07" + encode_assignment(assignment)[2:] + b"more") == assignment


# Invalid bytes.


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "version needs 2 bytes, but 0 are left (byte 0)"),
        ("ffff", "version -1 is not supported, the lowest is 0 (byte 0)"),
        ("00", "version needs 2 bytes, but 1 are left (byte 0)"),
        ("0000", "topics needs 4 bytes, but 0 are left (byte 2)"),
        ("0000 ffffffff", "topics is null (byte 2)"),
        ("0000 7fffffff 0000", "topics has 2147483647 elements, but 2 bytes are left (byte 2)"),
        ("0000 00000003 0000", "topics has 3 elements, but 2 bytes are left (byte 2)"),
        ("0000 00000001 ffff", "topic is null (byte 6)"),
        ("0000 00000001 0005 61", "topic needs 5 bytes, but 1 are left (byte 8)"),
        ("0000 00000000 00000003 61", "user_data needs 3 bytes, but 1 are left (byte 10)"),
        ("0001 00000000 ffffffff ffffffff", "owned_partitions is null (byte 10)"),
        (
            "0001 00000000 ffffffff 00000001 000174 00000001 0000",
            "owned_partitions.partition needs 4 bytes, but 2 are left (byte 21)",
        ),
        ("0002 00000000 ffffffff 00000000 0000", "generation_id needs 4 bytes, but 2 are left (byte 14)"),
        ("0003 00000000 ffffffff 00000000 00000000", "rack_id needs 2 bytes, but 0 are left (byte 18)"),
    ],
)
def test_malformed_subscription_is_reported_with_field_and_byte(data: str, message: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        decode_subscription(bytes.fromhex(data))
    assert str(raised.value) == message


def test_negative_length_is_decoded_as_null() -> None:
    data = bytes.fromhex("0003 00000000 fffffffe 00000000 00000000 8000")
    assert decode_subscription(data) == Subscription((), user_data=None, generation_id=0, rack_id=None)


@given(subscription=subscriptions, data=st.data())
def test_truncated_subscription_is_an_error_within_its_bytes(
    subscription: Subscription, data: st.DataObject
) -> None:
    whole = encode_subscription(subscription)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ProtocolError) as raised:
        decode_subscription(cut)
    assert 0 <= raised.value.offset <= len(cut)


@pytest.mark.parametrize("decode", [decode_subscription, decode_assignment])
@given(data=st.binary(max_size=64), version=st.sampled_from(VERSIONS))
def test_any_bytes_are_decoded_or_raise_protocol_error(
    decode: Callable[[bytes], object], data: bytes, version: int
) -> None:
    with suppress(ProtocolError):
        decode(version.to_bytes(2, "big") + data)


@pytest.mark.parametrize(("data", "topic"), [("ff", "\ufffd"), ("61c3", "a\ufffd"), ("e282", "\ufffd")])
def test_invalid_utf8_becomes_replacement_characters_as_in_java(data: str, topic: str) -> None:
    text = bytes.fromhex(data)
    size = len(text).to_bytes(2, "big")
    assert decode_subscription(bytes.fromhex("0000 00000001") + size + text + b"\xff" * 4).topics == (topic,)


# Values that cannot be written.


@pytest.mark.parametrize(
    ("subscription", "message"),
    [
        (Subscription(("a", "t" * 2**15)), "topic is 32768 bytes long, over 32767 (byte 9)"),
        (Subscription((), rack_id="é" * 2**14), "rack_id is 32768 bytes long, over 32767 (byte 18)"),
        (Subscription((), generation_id=2**31), "generation_id 2147483648 is no int32 (byte 14)"),
        (
            Subscription((), owned_partitions=owned(("t", 2**31))),
            "owned_partitions.partition 2147483648 is no int32 (byte 21)",
        ),
    ],
)
def test_value_out_of_range_is_reported_with_field_and_byte(subscription: Subscription, message: str) -> None:
    with pytest.raises(ProtocolError) as raised:
        encode_subscription(subscription)
    assert str(raised.value) == message


def test_lone_surrogate_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"^topic is no text: .*surrogates not allowed"):
        encode_subscription(Subscription(("\ud800",)))


def test_protocol_error_survives_pickling() -> None:
    # Spark transfers exceptions from its Python workers by pickling.
    error = pickle.loads(pickle.dumps(ProtocolError("topics is null", 2)))
    assert (error.what, error.offset, str(error)) == ("topics is null", 2, "topics is null (byte 2)")
