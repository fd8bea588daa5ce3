"""Rules of Kafka's sticky assignors that neither a property nor a recorded answer of Kafka shows."""

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


def test_members_go_by_member_id_but_are_answered_in_the_common_order() -> None:
    group = {"b": member("t", instance="i"), "a": member("t")}
    assert list(deal({"t": 1}, group).items()) == [("b", ""), ("a", "t0")]


def test_claims_of_one_generation_void_each_other_whatever_older_ones_say() -> None:
    group = {
        "a": member("t", owned="t0"),
        "b": member("t", owned="t0"),
        "c": member("t", owned="t0", generation=0),
        "d": member("t", owned="t1"),
    }
    assert deal({"t": 2}, group) == {"a": "t0", "b": "", "c": "", "d": "t1"}


def test_racks_that_are_everywhere_the_same_change_nothing() -> None:
    racks = {"t": [frozenset("xy")] * 4}
    group = {"a": member("t", owned="t0 t1", rack="y"), "b": member("t", owned="t2 t3", rack="x")}
    assert deal({"t": 4}, group, racks=racks) == {"a": "t0 t1", "b": "t2 t3"}
