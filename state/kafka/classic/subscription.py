"""The subscriptions of a generation's members, if the coordinator can read them.

Source: ClassicGroup.computeSubscribedTopics.
"""

from kafka_why.contract.protocols.consumer_protocol import ProtocolError, decode_subscribed_topics
from state.kafka.classic_group import ClassicGroup

Subscriptions = dict[str, list[str]]
"""Topics, sorted, by member id."""


def subscriptions(group: ClassicGroup) -> Subscriptions | None:
    """Return the topics of each member. None if one subscription is unreadable, or if this is not a consumer
    group.
    """
    if not group.is_consumer_group():
        return None
    try:
        return {
            member.member_id: sorted(set(decode_subscribed_topics(member.metadata(group.protocol_name))))
            for member in group.members.values()
        }
    except ProtocolError:
        return None


def all_topics(by_member: Subscriptions | None) -> list[str] | None:
    """Return the topics of all members, sorted. None if they are unknown."""
    if by_member is None:
        return None
    return sorted({topic for topics in by_member.values() for topic in topics})


def where_they_differ(by_member: Subscriptions | None) -> Subscriptions | None:
    """Return `by_member`, or None if all members subscribe to the same topics or the topics are unknown."""
    if by_member is None or len({tuple(topics) for topics in by_member.values()}) <= 1:
        return None
    return by_member
