"""The rules of Kafka's RangeAssignor, one test each; the examples are those of its documentation."""

from assignors.kafka import ASSIGNORS
from assignors.kafka.api import MemberSubscription, Subscription


def member(*topics: str, instance_id: str | None = None, rack_id: str | None = None) -> MemberSubscription:
    return MemberSubscription(Subscription(topics, rack_id=rack_id), instance_id)


def deal(
    counts: dict[str, int], group: dict[str, MemberSubscription], racks: dict[str, str] | None = None
) -> dict[str, str]:
    """Return text: "t0 t1" is partitions 0 and 1 of topic t; racks "x yz" are x, then y and z."""
    replicas = {topic: [frozenset(word) for word in text.split()] for topic, text in (racks or {}).items()}
    answer = ASSIGNORS["range"].assign(counts, group, replicas)
    return {name: " ".join(f"{topic}{number}" for topic, number in parts) for name, parts in answer.items()}


def test_each_topic_is_cut_into_runs_and_the_first_members_get_the_extra_ones() -> None:
    group = {"C0": member("t", "u"), "C1": member("t", "u")}
    assert deal({"t": 3, "u": 3}, group) == {"C0": "t0 t1 u0 u1", "C1": "t2 u2"}


# Racks (KIP-881).


def test_racks_of_members_or_of_partitions_alone_change_nothing() -> None:
    group = {"a": member("t", rack_id="x"), "b": member("t", rack_id="y")}
    assert deal({"t": 3}, group) == {"a": "t0 t1", "b": "t2"}
    assert deal({"t": 3}, {"a": member("t"), "b": member("t")}, {"t": "y x x"}) == {"a": "t0 t1", "b": "t2"}


def test_racks_that_are_the_same_for_all_partitions_or_strange_to_all_members_change_nothing() -> None:
    group = {"a": member("t", rack_id="x"), "b": member("t", rack_id="y")}
    assert deal({"t": 3}, group, {"t": "yx yx yx"}) == {"a": "t0 t1", "b": "t2"}
    assert deal({"t": 3}, group, {"t": "z w z"}) == {"a": "t0 t1", "b": "t2"}


def test_members_get_partitions_on_their_rack_first() -> None:
    group = {"a": member("t", rack_id="x"), "b": member("t", rack_id="y")}
    assert deal({"t": 4}, group, {"t": "y x y x"}) == {"a": "t1 t3", "b": "t0 t2"}


def test_the_shares_stay_those_of_plain_range() -> None:
    group = {"a": member("t", rack_id="x"), "b": member("t", rack_id="y"), "c": member("t", rack_id="x")}
    assert deal({"t": 4}, group, {"t": "y y y y"} | {"u": "x"}) == {"a": "t0 t1", "b": "t2", "c": "t3"}
    assert deal({"t": 4}, group, {"t": "y y y x"}) == {"a": "t3", "b": "t0 t1", "c": "t2"}


def test_a_member_of_unknown_rack_is_near_everything() -> None:
    group = {"a": member("t"), "b": member("t", rack_id="y")}
    assert deal({"t": 2}, group, {"t": "y x"}) == {"a": "t0", "b": "t1"}


def test_topics_of_one_size_stay_co_partitioned() -> None:
    # Number 0 of u is on x only, so neither member is near both numbers 0: they are assigned last.
    group = {"a": member("t", "u", rack_id="x"), "b": member("t", "u", rack_id="y")}
    racks = {"t": "y x", "u": "x x"}
    assert deal({"t": 2, "u": 2}, group, racks) == {"a": "t1 u1", "b": "t0 u0"}


def test_topics_of_other_sizes_are_dealt_by_themselves() -> None:
    group = {"a": member("t", "u", rack_id="x"), "b": member("t", "u", rack_id="y")}
    racks = {"t": "y x", "u": "x x y"}
    assert deal({"t": 2, "u": 3}, group, racks) == {"a": "t1 u0 u1", "b": "t0 u2"}


def test_racks_of_partitions_that_are_not_told_are_unknown() -> None:
    group = {"a": member("t", rack_id="x"), "b": member("t", rack_id="y")}
    assert deal({"t": 3}, group, {"t": "y"}) == {"a": "t1 t2", "b": "t0"}
