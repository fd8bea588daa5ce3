"""The rules of the broker's UniformAssignor, one test each. Kafka's answers: see test_live.py."""

from assignors.kafka import BROKER_ASSIGNORS
from assignors.kafka.api import MemberSubscription, Subscription, TopicPartition


def member(*topics: str, target: str = "", rack: str | None = None) -> MemberSubscription:
    """A member and its target assignment so far; "t0 t1" is partitions 0 and 1 of topic t."""
    owned = tuple(TopicPartition(word[0], int(word[1:])) for word in target.split())
    return MemberSubscription(Subscription(topics, None, owned, 4, rack))


def deal(counts: dict[str, int], group: dict[str, MemberSubscription]) -> dict[str, str]:
    answer = BROKER_ASSIGNORS["uniform"].assign(counts, group)
    return {name: " ".join(f"{topic}{number}" for topic, number in parts) for name, parts in answer.items()}


def test_it_is_the_brokers_default() -> None:
    assert list(BROKER_ASSIGNORS) == ["uniform", "range"]


# The same topics.


def test_from_scratch_the_last_members_get_the_extra_partitions_and_all_get_runs() -> None:
    group = {name: member("t", "u") for name in "abc"}
    assert deal({"t": 3, "u": 2}, group) == {"a": "t0", "b": "t1 t2", "c": "u0 u1"}


def test_members_keep_their_first_partitions_up_to_their_share() -> None:
    group = {"a": member("t", target="t0 t1 t2 t3"), "b": member("t")}
    assert deal({"t": 4}, group) == {"a": "t0 t1", "b": "t2 t3"}


def test_a_member_that_owns_more_than_the_others_keeps_the_extra_partition() -> None:
    group = {"a": member("t", target="t0 t1 t2"), "b": member("t", target="t3"), "c": member("t")}
    assert deal({"t": 4}, group) == {"a": "t0 t1", "b": "t3", "c": "t2"}


def test_partitions_of_other_topics_are_given_up() -> None:
    group = {"a": member("t", target="u0 t1"), "b": member("t")}
    assert deal({"t": 2, "u": 1}, group) == {"a": "t1", "b": "t0"}


# Different topics.


def test_partitions_go_to_the_least_loaded_subscribers() -> None:
    group = {"a": member("t"), "b": member("t", "u"), "c": member("u")}
    assert deal({"t": 4, "u": 2}, group) == {"a": "t0 t2", "b": "t1 t3", "c": "u0 u1"}


def test_topics_are_levelled_one_after_the_other() -> None:
    # First t, with a's six partitions of both topics, then u with what a has left.
    group = {"a": member("t", "u", target="t0 t1 t2 t3 u0 u1"), "b": member("t"), "c": member("u")}
    assert deal({"t": 4, "u": 2}, group) == {"a": "t0 u0", "b": "t1 t2 t3", "c": "u1"}


def test_chains_of_members_may_stay_uneven() -> None:
    # Each topic by itself is level. sticky would level a and c through b.
    group = {
        "a": member("t", target="t0"),
        "b": member("t", "u", target="t1 u0"),
        "c": member("u", target="u1 u2 u3"),
    }
    assert deal({"t": 2, "u": 4}, group) == {"a": "t0", "b": "t1 u0", "c": "u1 u2 u3"}


def test_racks_change_nothing() -> None:
    group = {"a": member("t", rack="x"), "b": member("t", rack="y")}
    racks = {"t": [frozenset("y"), frozenset("x")]}
    answer = BROKER_ASSIGNORS["uniform"].assign({"t": 2}, group, racks)
    assert answer == {"a": [TopicPartition("t", 0)], "b": [TopicPartition("t", 1)]}
