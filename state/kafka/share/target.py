"""The target assignment of a share group: when it is computed, and from what. Rows SH22, ST1 to ST5, SB1 to
SB12.

Source: GroupMetadataManager.maybeUpdateTargetAssignment, initializedAssignmentPending.
"""

from collections.abc import Iterator, Mapping

from assignors.kafka import simple
from kafka_why.contract.protocols.subscriptions import TopicPartition
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.modern.target import ModernSettings, by_topic_id, is_wanted, note_target, topics_of_target
from state.kafka.share_group import ShareGroup

SETTINGS = ModernSettings("share", session="SN14", heartbeat="SN14", assignment="SN14")


def is_assignment_pending(group: ShareGroup) -> bool:
    """Row SH22: whether a partition that is initialized, of a topic that a member subscribes to, is in no
    target, or one is that is not initialized. While another target has to be computed anyway it is not looked
    at (row SH24).

    Only the id that a topic has now counts, not that of a topic of its name before.
    """
    if not group.initialized or group.is_rebalancing:
        return False
    return any(
        group.covered.get(topic.topic_id, set()) != set(group.assignable(topic))
        for _, topic in _with_state(group)
    )


def unassigned(group: ShareGroup) -> dict[str, list[int]]:
    """Return the partitions that are initialized, of topics that a member subscribes to, and in no target."""
    missing = {
        name: sorted(set(group.assignable(topic)).difference(group.covered.get(topic.topic_id, ())))
        for name, topic in _with_state(group)
    }
    return {name: numbers for name, numbers in sorted(missing.items()) if numbers}


def _with_state(group: ShareGroup) -> Iterator[tuple[str, Topic]]:
    """The topics that a member subscribes to and that have initialized partitions."""
    for name in group.subscribed():
        topic = group.topics.get(name)
        if topic is not None and topic.topic_id in group.initialized:
            yield name, topic


def maybe_update_target(context: StepContext) -> None:
    """Compute the target assignment if the group has changed since the last one and the assignment interval
    is over. The members are those of after the request.
    """
    if not is_wanted(context, SETTINGS, current="ST1", too_early="ST2"):
        return
    group, row = context.group_of(ShareGroup), context.rule("ST3")
    last = group.target
    topics, left_out = topics_of_target(context, group)
    group.set_target(by_topic_id(_deal(group, topics), topics))
    note_target(context, group, row, simple.NAME, last, left_out)


def _deal(group: ShareGroup, topics: Mapping[str, Topic]) -> Mapping[str, list[TopicPartition]]:
    """Let the assignor assign by topic name. Each member has an entry."""
    names = {topic.topic_id: name for name, topic in topics.items()}
    last = {
        member_id: [
            TopicPartition(names[topic_id], number)
            for topic_id, numbers in partitions.items()
            if topic_id in names
            for number in numbers
        ]
        for member_id, partitions in group.target.items()
    }
    return simple.assign(
        {name: group.assignable(topic) for name, topic in topics.items()},
        {member.member_id: set(member.subscribed_topic_names) for member in group.members.values()},
        last,
    )
