"""Against Kafka itself, many random groups: its assignors run in a JVM."""

from itertools import combinations
from random import Random

import pytest

from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.sticky.api import do_racks_matter
from tests.harness.kafkas_assignors import Answer, Case, ask_kafka, read_answer
from tests.harness.live_cases import identical_cases, random_case

LIVE_OF_EACH = 100


def unevenness(answer: Answer) -> int:
    """Kafka's balance score."""
    return sum(abs(len(a) - len(b)) for a, b in combinations(answer.values(), 2))


def moved(case: Case, answer: Answer) -> int:
    owner = {p: m for m, partitions in case.owned.items() for p in partitions}
    return sum(owner.get(p, m) != m for m, partitions in answer.items() for p in partitions)


def test_our_assignors_equal_kafkas_on_random_groups() -> None:
    cases = list(identical_cases(Random(2), LIVE_OF_EACH))
    assert len(cases) > LIVE_OF_EACH
    for case, line in zip(cases, ask_kafka(cases), strict=True):
        assert case.ours() == read_answer(line), case.text()


def far_from_rack(case: Case, answer: Answer) -> int:
    """Return the number of partitions without a replica on their member's rack, where Kafka uses racks."""
    rack_of = {m: member.subscription.rack_id for m, member in case.members.items()}
    wanted = {topic for member in case.members.values() for topic in member.subscription.topics}
    replicas = {TopicPartition(t, n): r for t in wanted for n, r in enumerate(case.racks[t])}
    if not do_racks_matter({rack for rack in rack_of.values() if rack}, replicas.values()):
        return 0
    held = ((rack_of[m], p) for m, partitions in answer.items() for p in partitions)
    return sum(rack is not None and rack not in replicas[p] for rack, p in held)


@pytest.mark.parametrize("with_racks", [False, True])
def test_our_sticky_assignor_is_never_worse_than_kafkas(with_racks: bool) -> None:
    """By unevenness, then by partitions far from their member's rack, then by partitions moved.

    Members claim nothing twice, so that it is clear what moves, and only topics they subscribe to: Kafka may
    give a member back a partition of another topic.
    """
    random = Random(3)
    cases: list[Case] = []
    while len(cases) < LIVE_OF_EACH:
        case = random_case(random, "sticky", same_topics=random.random() < 0.2, with_racks=with_racks)
        claims = [(m, p) for m, owned in case.owned.items() for p in owned]
        is_known = all(p.topic in case.members[m].subscription.topics for m, p in claims)
        if is_known and len({p for _, p in claims}) == len(claims):
            cases.append(case)
    better = 0
    for case, line in zip(cases, ask_kafka(cases), strict=True):
        ours, kafkas = case.ours(), read_answer(line)
        score, kafkas_score = (
            (unevenness(answer), far_from_rack(case, answer), moved(case, answer))
            for answer in (ours, kafkas)
        )
        assert score <= kafkas_score, case.text()
        better += score < kafkas_score
    assert better > 0
