"""The target assignment of a streams group: when it is computed, and from what. Rows KSA2 to KSA7, KSU3.

Source: GroupMetadataManager.maybeUpdateStreamsTargetAssignment, streams.TargetAssignmentBuilder.

A row, such as KSA3, is a rule of docs/rules-streams.md. `context.cite` records that a row was applied.
"""

from msgspec.structs import replace

from assignors.kafka.sticky_tasks import StickyTaskAssignor, TaskMember
from kafka_why.contract.kafka.history import TASK_STATES_MAX, EntryType, TaskState
from kafka_why.contract.kafka.snapshot import listed
from state.kafka.context import RuleId, StepContext
from state.kafka.modern import is_target_due, set_target_epoch
from state.kafka.streams.settings import SETTINGS
from state.kafka.streams_group import (
    NO_TASKS,
    Role,
    RoleTasks,
    StreamsGroup,
    StreamsGroupMember,
    Task,
    by_subtopology,
)
from state.kafka.streams_topics import ConfiguredTopology, TopologyProblem

ASSIGNOR = StickyTaskAssignor()
_NAMED_TASKS = 3

Targets = dict[str, RoleTasks]
"""The target assignment by member id."""


def maybe_update_target(context: StepContext, group: StreamsGroup) -> str:
    """Compute the target assignment if the group has changed since the last one, and neither the initial
    delay nor the assignment interval runs. Return a text if one of them delays the assignment, else "".
    """
    if group.initial_deadline_ms is not None:
        context.cite("KSA2")
        return "The first assignment waits for more members (streams.initial.rebalance.delay.ms)."
    if is_target_due(context, SETTINGS, current="KSA4", too_early="KSA5"):
        compute_target(context, group)
    elif group.assignment_epoch < group.group_epoch:
        return f"The next assignment waits for the end of {SETTINGS.assignment_interval}."
    return ""


def end_initial_delay(context: StepContext, group: StreamsGroup) -> None:
    """Row KSA3: compute the target of the members that have joined. They get it with their next heartbeat."""
    context.cite("KSA3")
    group.initial_deadline_ms = None
    if group.members and group.assignment_epoch < group.group_epoch:
        compute_target(context, group)


def compute_target(context: StepContext, group: StreamsGroup) -> None:
    """Compute the target of the group epoch. Without a topology that is ready, no member has a task."""
    configured, last_target = group.configured, group.target
    missing_standbys: dict[Task, int] = {}
    group.target_assignor = ""
    if isinstance(configured, ConfiguredTopology) and group.is_ready:
        group.target_assignor, row = ASSIGNOR.name, context.cite("KSA7")
        standby_replicas = int(group.assignment_configs.get("num.standby.replicas", "0"))
        assignment = ASSIGNOR.assign(
            {member.member_id: _task_member(member) for member in group.members.values()},
            configured.tasks,
            standby_replicas,
        )
        missing_standbys = assignment.missing_standbys
        group.target = {
            member_id: RoleTasks(_sorted_tasks(tasks.active), _sorted_tasks(tasks.standby))
            for member_id, tasks in assignment.targets.items()
        }
    else:
        row = context.cite("KSA6")
        group.target = dict.fromkeys(group.members, NO_TASKS)
    _record_target(context, group, row, last_target, missing_standbys)


def _task_member(member: StreamsGroupMember) -> TaskMember:
    """Row KSA13: return the assignor's view of the member, with the tasks that it has now."""
    return TaskMember(
        member.process,
        by_subtopology(member.assigned.active),
        by_subtopology(member.assigned.standby),
        member.task_offsets,
    )


def _sorted_tasks(tasks: dict[str, list[int]]) -> list[Task]:
    return sorted((subtopology, number) for subtopology, numbers in tasks.items() for number in numbers)


def _record_target(
    context: StepContext,
    group: StreamsGroup,
    rule: RuleId,
    last_target: Targets,
    missing_standbys: dict[Task, int],
) -> None:
    """Record that the target of the group epoch is computed. `missing_standbys` has, by task, the number of
    standby tasks for which there is no process.
    """
    last_owners, owners = _active_owners(last_target), _active_owners(group.target)
    new_owners = {task: owner for task, owner in owners.items() if last_owners.get(task) != owner}
    new_task_count = len(owners.keys() - last_owners.keys())
    moved_count = len(new_owners) - new_task_count
    reason = set_target_epoch(
        context, group, group.target_assignor, moved_count, new_task_count, "active task"
    )
    if not group.target_assignor:
        reason = f"no member has a task in epoch {group.assignment_epoch}, because the topology is not ready"
        if isinstance(group.configured, TopologyProblem):
            reason += f": {group.configured.detail}"
    if missing_standbys:
        texts = [f"{number} of {task[0]}_{task[1]}" for task, number in missing_standbys.items()]
        reason += f"; too few processes for standbys: {listed(texts, 'task', _NAMED_TASKS)}"
    context.record(
        rule,
        EntryType.TARGET_ASSIGNMENT_COMPUTED,
        reason,
        assignor_name=group.target_assignor or None,
        moved_partitions=moved_count,
        targets={
            id_: tasks.shown() for id_, tasks in sorted(group.target.items()) if tasks != last_target.get(id_)
        },
        task_states=_task_states(context, group, new_owners),
        partitions=RoleTasks(standby=sorted(missing_standbys)).shown() or None,
    )


def _task_states(
    context: StepContext, group: StreamsGroup, new_owners: dict[Task, str]
) -> dict[str, TaskState] | None:
    """Row KSU3: return, for each stateful task in `new_owners`, the role and the reported offsets that the
    process of its new owner has for the task. `new_owners` are member ids by active task. Return None if no
    task has a new owner, or if the topology is not ready.
    """
    configured = group.configured
    if not new_owners or not isinstance(configured, ConfiguredTopology):
        return None
    stateful = sorted(task for task in new_owners if configured.tasks[task[0]].is_stateful)
    if not stateful:
        return {}
    context.cite("KSU3")
    roles, reports = _roles(group), _reports(group, context.now_ms)
    keys = [(group.members[new_owners[task]].process, task) for task in stateful[:TASK_STATES_MAX]]
    return {
        f"{task[0]}_{task[1]}": replace(
            reports.get((process, task), TaskState()), role=roles.get((process, task))
        )
        for process, task in keys
    }


def _roles(group: StreamsGroup) -> dict[tuple[str, Task], str]:
    """Return the role of each task in each process. Of several roles, the first in `Role` counts."""
    return {
        (member.process, task): role.value
        for role in reversed(Role)  # the last entry of a key counts
        for member in group.members.values()
        for task in (*member.assigned.of(role), *member.pending.of(role))
    }


def _reports(group: StreamsGroup, now_ms: int) -> dict[tuple[str, Task], TaskState]:
    """Return each process's report of each task. If several members of a process report a task, the report
    with the greatest offset counts.
    """
    reports: dict[tuple[str, Task], TaskState] = {}
    for member in group.members.values():
        for task, offset in member.task_offsets.items():
            earlier = reports.get((member.process, task))
            if earlier is None or earlier.offset is None or offset > earlier.offset:
                reports[member.process, task] = TaskState(
                    offset=offset,
                    end_offset=member.task_end_offsets.get(task),
                    reported_before_ms=now_ms - member.offsets_reported_ms,
                )
    return reports


def _active_owners(targets: Targets) -> dict[Task, str]:
    """Return the id of the member to which each active task is assigned."""
    return {task: member_id for member_id, tasks in targets.items() for task in tasks.of(Role.ACTIVE)}
