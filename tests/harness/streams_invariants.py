"""The invariants of a streams group between two steps: rows KSI1 to KSI7."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from kafka_why.contract.kafka.history import ConsumerGroupState, MemberState
from state.kafka.streams_group import (
    NO_TASKS,
    Role,
    StreamsGroup,
    StreamsGroupMember,
    StreamsGroupState,
    Task,
)
from state.kafka.streams_topics import ConfiguredTopology

UNREVOKED = MemberState.UNREVOKED_PARTITIONS


def invariants_of(group: StreamsGroup) -> list[tuple[str, bool]]:
    """Return each invariant, and True if it holds."""
    members = group.members
    owners = Counter(task for member in members.values() for task in _active_of(member))
    return [
        ("KSI1: an active task has at most one member", all(number == 1 for number in owners.values())),
        ("KSI2: a process has a task once", _is_once_per_process(group)),
        ("KSI4, KSI7: a member that revokes has tasks to revoke, and a timer", _have_timers(group)),
        ("KSI5: the target is valid", _is_target_valid(group)),
        ("KSI7: an initial delay has no target yet", not group.initial_deadline_ms or not _targets(group)),
        (
            "assignment epochs are of the active tasks",
            all(set(m.assignment_epochs) == _active_of(m) for m in members.values()),
        ),
        ("the derived holders are those of the members", group.held == _held(group)),
        # Row SH52 of the protocol: where this does not hold, Kafka raises the group epoch.
        ("members of a Stable group have their target", _has_target(group)),
        (
            "only groups that are not ready have topics that were not created",
            not group.creation_failures or group.state is StreamsGroupState.NOT_READY,
        ),
        ("known topics are required", group.topics.keys() <= group.required),
    ]


def _has_target(group: StreamsGroup) -> bool:
    if group.state is not ConsumerGroupState.STABLE:
        return True
    return all(m.assigned == group.target.get(i, NO_TASKS) for i, m in group.members.items())


def _have_timers(group: StreamsGroup) -> bool:
    return all(
        bool(m.pending) == (m.rebalance_deadline_ms is not None) == (m.state is UNREVOKED)
        for m in group.members.values()
    )


def _active_of(member: StreamsGroupMember) -> set[Task]:
    return {*member.assigned.active, *member.pending.active}


def _holdings(group: StreamsGroup) -> Iterator[tuple[StreamsGroupMember, Task, Role, bool]]:
    """Yield each task of each member, its role, and True if the member has to give it up."""
    for member in group.members.values():
        for tasks, is_pending in ((member.assigned, False), (member.pending, True)):
            for role in Role:
                yield from ((member, task, role, is_pending) for task in tasks.of(role))


def _is_once_per_process(group: StreamsGroup) -> bool:
    """Return True if no process has a task twice. A member may already have a task as standby while it gives
    up the active one.
    """
    held = defaultdict[tuple[str, Task], list[tuple[str, Role, bool]]](list)
    for member, task, role, is_pending in _holdings(group):
        held[member.process, task].append((member.member_id, role, is_pending))
    return all(
        len(it) == 1 or {(it[0][0], Role.ACTIVE, True), (it[0][0], Role.STANDBY, False)} == set(it)
        for it in held.values()
    )


def _targets(group: StreamsGroup) -> bool:
    return any(group.target.values())


def _is_target_valid(group: StreamsGroup) -> bool:
    """Return True if in the target no process has a task twice, and no active task has two members.

    If the target is current, its active tasks must be exactly those of the topology. After a member has left,
    its tasks are missing.
    """
    processes = Counter(
        (group.members[member_id].process, task)
        for member_id, tasks in group.target.items()
        for role in Role
        for task in tasks.of(role)
    )
    active = Counter(task for tasks in group.target.values() for task in tasks.active)
    is_once = all(number == 1 for number in (*active.values(), *processes.values()))
    configured = group.configured
    is_current = (
        group.assignment_epoch == group.group_epoch and not group.metadata_stale and bool(group.members)
    )
    if not is_current or group.initial_deadline_ms is not None:
        return is_once
    if not isinstance(configured, ConfiguredTopology) or not group.is_ready:
        return not _targets(group)
    wanted = {(id_, n) for id_, tasks in configured.tasks.items() for n in range(tasks.count)}
    return is_once and active.keys() == wanted


def _held(group: StreamsGroup) -> dict[Task, dict[str, set[Role]]]:
    held = defaultdict[Task, dict[str, set[Role]]](dict)
    for member, task, role, _ in _holdings(group):
        held[task].setdefault(member.member_id, set()).add(role)
    return held
