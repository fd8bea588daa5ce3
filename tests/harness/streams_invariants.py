"""The invariants of a streams group between two steps: rows KSI1 to KSI7."""

from collections import Counter

from kafka_why.contract.kafka.history import MemberState
from state.kafka.streams_group import (
    NO_TASKS,
    Role,
    StreamsGroup,
    StreamsGroupMember,
    StreamsGroupState,
    Task,
)
from state.kafka.streams_topics import ConfiguredTopology


def invariants_of(group: StreamsGroup) -> list[tuple[str, bool]]:
    """Return what has to hold, and whether it does."""
    members = group.members
    epoch = group.assignment_epoch
    owners = Counter(task for member in members.values() for task in _active_of(member))
    return [
        ("KSI1: an active task has at most one member", all(number == 1 for number in owners.values())),
        ("KSI2: a process has a task once", _is_once_per_process(group)),
        ("KSI3: the target is not ahead of the group", 1 <= epoch <= group.group_epoch),
        ("KSI3: no member is ahead of the target", all(m.member_epoch <= epoch for m in members.values())),
        (
            "KSI4: a member that revokes has something to revoke",
            all(bool(m.pending) == (m.state is MemberState.UNREVOKED_PARTITIONS) for m in members.values()),
        ),
        ("KSI5: the target is right", _is_target_right(group)),
        (
            "KSI7: every member has a session",
            all(m.session_deadline_ms is not None for m in members.values()),
        ),
        (
            "KSI7: a rebalance timer is armed while a member revokes",
            all(
                (m.rebalance_deadline_ms is not None) == (m.state is MemberState.UNREVOKED_PARTITIONS)
                for m in members.values()
            ),
        ),
        (
            "KSI7: an initial delay has no target yet",
            group.initial_deadline_ms is None or not _targets(group),
        ),
        ("only members have a target", group.target.keys() <= members.keys()),
        (
            "assignment epochs are of the active tasks",
            all(set(m.assignment_epochs) == _active_of(m) for m in members.values()),
        ),
        ("members are kept by their ids", all(m.member_id == i for i, m in members.items())),
        (
            "static members are the members with an instance id",
            group.static_members
            == {m.instance_id: i for i, m in members.items() if m.instance_id is not None},
        ),
        ("the derived holders are those of the members", group.held == _held(group)),
        # Row SH52 of the protocol: where this does not hold, Kafka raises the group epoch.
        ("members of a Stable group have their target", _has_target(group)),
        ("an Empty group has no target ahead", bool(members) or not group.is_rebalancing),
        ("known topics are required", group.topics.keys() <= group.required),
    ]


def _has_target(group: StreamsGroup) -> bool:
    if group.state is not StreamsGroupState.STABLE:
        return True
    return all(m.assigned == group.target.get(i, NO_TASKS) for i, m in group.members.items())


def _active_of(member: StreamsGroupMember) -> set[Task]:
    return {*member.assigned.active, *member.pending.active}


def _is_once_per_process(group: StreamsGroup) -> bool:
    held: dict[tuple[str, Task], list[tuple[str, Role, bool]]] = {}
    for member in group.members.values():
        for tasks, is_pending in ((member.assigned, False), (member.pending, True)):
            for role in Role:
                for task in tasks.of(role):
                    key = (member.process, task)
                    held.setdefault(key, []).append((member.member_id, role, is_pending))
    return all(len(of) == 1 or _is_demotion(of) for of in held.values())


def _is_demotion(of: list[tuple[str, Role, bool]]) -> bool:
    """Return True if one member gives up the active task, which it has as a standby already."""
    roles = {(role, is_pending) for _, role, is_pending in of}
    return len({member_id for member_id, *_ in of}) == 1 and roles == {
        (Role.ACTIVE, True),
        (Role.STANDBY, False),
    }


def _targets(group: StreamsGroup) -> bool:
    return any(group.target.values())


def _is_target_right(group: StreamsGroup) -> bool:
    """Return True if a task is at most once in a process of the target, and an active one once, among those
    of the topology if nothing has changed since. A member that left took its tasks with it.
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
    held: dict[Task, dict[str, set[Role]]] = {}
    for member in group.members.values():
        for tasks in (member.assigned, member.pending):
            for role in Role:
                for task in tasks.of(role):
                    held.setdefault(task, {}).setdefault(member.member_id, set()).add(role)
    return held
