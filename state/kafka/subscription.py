"""What a generation's members subscribe to, as far as the coordinator can read it.

Source: ClassicGroup.computeSubscribedTopics.
"""

from assignors.kafka.consumer_protocol import ProtocolError, decode_subscribed_topics
from state.kafka.group import Group

Subscriptions = dict[str, list[str]]
"""Topics, sorted, by member id."""


def subscriptions(group: Group) -> Subscriptions | None:
    """Who subscribes to what; None where one cannot be read, or this is no consumer group."""
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
    """The topics of all members, sorted; None where they are not known."""
    if by_member is None:
        return None
    return sorted({topic for topics in by_member.values() for topic in topics})


def where_they_differ(by_member: Subscriptions | None) -> Subscriptions | None:
    """None where all members subscribe to the same, which the topics of all tell too."""
    if by_member is None or len({tuple(topics) for topics in by_member.values()}) <= 1:
        return None
    return by_member
