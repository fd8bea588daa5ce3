"""The order of members and topics, which Kafka's AbstractPartitionAssignor.MemberInfo sets."""

from assignors.kafka.api import MemberSubscription, Subscription
from assignors.kafka.members import consumers_per_topic, java_order, members_in_order


def member(*topics: str, instance_id: str | None = None) -> MemberSubscription:
    return MemberSubscription(Subscription(topics), instance_id)


def test_dynamic_members_go_by_member_id() -> None:
    assert members_in_order({"b": member(), "a": member(), "B": member()}) == ["B", "a", "b"]


def test_static_members_go_by_instance_id_whatever_their_member_ids() -> None:
    group = {"m1": member(instance_id="i2"), "m2": member(instance_id="i1")}
    assert members_in_order(group) == ["m2", "m1"]


def test_static_members_go_before_dynamic_ones() -> None:
    group = {"a": member(), "b": member(instance_id="z"), "c": member(), "d": member(instance_id="y")}
    assert members_in_order(group) == ["d", "b", "a", "c"]


def test_an_empty_instance_id_makes_a_static_member() -> None:
    group = {"a": member(instance_id="i"), "b": member(), "c": member(instance_id="")}
    assert members_in_order(group) == ["c", "a", "b"]


def test_members_that_share_an_instance_id_go_by_member_id() -> None:
    group = {"b": member(instance_id="i"), "a": member(instance_id="i")}
    assert members_in_order(group) == ["a", "b"]


def test_strings_go_by_utf16_unit_as_in_java() -> None:
    # By code point the emoji is the greater; its first UTF-16 unit (D83D) is the smaller.
    # kafka-python sorts by code point, so its leader would assign differently in a group mixed with Java.
    below, above = "\N{HALFWIDTH WHITE CIRCLE}", "\N{GRINNING FACE}"
    assert below < above
    assert java_order(above) < java_order(below)
    assert members_in_order({below: member(), above: member()}) == [above, below]


def test_a_prefix_goes_before_the_longer_string() -> None:
    assert sorted(["t10", "t", "t1"], key=java_order) == ["t", "t1", "t10"]


def test_a_lone_surrogate_has_a_place() -> None:
    assert java_order("\ud800") < java_order("\ue000")


def test_topics_come_in_order_with_their_subscribers_in_order() -> None:
    group = {"c": member("t2", "t1"), "a": member("t2"), "b": member("t2", instance_id="i")}
    assert list(consumers_per_topic(group).items()) == [("t1", ["c"]), ("t2", ["b", "a", "c"])]


def test_a_topic_named_twice_counts_once() -> None:
    # kafka-python counts the member twice, and its RangePartitionAssignor then leaves a gap.
    assert consumers_per_topic({"a": member("t", "t")}) == {"t": ["a"]}
