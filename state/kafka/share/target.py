"""The target assignment of a share group: when it is computed, and from what. Rows SH22, ST1 to ST5, SB1 to
SB12.

The assignor goes by topic name; a target goes by topic id. A topic that was deleted and created again has
another id, so the members' last target does not count for it. Source:
GroupMetadataManager.maybeUpdateTargetAssignment, initializedAssignmentPending.
"""

from collections.abc import Iterator, Mapping

from assignors.kafka import simple
from assignors.kafka.api import TopicPartition
from state.kafka.context import StepContext
from state.kafka.group import Topic
from state.kafka.history import EntryType
from state.kafka.modern.epochs import is_due
from state.kafka.modern.room import assignable_topics
from state.kafka.modern.wording import counted, listed
from state.kafka.modern_group import Partitions
from state.kafka.share.settings import settings_of
from state.kafka.share_group import ShareGroup
from state.kafka.snapshot import named

_Members = dict[tuple[bytes, int], set[str]]
"""The members that have each partition."""


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
    group = context.group_of(ShareGroup)
    if group.assignment_epoch >= group.group_epoch:
        context.rule("ST1")
    elif not is_due(context, settings_of(context).assignment_interval_ms):
        context.rule("ST2")
    else:
        _compute(context, group)


def _compute(context: StepContext, group: ShareGroup) -> None:
    row = context.rule("ST3")
    last_epoch, last = group.assignment_epoch, group.target
    topics, left_out = assignable_topics(group, context.config.group_max_partitions)
    target = _assign(group, topics)
    group.set_target(target)
    group.assignment_epoch, group.assignment_timestamp_ms = group.group_epoch, context.now_ms
    moved, new = _moves(last, target)
    moves = "moves" if moved == 1 else "move"
    epochs = f"of epoch {group.assignment_epoch} from that of {last_epoch}"
    reason = f"{simple.NAME} computed the target {epochs}: "
    reason += f"{counted(moved, 'partition')} {moves} to another member, and {new} had no member"
    if left_out:
        context.rule("TA32")
        most = context.config.group_max_partitions
        reason += f"; topics beyond group.max.partitions={most} are left out: {listed(left_out, 'topic')}"
    names = group.names_by_id()
    context.record(
        row,
        EntryType.TARGET_ASSIGNMENT_COMPUTED,
        reason,
        assignor_name=simple.NAME,
        moved_partitions=moved,
        targets={id_: named(has, names) for id_, has in target.items() if has != last.get(id_)},
    )


def _assign(group: ShareGroup, topics: Mapping[str, Topic]) -> dict[str, Partitions]:
    """Let the assignor assign by topic name, and return the target by topic id. Each member has an entry."""
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
    dealt = simple.assign(
        {name: group.assignable(topic) for name, topic in topics.items()},
        {member.member_id: set(member.subscribed_topic_names) for member in group.members.values()},
        last,
    )
    target: dict[str, Partitions] = {}
    for member_id, partitions in dealt.items():
        of_member = target[member_id] = {}
        for name, number in partitions:
            of_member.setdefault(topics[name].topic_id, []).append(number)
    return target


def _moves(last: Mapping[str, Partitions], target: Mapping[str, Partitions]) -> tuple[int, int]:
    """The number of partitions that one member loses and another gets, and of those that had no member."""
    before, after = _members_of(last), _members_of(target)
    new = after.keys() - before.keys()
    moved = sum(
        bool(members - before[partition]) and bool(before[partition] - members)
        for partition, members in after.items()
        if partition not in new
    )
    return moved, len(new)


def _members_of(target: Mapping[str, Partitions]) -> _Members:
    members: _Members = {}
    for member_id, partitions in target.items():
        for topic_id, numbers in partitions.items():
            for number in numbers:
                members.setdefault((topic_id, number), set()).add(member_id)
    return members
