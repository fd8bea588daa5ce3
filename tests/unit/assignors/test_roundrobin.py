"""The rules of Kafka's RoundRobinAssignor, one test each; the examples are those of its documentation."""

from assignors.kafka import ASSIGNORS
from assignors.kafka.api import MemberSubscription, Subscription, TopicPartition


def member(*topics: str, instance_id: str | None = None) -> MemberSubscription:
    return MemberSubscription(Subscription(topics), instance_id)


def deal(counts: dict[str, int], group: dict[str, MemberSubscription]) -> dict[str, str]:
    """Return the assignment as text: "t0 t1" is partitions 0 and 1 of topic t."""
    answer = ASSIGNORS["roundrobin"].assign(counts, group)
    return {name: " ".join(f"{topic}{number}" for topic, number in parts) for name, parts in answer.items()}


def test_partitions_of_all_topics_are_dealt_in_one_round() -> None:
    group = {"C0": member("t", "u"), "C1": member("t", "u")}
    assert deal({"t": 3, "u": 3}, group) == {"C0": "t0 t2 u1", "C1": "t1 u0 u2"}


def test_the_answer_holds_topic_partitions() -> None:
    answer = ASSIGNORS["roundrobin"].assign({"t": 1}, {"a": member("t")})
    assert answer == {"a": [TopicPartition(topic="t", partition=0)]}


def test_a_member_without_the_topic_is_passed_over_and_loses_its_turn() -> None:
    # kafka-python 3.0.12 raises KeyError here, because it looks up the next member by the wrong key.
    group = {"C0": member("t"), "C1": member("t", "u"), "C2": member("t", "u", "v")}
    assert deal({"t": 1, "u": 2, "v": 3}, group) == {"C0": "t0", "C1": "u0", "C2": "u1 v0 v1 v2"}


def test_the_round_goes_on_behind_the_member_served_last() -> None:
    group = {"a": member("t", "v"), "b": member("u", "v"), "c": member("v")}
    assert deal({"t": 1, "u": 1, "v": 2}, group) == {"a": "t0 v1", "b": "u0", "c": "v0"}


def test_topics_go_by_name_not_by_the_order_of_subscription() -> None:
    group = {"a": member("u", "t"), "b": member("t", "u")}
    assert deal({"u": 1, "t": 1}, group) == {"a": "t0", "b": "u0"}


def test_a_topic_nobody_subscribes_to_takes_no_turn() -> None:
    group = {"a": member("t", "v"), "b": member("t", "v")}
    assert deal({"t": 1, "u": 1, "v": 1}, group) == {"a": "t0", "b": "v0"}


def test_a_topic_without_metadata_or_partitions_takes_no_turn() -> None:
    group = {"a": member("empty", "ghost", "t"), "b": member("t")}
    assert deal({"empty": 0, "t": 2}, group) == {"a": "t0", "b": "t1"}


def test_a_member_without_topics_gets_an_empty_list() -> None:
    assert deal({"t": 2}, {"a": member(), "b": member("t")}) == {"a": "", "b": "t0 t1"}


def test_no_members_no_assignment() -> None:
    assert deal({"t": 2}, {}) == {}


def test_a_topic_named_twice_counts_once() -> None:
    assert deal({"t": 4}, {"a": member("t", "t"), "b": member("t")}) == {"a": "t0 t2", "b": "t1 t3"}


def test_static_members_are_served_first_by_instance_id() -> None:
    group = {"a": member("t"), "y": member("t", instance_id="i2"), "z": member("t", instance_id="i1")}
    assert deal({"t": 4}, group) == {"z": "t0 t3", "y": "t1", "a": "t2"}


def test_static_members_that_come_back_with_new_ids_keep_their_partitions() -> None:
    before = {name: member("t", "u", instance_id=f"I{name[1]}") for name in ("C0", "C1", "C2")}
    after = {new: before[old] for new, old in (("C5", "C0"), ("C3", "C1"), ("C4", "C2"))}
    assert deal({"t": 3, "u": 3}, before) == {"C0": "t0 u0", "C1": "t1 u1", "C2": "t2 u2"}
    assert deal({"t": 3, "u": 3}, after) == {"C5": "t0 u0", "C3": "t1 u1", "C4": "t2 u2"}
