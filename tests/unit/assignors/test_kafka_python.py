"""Comparison with kafka-python's sticky assignors, for random groups.

Sticky and cooperative-sticky are never less even, and where they are as even, they never move more.

The groups avoid these deviations of kafka-python 3.0.12 from Kafka's own (Java) assignors, which ours follow:

- It groups members with itertools.groupby on the unsorted list, so members are lost if static and dynamic
  ones alternate. Here the static members come first.
- It sorts by code point, not by UTF-16 unit. Here names are ASCII.
"""

from itertools import combinations
from random import Random

import pytest
from kafka.cluster import ClusterMetadata

from assignors.kafka import ASSIGNORS
from kafka_why.contract.protocols.subscriptions import (
    MemberId,
    MemberSubscription,
    Subscription,
    TopicPartition,
    decode_subscription,
)
from tests.harness.examples import scaled
from tests.harness.kafka_python import STICKY, cluster_of, members_of, tell

Past = dict[MemberId, list[TopicPartition]]
COUNTS = {f"t{count}{copy}": count for count in (0, 1, 2, 3, 5, 8, 13) for copy in "ab"}
TOPICS = [*COUNTS, "without-metadata"]


@pytest.fixture(scope="module")
def cluster() -> ClusterMetadata:
    """Return a cluster whose topics are COUNTS."""
    return cluster_of(COUNTS)


def random_group(random: Random, *, same_topics: bool) -> dict[MemberId, MemberSubscription]:
    """Return up to 12 members in any order, except that static members precede dynamic ones."""
    size = random.randint(1, 12)
    static = random.randint(0, size)
    member_ids = random.sample([f"client{i}-{random.getrandbits(32):08x}" for i in range(size)], size)
    instance_ids = random.sample([f"instance-{i}" for i in range(size)], size)
    shared = tuple(random.sample(TOPICS, random.randint(0, 6)))
    return {
        member_id: MemberSubscription(
            Subscription(shared if same_topics else tuple(random.sample(TOPICS, random.randint(0, 6)))),
            instance_ids[i] if i < static else None,
        )
        for i, member_id in enumerate(member_ids)
    }


def random_past(random: Random, group: dict[MemberId, MemberSubscription]) -> Past:
    """Return earlier assignments: most partitions had one owner, some owners are overloaded."""
    past: Past = {member_id: [] for member_id in group}
    for topic, count in COUNTS.items():
        fitting = [member_id for member_id, m in group.items() if topic in m.subscription.topics]
        for number in range(count):
            owner = random.choice([*fitting[: random.randint(1, len(fitting))], None]) if fitting else None
            if owner is not None:
                past[owner].append(TopicPartition(topic, number))
    return past


def hand_over(
    name: str, cluster: ClusterMetadata, group: dict[MemberId, MemberSubscription], past: Past, *, ours: bool
) -> Past:
    """Return the assignment once it is complete, which takes cooperative members several rounds."""
    wanted = {topic for member in group.values() for topic in member.subscription.topics}
    total = sum(COUNTS.get(topic, 0) for topic in wanted)
    answer = past
    for generation in range(4, 14):
        metadata = {m: tell(name, g.subscription.topics, answer[m], generation) for m, g in group.items()}
        answer = ask_ours(name, metadata) if ours else ask_theirs(name, cluster, metadata)
        if sum(map(len, answer.values())) == total:
            return answer
        assert name == "cooperative-sticky"
    raise AssertionError(f"partitions are still held back: {answer}")


def ask_ours(name: str, metadata: dict[MemberId, bytes]) -> Past:
    members = {
        member_id: MemberSubscription(decode_subscription(data)) for member_id, data in metadata.items()
    }
    return ASSIGNORS[name].assign(COUNTS, members)


def ask_theirs(name: str, cluster: ClusterMetadata, metadata: dict[MemberId, bytes]) -> Past:
    answer = STICKY[name]().assign(cluster, members_of(metadata))
    return {m: [TopicPartition(*p) for p in given.partitions()] for m, given in answer.items()}


def score(past: Past, answer: Past) -> tuple[int, int]:
    """Return Kafka's balance score, and how many partitions have moved."""
    unevenness = sum(abs(len(a) - len(b)) for a, b in combinations(answer.values(), 2))
    return unevenness, sum(len(set(partitions) - set(answer[m])) for m, partitions in past.items())


@pytest.mark.examples
@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
def test_sticky_is_never_worse_than_kafka_pythons(cluster: ClusterMetadata, name: str) -> None:
    random = Random(3)
    better = 0
    for case in range(scaled(100)):
        group = random_group(random, same_topics=case % 4 == 0)
        past = random_past(random, group)
        ours, theirs = (
            score(past, hand_over(name, cluster, group, past, ours=whose)) for whose in (True, False)
        )
        assert ours <= theirs, (group, past)
        better += ours < theirs
    assert better > 0
