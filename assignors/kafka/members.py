"""The order in which assignors deal to members (Kafka: AbstractPartitionAssignor.MemberInfo)."""

from collections import defaultdict
from collections.abc import Mapping

from kafka_why.contract.protocols.java_order import java_order
from kafka_why.contract.protocols.subscriptions import MemberId, MemberSubscription


def members_in_order(subscriptions: Mapping[MemberId, MemberSubscription]) -> list[MemberId]:
    """Return static members by group.instance.id, then dynamic members by member id.

    A static member therefore keeps its place when it rejoins with a new member id. An instance id belongs to
    one member of a group. If two members share one, their member ids decide (Kafka leaves the order open).
    """

    def place(member_id: MemberId) -> tuple[bool, bytes, bytes]:
        instance_id = subscriptions[member_id].group_instance_id
        return instance_id is None, java_order(instance_id or ""), java_order(member_id)

    return sorted(subscriptions, key=place)


def consumers_per_topic(subscriptions: Mapping[MemberId, MemberSubscription]) -> dict[str, list[MemberId]]:
    """Return the subscribers of each subscribed topic: topics in Java's order, members as `members_in_order`.

    A member that names a topic twice is one subscriber.
    """
    consumers: defaultdict[str, list[MemberId]] = defaultdict(list)
    for member_id in members_in_order(subscriptions):
        for topic in dict.fromkeys(subscriptions[member_id].subscription.topics):
            consumers[topic].append(member_id)
    return {topic: consumers[topic] for topic in sorted(consumers, key=java_order)}
