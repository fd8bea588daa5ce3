"""The topics that a generation's members subscribe to, and what JoinGroups report of them: ids and numbers of
partitions.

Source: ClassicGroup.computeSubscribedTopics.
"""

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.kafka.share_requests import TopicImages
from kafka_why.contract.protocols.subscriptions import ProtocolError, decode_subscribed_topics
from state.kafka.classic_group import ClassicGroup
from state.kafka.context import StepContext
from state.kafka.group import Topic, watched

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


# Reports of JoinGroups about the members' topics: their ids and numbers of partitions.
#
# The classic protocol does not use these facts. An upgrade to the consumer protocol needs them, because
# that protocol goes by topic id (rows UP5, MI14).


def record_topics(group: ClassicGroup, reported: TopicImages | None) -> None:
    """Keep what an accepted JoinGroup reported.

    The latest report holds, because no one else reports to a classic group. Only a lower count of the same
    topic is ignored, because a topic never loses partitions. A reported name is not wanted any more.
    """
    for name, image in (reported or {}).items():
        topic = None if image is None else Topic(image.id.bytes, image.partitions)
        if not _has_shrunk(group.topics.get(name), topic):
            group.topics[name] = topic
    if group.wanted_topics and reported:
        group.wanted_topics = [name for name in group.wanted_topics if name not in reported]


def _has_shrunk(known: Topic | None, reported: Topic | None) -> bool:
    """Whether both are the same topic, and the reported count is the lower one."""
    if known is None or reported is None or known.topic_id != reported.topic_id:
        return False
    return reported.partitions < known.partitions


def settle_topics(group: ClassicGroup) -> None:
    """Forget the topics that no member of the new generation subscribes to."""
    subscribed = group.subscribed()
    group.topics = {name: topic for name, topic in sorted(group.topics.items()) if name in subscribed}
    group.wanted_topics = [name for name in group.wanted_topics if name in subscribed]


def topic_metadata(context: StepContext, request: TopicMetadata) -> None:
    """Keep what the topic watcher reports of the topics that the group knows or wants to know (row MI8)."""
    group = context.group_of(ClassicGroup)
    names = {*group.topics, *group.wanted_topics}
    images = {name: request.topics[name] for name in sorted(request.topics) if name in names}
    if not images:
        return
    found = watched(group.topics, images, group.deleted_topic_ids)
    group.topics = dict(sorted({**group.topics, **found}.items()))
    if answered := [name for name in group.wanted_topics if name in images]:
        group.wanted_topics = [name for name in group.wanted_topics if name not in images]
        why = "the topics that a conversion to the consumer protocol needs are known"
        context.record(context.rule("MI8"), EntryType.TOPICS_CHANGED, why, topics=answered)
