"""Rules of Kafka's assignors that neither a property nor a recorded answer of Kafka shows (test_live.py)."""

import pytest

from assignors.kafka import ASSIGNORS, BROKER_ASSIGNORS
from kafka_why.contract.protocols.subscriptions import (
    Claim,
    MemberSubscription,
    PartitionRacks,
    Subscription,
    TopicPartition,
    encode_sticky_user_data,
    java_order,
)
from kafka_why.sticky.api import members_in_order

EVERY = {**ASSIGNORS, "uniform": BROKER_ASSIGNORS["uniform"]}


def parts(text: str) -> tuple[TopicPartition, ...]:
    """Parse "t0 t1" as partitions 0 and 1 of topic t."""
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def member(
    *topics: str, owned: str = "", generation: int = 1, rack: str | None = None, instance: str | None = None
) -> MemberSubscription:
    """Return a member that claims its earlier partitions in the ways of both sticky assignors."""
    user_data = encode_sticky_user_data(Claim(parts(owned), generation))
    return MemberSubscription(Subscription(topics, user_data, parts(owned), generation, rack), instance)


@pytest.mark.parametrize(
    ("group", "order"),
    [
        ({"a": member(instance="i"), "b": member(), "c": member(instance="")}, ["c", "a", "b"]),
        ({"b": member(instance="i"), "a": member(instance="i")}, ["a", "b"]),
    ],
    ids=["an empty instance id is one", "one instance id"],
)
def test_static_members_sort_by_instance_id(group: dict[str, MemberSubscription], order: list[str]) -> None:
    assert members_in_order(group) == order
    assert java_order("\ud800") < java_order("\ue000"), "a lone surrogate has a place"


@pytest.mark.parametrize(
    ("name", "counts", "group", "racks", "expected"),
    [
        (
            "range",
            {"t": 3},
            {"a": member("t", rack="x"), "b": member("t", rack="y")},
            {"t": [frozenset("y")]},
            {"a": "t1 t2", "b": "t0"},
        ),
        (
            "uniform",
            {"t": 2},
            {"a": member("t", rack="x"), "b": member("t", rack="y")},
            {"t": [frozenset("y"), frozenset("x")]},
            {"a": "t0", "b": "t1"},
        ),
        # Members go by member id, but are answered in the common order.
        ("sticky", {"t": 1}, {"b": member("t", instance="i"), "a": member("t")}, {}, {"b": "", "a": "t0"}),
        (
            "sticky",
            {"t": 2},
            {
                "a": member("t", owned="t0"),
                "b": member("t", owned="t0"),
                "c": member("t", owned="t0", generation=0),
                "d": member("t", owned="t1"),
            },
            {},
            {"a": "t0", "b": "", "c": "", "d": "t1"},
        ),
        (
            "sticky",
            {"t": 4},
            {"a": member("t", owned="t0 t1", rack="y"), "b": member("t", owned="t2 t3", rack="x")},
            {"t": [frozenset("xy")] * 4},
            {"a": "t0 t1", "b": "t2 t3"},
        ),
    ],
    ids=["unknown racks", "uniform has no racks", "order", "claims of one generation", "the same racks"],
)
def test_assignment_equals_kafkas_for_every_group(
    name: str,
    counts: dict[str, int],
    group: dict[str, MemberSubscription],
    racks: PartitionRacks,
    expected: dict[str, str],
) -> None:
    answer = EVERY[name].assign(counts, group, racks)
    assert list(answer.items()) == [(m, list(parts(text))) for m, text in expected.items()]


def test_assignor_names_are_kafkas() -> None:
    assert list(ASSIGNORS) == ["range", "roundrobin", "sticky", "cooperative-sticky"]
    assert list(BROKER_ASSIGNORS) == ["uniform", "range"], "the first one is the default"
