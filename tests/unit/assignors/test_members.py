"""The order of members and topics, which Kafka's AbstractPartitionAssignor.MemberInfo sets."""

from assignors.kafka.api import MemberSubscription, Subscription
from assignors.kafka.members import java_order, members_in_order


def member(*topics: str, instance_id: str | None = None) -> MemberSubscription:
    return MemberSubscription(Subscription(topics), instance_id)


def test_an_empty_instance_id_makes_a_static_member() -> None:
    group = {"a": member(instance_id="i"), "b": member(), "c": member(instance_id="")}
    assert members_in_order(group) == ["c", "a", "b"]


def test_members_that_share_an_instance_id_go_by_member_id() -> None:
    group = {"b": member(instance_id="i"), "a": member(instance_id="i")}
    assert members_in_order(group) == ["a", "b"]


def test_a_lone_surrogate_has_a_place() -> None:
    assert java_order("\ud800") < java_order("\ue000")
