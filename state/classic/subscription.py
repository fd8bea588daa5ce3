"""What a generation's members subscribe to, as far as the coordinator can read it.

Source: ClassicGroup.computeSubscribedTopics.
"""

from assignors.kafka.protocol import ProtocolError, decode_subscribed_topics
from state.group import Group


def subscribed_topics(group: Group) -> list[str] | None:
    """The topics of all members, sorted; None where one cannot be read, or this is no consumer group."""
    if not group.is_consumer_group():
        return None
    topics: set[str] = set()
    for member in group.members.values():
        try:
            topics.update(decode_subscribed_topics(member.metadata(group.protocol_name)))
        except ProtocolError:
            return None
    return sorted(topics)
