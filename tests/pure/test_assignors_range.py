"""The rules of Kafka's RangeAssignor, one test each; the examples are those of its documentation."""

from assignors.kafka import ASSIGNORS
from assignors.kafka.api import MemberSubscription, Subscription, TopicPartition


def member(*topics: str, instance_id: str | None = None, rack_id: str | None = None) -> MemberSubscription:
    return MemberSubscription(Subscription(topics, rack_id=rack_id), instance_id)


def deal(counts: dict[str, int], group: dict[str, MemberSubscription]) -> dict[str, str]:
    """The answer in short: "t0 t1" is partitions 0 and 1 of topic t."""
    answer = ASSIGNORS["range"].assign(counts, group)
    return {name: " ".join(f"{topic}{number}" for topic, number in parts) for name, parts in answer.items()}


def test_each_topic_is_cut_into_runs_and_the_first_members_get_the_extra_ones() -> None:
    group = {"C0": member("t", "u"), "C1": member("t", "u")}
    assert deal({"t": 3, "u": 3}, group) == {"C0": "t0 t1 u0 u1", "C1": "t2 u2"}


def test_the_answer_holds_topic_partitions() -> None:
    answer = ASSIGNORS["range"].assign({"t": 1}, {"a": member("t")})
    assert answer == {"a": [TopicPartition(topic="t", partition=0)]}


def test_members_beyond_the_number_of_partitions_get_nothing() -> None:
    group = {"a": member("t"), "b": member("t"), "c": member("t")}
    assert deal({"t": 2}, group) == {"a": "t0", "b": "t1", "c": ""}


def test_a_topic_goes_to_its_subscribers_only() -> None:
    group = {"a": member("t"), "b": member("t", "u"), "c": member("u")}
    assert deal({"t": 3, "u": 2}, group) == {"a": "t0 t1", "b": "t2 u0", "c": "u1"}


def test_a_topic_nobody_subscribes_to_is_left_out() -> None:
    assert deal({"t": 1, "u": 9}, {"a": member("t")}) == {"a": "t0"}


def test_a_topic_without_metadata_or_partitions_is_left_out() -> None:
    assert deal({"t": 1, "empty": 0}, {"a": member("ghost", "empty", "t")}) == {"a": "t0"}


def test_a_member_without_topics_gets_an_empty_list() -> None:
    assert deal({"t": 2}, {"a": member(), "b": member("t")}) == {"a": "", "b": "t0 t1"}


def test_no_members_no_assignment() -> None:
    assert deal({"t": 2}, {}) == {}


def test_a_topic_named_twice_counts_once() -> None:
    assert deal({"t": 4}, {"a": member("t", "t"), "b": member("t")}) == {"a": "t0 t1", "b": "t2 t3"}


def test_static_members_are_served_first_by_instance_id() -> None:
    group = {"a": member("t"), "y": member("t", instance_id="i2"), "z": member("t", instance_id="i1")}
    assert deal({"t": 4}, group) == {"z": "t0 t1", "y": "t2", "a": "t3"}


def test_static_members_that_come_back_with_new_ids_keep_their_partitions() -> None:
    before = {"C0": member("t", instance_id="I0"), "C1": member("t", instance_id="I1")}
    after = {"C3": member("t", instance_id="I0"), "C2": member("t", instance_id="I1")}
    assert deal({"t": 3}, before) == {"C0": "t0 t1", "C1": "t2"}
    assert deal({"t": 3}, after) == {"C3": "t0 t1", "C2": "t2"}


def test_racks_of_members_alone_change_nothing() -> None:
    group = {"a": member("t", rack_id="east"), "b": member("t", rack_id="west")}
    assert deal({"t": 3}, group) == {"a": "t0 t1", "b": "t2"}
