"""The invariants of a share group between two steps: rows SV1, SV2, SV4 to SV6, SK2 and SP15.

SV3, SV7 and the rule that epochs never decrease are properties of a whole log, which tests check.
"""

from state.kafka.share.state import OVERDUE_MS
from state.kafka.share_group import Parked, ParkedKind, ShareGroup, ShareMember


def invariants_of(group: ShareGroup) -> list[tuple[str, bool]]:
    """Return each invariant, and True if it holds."""
    members = group.members
    tasks = {(id_, n): it for id_, topic in group.initializing.items() for n, it in topic.partitions.items()}
    altered = {partition for partition, task in tasks.items() if task.altered}
    initializing, unaltered = tasks.keys(), tasks.keys() - altered
    initialized = {(id_, n) for id_, topic in group.initialized.items() for n in topic.partitions}
    deleting = {(id_, n) for id_, topic in group.deleting.items() for n in topic.partitions}
    outcomes = {code for topic in group.deleting.values() for code in topic.partitions.values()}
    subscribed = {n for member in members.values() for n in member.subscribed_topic_names}
    covered = {
        (id_, n) for target in group.target.values() for id_, numbers in target.items() for n in numbers
    }
    return [
        (
            "SV1: a member's epoch has risen",
            all(m.previous_epoch < m.member_epoch for m in members.values()),
        ),
        ("SV2: what is altered is assigned to nobody", not altered & _assignable(group)),
        (
            "SV4: a partition is initializing or initialized, unless it is altered",
            not unaltered & initialized,
        ),
        ("SK2: what an administrator asked for is open", all(tasks[partition].task for partition in altered)),
        ("SV4: what is deleted is neither", not deleting & (initializing | initialized)),
        ("SP15: tasks that are not old are watched", _watches(group)),
        (
            "SV6: a member has no more than its target",
            all(_has_no_more(group, m) for m in members.values() if m.member_epoch == group.assignment_epoch),
        ),
        ("the covered partitions are those of the targets", covered == _pairs(group.covered)),
        ("the subscribed names are those of the members", group.subscribed() == subscribed),
        ("a deletion has an Empty group", not group.deletion or not members),
        ("what a request waits for is open", all(_is_open(group, parked) for parked in group.parked)),
        ("a deletion is open", not group.deletion or 0 in outcomes),
        (
            "the task of a topic's deletion is open until each partition has an outcome",
            all(bool(topic.task) == (0 in topic.partitions.values()) for topic in group.deleting.values()),
        ),
        (
            "subscribed names are sorted",
            all(m.subscribed_topic_names == sorted(set(m.subscribed_topic_names)) for m in members.values()),
        ),
        (
            "partitions are sorted, and no topic has none",
            all(
                numbers and numbers == sorted(set(numbers))
                for partitions in (
                    {id_: topic.partitions for id_, topic in group.initialized.items()},
                    *group.target.values(),
                )
                for numbers in partitions.values()
            ),
        ),
        (
            "no topic without partitions waits",
            all(topic.partitions for topic in group.initializing.values())
            and all(topic.partitions for topic in group.deleting.values()),
        ),
    ]


def _assignable(group: ShareGroup) -> set[tuple[bytes, int]]:
    topics = [topic for topic in group.topics.values() if topic is not None]
    return {(topic.topic_id, n) for topic in topics for n in group.assignable(topic)}


def _is_open(group: ShareGroup, parked: Parked) -> bool:
    """Return True if the request waits for nothing but open answers of the share coordinator."""
    if parked.kind is ParkedKind.DELETE_GROUP:
        return bool(group.deletion)
    awaited = [
        (topic.topic_id, n) for topic in parked.topics for n, code in topic.outcomes.items() if code is None
    ]
    if parked.kind is ParkedKind.ALTER_OFFSETS:
        return bool(awaited) and all(_initialize_task(group, *partition) for partition in awaited)
    return bool(awaited) and all(_delete_task(group, *partition) for partition in awaited)


def _initialize_task(group: ShareGroup, topic_id: bytes, number: int) -> str:
    topic = group.initializing.get(topic_id)
    return "" if topic is None or number not in topic.partitions else topic.partitions[number].task


def _delete_task(group: ShareGroup, topic_id: bytes, number: int) -> str:
    """Return the open task that deletes the partition's state, or "".

    A partition has the code 0 while its outcome is awaited.
    """
    topic = group.deleting.get(topic_id)
    return "" if topic is None or topic.partitions.get(number) != 0 else topic.task


def _watches(group: ShareGroup) -> bool:
    times = [
        one.at_ms for topic in group.initializing.values() for one in topic.partitions.values() if one.task
    ]
    times += [t.at_ms for t in group.deleting.values() if t.task and 0 in t.partitions.values()]
    if not times:
        return group.overdue_deadline_ms is None
    is_young = max(times) + OVERDUE_MS > group.clock_ms
    return group.overdue_deadline_ms is not None or not is_young


def _pairs(partitions: dict[bytes, set[int]]) -> set[tuple[bytes, int]]:
    return {(id_, n) for id_, numbers in partitions.items() for n in numbers}


def _has_no_more(group: ShareGroup, member: ShareMember) -> bool:
    target = group.target.get(member.member_id, {})
    return all(target.get(id_) == numbers for id_, numbers in member.assigned.items())
