"""The rules of Kafka's RoundRobinAssignor, one test each; the examples are those of its documentation."""

from assignors.kafka import ASSIGNORS
from assignors.kafka.api import MemberSubscription, Subscription


def member(*topics: str, instance_id: str | None = None) -> MemberSubscription:
    return MemberSubscription(Subscription(topics), instance_id)


def deal(counts: dict[str, int], group: dict[str, MemberSubscription]) -> dict[str, str]:
    """Return the assignment as text: "t0 t1" is partitions 0 and 1 of topic t."""
    answer = ASSIGNORS["roundrobin"].assign(counts, group)
    return {name: " ".join(f"{topic}{number}" for topic, number in parts) for name, parts in answer.items()}


def test_partitions_of_all_topics_are_dealt_in_one_round() -> None:
    group = {"C0": member("t", "u"), "C1": member("t", "u")}
    assert deal({"t": 3, "u": 3}, group) == {"C0": "t0 t2 u1", "C1": "t1 u0 u2"}


def test_a_member_without_the_topic_is_passed_over_and_loses_its_turn() -> None:
    # kafka-python 3.0.12 raises KeyError here, because it looks up the next member by the wrong key.
    group = {"C0": member("t"), "C1": member("t", "u"), "C2": member("t", "u", "v")}
    assert deal({"t": 1, "u": 2, "v": 3}, group) == {"C0": "t0", "C1": "u0", "C2": "u1 v0 v1 v2"}
