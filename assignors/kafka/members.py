"""The order in which assignors deal to members (Kafka: AbstractPartitionAssignor.MemberInfo)."""

from collections import defaultdict
from collections.abc import Mapping

from assignors.kafka.api import MemberId, MemberSubscription


def java_order(text: str) -> bytes:
    """Sort key for the order of Java's String.compareTo, which goes by UTF-16 unit.

    Python goes by code point. They differ beyond U+FFFF, which a member id can hold: it starts with the
    client.id, any text. A group of Java and Python members must agree whoever leads it.
    """
    return text.encode("utf-16-be", "surrogatepass")


def members_in_order(subscriptions: Mapping[MemberId, MemberSubscription]) -> list[MemberId]:
    """Static members by group.instance.id, then dynamic members by member id.

    So a static member keeps its place when it comes back with a new member id. An instance id is one
    member's in a group; should two members share one, their member ids decide (Kafka leaves it open).
    """

    def place(member_id: MemberId) -> tuple[bool, bytes, bytes]:
        instance_id = subscriptions[member_id].group_instance_id
        return instance_id is None, java_order(instance_id or ""), java_order(member_id)

    return sorted(subscriptions, key=place)


def consumers_per_topic(subscriptions: Mapping[MemberId, MemberSubscription]) -> dict[str, list[MemberId]]:
    """The subscribers of each subscribed topic: topics in Java's order, members as in `members_in_order`.

    A member that names a topic twice is one subscriber.
    """
    consumers: defaultdict[str, list[MemberId]] = defaultdict(list)
    for member_id in members_in_order(subscriptions):
        for topic in dict.fromkeys(subscriptions[member_id].subscription.topics):
            consumers[topic].append(member_id)
    return {topic: consumers[topic] for topic in sorted(consumers, key=java_order)}
