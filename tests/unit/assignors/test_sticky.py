"""The rules of Kafka's sticky assignors, one test each; the examples are those of its documentation."""

from assignors.kafka import ASSIGNORS
from assignors.kafka.api import MemberSubscription, PartitionRacks, Subscription, TopicPartition
from assignors.kafka.user_data import Claim, encode_sticky_user_data


def parts(text: str) -> tuple[TopicPartition, ...]:
    """ "t0 t1" is partitions 0 and 1 of topic t."""
    return tuple(TopicPartition(word[0], int(word[1:])) for word in text.split())


def member(
    *topics: str, owned: str = "", generation: int = 1, rack: str | None = None, instance: str | None = None
) -> MemberSubscription:
    """Return a member that claims its earlier partitions in the ways of both assignors."""
    user_data = encode_sticky_user_data(Claim(parts(owned), generation))
    return MemberSubscription(Subscription(topics, user_data, parts(owned), generation, rack), instance)


def deal(
    counts: dict[str, int],
    group: dict[str, MemberSubscription],
    name: str = "sticky",
    racks: PartitionRacks | None = None,
) -> dict[str, str]:
    answer = ASSIGNORS[name].assign(counts, group, racks or {})
    return {name: " ".join(f"{topic}{number}" for topic, number in parts) for name, parts in answer.items()}


# Members with the same topics.


def test_from_scratch_it_is_round_robin() -> None:
    counts = dict.fromkeys("tuvw", 2)
    group = {name: member(*"tuvw") for name in ("C0", "C1", "C2")}
    assert deal(counts, group) == {"C0": "t0 u1 w0", "C1": "t1 v0 w1", "C2": "u0 v1"}


def test_when_a_member_leaves_the_others_share_its_partitions() -> None:
    group = {"C0": member(*"tuvw", owned="t0 u1 w0"), "C2": member(*"tuvw", owned="u0 v1")}
    assert deal(dict.fromkeys("tuvw", 2), group) == {"C0": "t0 t1 u1 w0", "C2": "u0 v0 v1 w1"}


def test_when_a_member_joins_the_others_give_their_last_partitions() -> None:
    group = {"a": member("t", owned="t0 t1 t2"), "b": member("t", owned="t3 t4 t5"), "c": member("t")}
    assert deal({"t": 6}, group) == {"a": "t0 t1", "b": "t3 t4", "c": "t2 t5"}


def test_a_member_that_has_the_extra_partition_keeps_it() -> None:
    group = {"a": member("t", owned="t0 t1"), "b": member("t", owned="t2 t3 t4")}
    assert deal({"t": 5}, group) == {"a": "t0 t1", "b": "t2 t3 t4"}


def test_members_go_by_member_id_but_are_answered_in_the_common_order() -> None:
    group = {"b": member("t", instance="i"), "a": member("t")}
    assert list(deal({"t": 1}, group).items()) == [("b", ""), ("a", "t0")]


# Members with different topics.


def test_it_is_as_even_as_the_topics_allow() -> None:
    group = {"C0": member("t"), "C1": member("t", "u"), "C2": member("t", "u", "v")}
    assert deal({"t": 1, "u": 2, "v": 3}, group) == {"C0": "t0", "C1": "u0 u1", "C2": "v0 v1 v2"}


def test_when_a_member_with_other_topics_leaves_the_rest_stay() -> None:
    group = {"C1": member("t", "u", owned="u0 u1"), "C2": member("t", "u", "v", owned="v0 v1 v2")}
    assert deal({"t": 1, "u": 2, "v": 3}, group) == {"C1": "t0 u0 u1", "C2": "v0 v1 v2"}


def test_loads_are_levelled_through_chains_of_members() -> None:
    # a and b share t, b and c share u: a can lose load only if b gives to c. No single move helps.
    group = {
        "a": member("t", owned="t0 t1 t2"),
        "b": member("t", "u", owned="u0 u1"),
        "c": member("u", owned="u2"),
    }
    answer = deal({"t": 3, "u": 3}, group)
    assert {name: len(partitions.split()) for name, partitions in answer.items()} == {"a": 2, "b": 2, "c": 2}
    assert set(answer["a"].split()) < {"t0", "t1", "t2"}


def test_a_topic_given_up_is_taken_from_the_member() -> None:
    group = {"a": member("t", owned="t0 u0"), "b": member("t", "u", owned="t1")}
    assert deal({"t": 2, "u": 1}, group) == {"a": "t0", "b": "t1 u0"}


def test_a_partition_that_has_to_move_goes_back_to_its_previous_owner() -> None:
    # Both b and c have room for one. The claims of a are newer; c had t2 before.
    group = {
        "a": member("t", "u", owned="t0 t1 t2", generation=2),
        "b": member("t", "u"),
        "c": member("t", owned="t2", generation=1),
    }
    assert deal({"t": 3, "u": 0}, group | {"d": member("u")}) == {"a": "t0", "b": "t1", "c": "t2", "d": ""}


# Claims.


def test_the_claim_of_the_higher_generation_counts() -> None:
    group = {
        "a": member("t", owned="t0 t1", generation=3),
        "b": member("t", owned="t0 t2", generation=4),
    }
    assert deal({"t": 4}, group) == {"a": "t1 t3", "b": "t0 t2"}


def test_a_claim_of_an_older_generation_counts_if_nobody_else_has_one() -> None:
    group = {"a": member("t", owned="t2", generation=3), "b": member("t", owned="t0", generation=4)}
    assert deal({"t": 3}, group) == {"a": "t1 t2", "b": "t0"}


def test_claims_of_one_generation_void_each_other_whatever_older_ones_say() -> None:
    group = {
        "a": member("t", owned="t0"),
        "b": member("t", owned="t0"),
        "c": member("t", owned="t0", generation=0),
        "d": member("t", owned="t1"),
    }
    assert deal({"t": 2}, group) == {"a": "t0", "b": "", "c": "", "d": "t1"}


def test_partitions_that_are_not_there_are_not_kept() -> None:
    assert deal({"t": 1}, {"a": member("t", owned="t0 t1 g0")}) == {"a": "t0"}


# Cooperative.


def test_a_partition_that_moves_is_given_to_nobody_first() -> None:
    group = {"a": member("t", owned="t0 t1"), "b": member("t", owned="t2 t3"), "c": member("t")}
    assert deal({"t": 4}, group, "cooperative-sticky") == {"a": "t0 t1", "b": "t2", "c": ""}
    group = {"a": member("t", owned="t0 t1"), "b": member("t", owned="t2"), "c": member("t")}
    assert deal({"t": 4}, group, "cooperative-sticky") == {"a": "t0 t1", "b": "t2", "c": "t3"}


def test_an_outdated_claim_of_another_does_not_hold_an_owner_up() -> None:
    group = {"a": member("t", owned="t0", generation=4), "b": member("t", owned="t0 t1", generation=3)}
    assert deal({"t": 2}, group, "cooperative-sticky") == {"a": "t0", "b": "t1"}


def test_what_two_members_claim_in_one_generation_is_taken_from_both() -> None:
    group = {"a": member("t", owned="t0 t1"), "b": member("t", owned="t1 t2")}
    assert deal({"t": 3}, group, "cooperative-sticky") == {"a": "t0", "b": "t2"}


# Racks.

RACKS = {"t": [frozenset(rack) for rack in ("x", "y", "x", "y")]}


def test_members_get_partitions_on_their_rack() -> None:
    group = {"a": member("t", rack="y"), "b": member("t", rack="x")}
    assert deal({"t": 4}, group, racks=RACKS) == {"a": "t1 t3", "b": "t0 t2"}


def test_the_rack_goes_before_staying_and_balance_before_the_rack() -> None:
    group = {"a": member("t", owned="t0 t2", rack="y"), "b": member("t", owned="t1 t3", rack="x")}
    assert deal({"t": 4}, group, racks=RACKS) == {"a": "t1 t3", "b": "t0 t2"}
    group = {"a": member("t", rack="y"), "b": member("t", rack="z")}
    assert deal({"t": 4}, group, racks=RACKS) == {"a": "t1 t3", "b": "t0 t2"}


def test_a_partition_that_is_near_nobody_stays() -> None:
    group = {"a": member("t", owned="t1", rack="x"), "b": member("t", owned="t0", rack="z")}
    assert deal({"t": 2}, group, racks={"t": [frozenset("x"), frozenset("w")]}) == {"a": "t0", "b": "t1"}
    racks = {"t": [frozenset("x"), frozenset("w"), frozenset("v")]}
    group = {"a": member("t", owned="t0 t2", rack="x"), "b": member("t", owned="t1", rack="z")}
    assert deal({"t": 3}, group, racks=racks) == {"a": "t0 t2", "b": "t1"}


def test_racks_that_are_everywhere_the_same_change_nothing() -> None:
    racks = {"t": [frozenset("xy")] * 4}
    group = {"a": member("t", owned="t0 t1", rack="y"), "b": member("t", owned="t2 t3", rack="x")}
    assert deal({"t": 4}, group, racks=racks) == {"a": "t0 t1", "b": "t2 t3"}
