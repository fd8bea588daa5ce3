"""The rules of the broker's SimpleAssignor of share groups: rows SB1 to SB10, and invariant SV3."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors.kafka.simple import assign, quotas
from kafka_why.contract.protocols.subscriptions import TopicPartition
from tests.harness.examples import examples

TOPICS = ("t", "u", "v")

Last = dict[str, list[TopicPartition]]


def parts(text: str) -> list[TopicPartition]:
    """Parse "t0 u1" as partition 0 of topic t and partition 1 of u."""
    return [TopicPartition(word[0], int(word[1:])) for word in text.split()]


@pytest.mark.parametrize(
    ("partitions", "members", "expected"),
    [
        (4, 3, [2, 1, 1]),
        (2, 3, [2, 1, 1]),
        (4, 5, [2, 2, 1, 2, 1]),
        (2, 2, [1, 1]),
        (1, 4, [1, 1, 1, 1]),
        (0, 3, [0, 0, 0]),
        (3, 0, []),
    ],
)
def test_uniform_assignment_quotas_equal_kafkas(partitions: int, members: int, expected: list[int]) -> None:
    """Rows SB1 and SB2, with the values of Kafka's own class."""
    assert quotas(partitions, members) == expected


@given(st.integers(1, 400), st.integers(1, 300))
def test_quotas_differ_by_one_at_most(partitions: int, members: int) -> None:
    of_each = quotas(partitions, members)
    sharing = -(-members // partitions)
    assert sum(of_each) == sharing * partitions
    assert 1 <= min(of_each) <= max(of_each) <= min(of_each) + 1


@pytest.mark.parametrize(
    ("counts", "names", "last", "expected"),
    [
        pytest.param(
            {"t": 4},
            {"a": "t", "b": "t", "c": "t"},
            {},
            {"a": "t0 t3", "b": "t1", "c": "t2"},
            id="SB1 exclusive",
        ),
        pytest.param(
            {"t": 2},
            {"a": "t", "b": "t", "c": "t"},
            {},
            {"a": "t0 t1", "b": "t0", "c": "t1"},
            id="SB6 shared",
        ),
        pytest.param({}, {"a": "t"}, {"a": "t0 t1"}, {"a": ""}, id="partitions that are not there"),
        pytest.param(
            {"t": 1, "u": 2},
            {"a": "t", "b": "t"},
            {"a": "u0 u1"},
            {"a": "t0", "b": "t0"},
            id="SB3 unsubscribed",
        ),
        # Kafka keeps what a member had.
        pytest.param(
            {"t": 1, "u": 2, "v": 1}, {"a": "t", "b": "v"}, {"a": "u0 u1"}, {"a": "t0", "b": "v0"}, id="SB12"
        ),
        pytest.param(
            {"t": 4},
            {"a": "t", "b": "t"},
            {"a": "t0 t1 t2 t3"},
            {"a": "t0 t1", "b": "t2 t3"},
            id="SB4 above its quota",
        ),
        pytest.param(
            {"t": 3},
            {"a": "t", "b": "t", "c": "t"},
            dict.fromkeys("abc", "t0"),
            {"a": "t1", "b": "t2", "c": "t0"},
            id="SB5 too many members on a partition",
        ),
        # a gets what cannot be divided of both topics.
        pytest.param(
            {"t": 3, "u": 3},
            {"a": "tu", "b": "tu", "c": "t"},
            {},
            {"a": "t0 u0 u2", "b": "t1 u1", "c": "t2"},
            id="SB8 SB10 topic by topic",
        ),
        pytest.param(
            {"t": 2, "u": 2},
            {"a": "u", "b": "t"},
            {"a": "t0 t1"},
            {"a": "u0 u1", "b": "t0 t1"},
            id="SB9 others alone subscribe",
        ),
        # Names are compared, whether or not they are topics.
        pytest.param({"t": 1, "u": 1}, {"a": "tu", "b": "tu"}, {}, {"a": "t0", "b": "u0"}, id="equal names"),
        pytest.param(
            {"t": 1, "u": 1},
            {"a": "tuv", "b": "tu"},
            {},
            {"a": "t0 u0", "b": "t0 u0"},
            id="a name without a topic",
        ),
    ],
)
def test_partitions_are_assigned_as_by_kafka(
    counts: dict[str, int], names: dict[str, str], last: dict[str, str], expected: dict[str, str]
) -> None:
    """Members subscribe to topics of one letter: "tu" is t and u."""
    answer = assign(
        {name: range(count) for name, count in counts.items()},
        {member: set(topics) for member, topics in names.items()},
        {member: parts(text) for member, text in last.items()},
    )
    assert answer == {member: parts(text) for member, text in expected.items()}


@given(st.integers(0, 2**32 - 1))
@examples(150)
def test_simple_assignors_assign_every_partition_evenly(seed: int) -> None:
    """Invariant SV3 after each of some steps, in which members, topics and partitions come and go."""
    random = Random(seed)
    is_equal = random.random() < 0.5
    last: Last = {}
    for _ in range(6):
        everybody = set(random.sample(TOPICS, random.randint(1, 3)))
        names = {
            f"m{n}": everybody if is_equal else set(random.sample(TOPICS, random.randint(0, 3)))
            for n in random.sample(range(12), random.randint(1, 12))
        }
        available = {name: random.sample(range(8), random.randint(0, 8)) for name in random.sample(TOPICS, 2)}
        target = assign(available, names, last)
        check(available, names, target)
        shuffled = dict(random.sample(sorted(names.items()), len(names)))
        assert assign(available, shuffled, last) == target
        last = target


def check(available: dict[str, list[int]], names: dict[str, set[str]], target: Last) -> None:
    assert target.keys() == names.keys()
    for member, dealt in target.items():
        assert dealt == sorted(set(dealt))
        assert all(topic in names[member] and number in available.get(topic, ()) for topic, number in dealt)
    members_of = Counter(partition for dealt in target.values() for partition in dealt)
    for topic, numbers in available.items():
        if any(topic in of_member for of_member in names.values()):
            sharers = [members_of[TopicPartition(topic, number)] for number in numbers]
            assert not sharers or 1 <= min(sharers) >= max(sharers) - 1
    subscribed = set().union(*names.values())
    if all(of_member == subscribed for of_member in names.values()):
        sizes = [len(dealt) for dealt in target.values()]
        assert max(sizes) - min(sizes) <= 1
