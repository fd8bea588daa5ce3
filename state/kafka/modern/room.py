"""How many partitions the coordinator assigns to one group. Rows TA31, TA32."""

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from kafka_why.contract.kafka.topic_images import TopicImages
from state.config import CoordinatorConfig
from state.kafka.group import Topic
from state.kafka.modern.topics import KnowsTopics


class Assigned(KnowsTopics, Protocol):
    """A group to whose members partitions are assigned, by member id."""

    @property
    def members(self) -> Mapping[str, Any]: ...
    def topics_of(self, member: Any) -> Collection[str]: ...


def has_room(
    config: CoordinatorConfig,
    group: Assigned | None,
    member_id: str,
    topics: Collection[str],
    reported: TopicImages | None,
) -> bool:
    """Row TA31: whether a member, new or not, may subscribe to these topics without more than
    `group.max.partitions` partitions in the group.

    `reported` is what the request says of the topics. A member that adds no topic to the group's topics has
    room, although they may have grown above the limit.
    """
    known = {} if group is None else group.topics
    counts = {name: topic.partitions for name, topic in known.items() if topic is not None}
    for name, image in (reported or {}).items():
        topic = known.get(name)
        if image is not None and (topic is None or topic.topic_id == image.id.bytes):
            counts[name] = max(image.partitions, counts.get(name, 0))
    most = config.group_max_partitions
    if sum(counts.values()) <= most:
        return True
    # Counts are also known of topics that no member subscribes to.
    if group is None:
        return sum(counts.get(name, 0) for name in topics) <= most
    others = (member for member in group.members.values() if member.member_id != member_id)
    wanted = {topic for member in others for topic in group.topics_of(member)}.union(topics)
    return wanted <= group.subscribed() or sum(counts.get(name, 0) for name in wanted) <= most


def assignable_topics(group: KnowsTopics, most: int) -> tuple[dict[str, Topic], list[str]]:
    """Return the topics to assign by name, and those that are left out, because the partitions of the others
    leave no room for theirs (row TA32).
    """
    topics, left_out = {}, []
    for name in sorted(group.subscribed()):
        topic = group.topics.get(name)
        if topic is None:
            continue
        if topic.partitions > most:
            left_out.append(name)
        else:
            topics[name] = topic
            most -= topic.partitions
    return topics, left_out
