"""The target assignment of a streams group: when it is computed, and from what. Rows KSA2 to KSA7.

Source: GroupMetadataManager.maybeUpdateStreamsTargetAssignment, streams.TargetAssignmentBuilder.
"""

from assignors.kafka.sticky_tasks import StickyTaskAssignor, TaskMember
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.snapshot import counted, listed
from state.kafka.context import RuleId, StepContext
from state.kafka.modern import due_in_ms
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
        context.rule("KSA2")
        return "The first assignment waits for more members (streams.initial.rebalance.delay.ms)."
    if group.assignment_epoch >= group.group_epoch:
        context.rule("KSA4")
        return ""
    if due_in_ms(context, SETTINGS.of(context).assignment_interval_ms):
        context.rule("KSA5")
        return f"The next assignment waits for the end of {SETTINGS.assignment_interval}."
    compute_target(context, group)
    return ""


def initial_delay_over(context: StepContext, group: StreamsGroup) -> None:
    """Row KSA3: compute the target of the members that have joined. They get it with their next heartbeat."""
    context.rule("KSA3")
    group.initial_deadline_ms = None
    if group.members and group.assignment_epoch < group.group_epoch:
        compute_target(context, group)


def compute_target(context: StepContext, group: StreamsGroup) -> None:
    """Compute the target of the group epoch. Without a topology that is ready, no member has a task."""
    configured, last = group.configured, group.target
    missing: dict[Task, int] = {}
    group.target_assignor = ""
    if isinstance(configured, ConfiguredTopology) and group.is_ready:
        group.target_assignor, row = ASSIGNOR.name, context.rule("KSA7")
        standbys = int(group.assignment_configs.get("num.standby.replicas", "0"))
        assigned = ASSIGNOR.assign(
            {member.member_id: _seen(member) for member in group.members.values()}, configured.tasks, standbys
        )
        missing = assigned.missing_standbys
        group.target = {
            member_id: RoleTasks(_flat(tasks.active), _flat(tasks.standby))
            for member_id, tasks in assigned.targets.items()
        }
    else:
        row = context.rule("KSA6")
        group.target = dict.fromkeys(group.members, NO_TASKS)
    _note(context, group, row, last, missing)


def _seen(member: StreamsGroupMember) -> TaskMember:
    """Row KSA13: return the member as the assignor sees it, with the tasks that it has now."""
    return TaskMember(
        member.process,
        by_subtopology(member.assigned.active),
        by_subtopology(member.assigned.standby),
        member.task_offsets,
    )


def _flat(tasks: dict[str, list[int]]) -> list[Task]:
    return sorted((subtopology, number) for subtopology, numbers in tasks.items() for number in numbers)


def _note(
    context: StepContext, group: StreamsGroup, rule: RuleId, last: Targets, missing: dict[Task, int]
) -> None:
    """Record that the target of the group epoch is computed. `missing` is the number of standby tasks that no
    process can run, by task.
    """
    last_epoch, epoch = group.assignment_epoch, group.group_epoch
    group.assignment_epoch, group.assignment_timestamp_ms = epoch, context.now_ms
    before, after = _owners(last), _owners(group.target)
    moved = sum(task in before and before[task] != owner for task, owner in after.items())
    moves = "moves" if moved == 1 else "move"
    new = len(after.keys() - before.keys())
    reason = f"{group.target_assignor} computed the target of epoch {epoch} from that of {last_epoch}: "
    reason += f"{counted(moved, 'active task')} {moves} to another member, and {new} had no member"
    if not group.target_assignor:
        reason = f"no member has a task in epoch {epoch}, because the topology is not ready"
        if isinstance(group.configured, TopologyProblem):
            reason += f": {group.configured.detail}"
    if missing:
        texts = [f"{number} of {task[0]}_{task[1]}" for task, number in missing.items()]
        reason += f"; too few processes for standbys: {listed(texts, 'task', _NAMED_TASKS)}"
    context.record(
        rule,
        EntryType.TARGET_ASSIGNMENT_COMPUTED,
        reason,
        assignor_name=group.target_assignor or None,
        moved_partitions=moved,
        targets={id_: has.shown() for id_, has in sorted(group.target.items()) if has != last.get(id_)},
        partitions=RoleTasks(standby=sorted(missing)).shown() or None,
    )


def _owners(targets: Targets) -> dict[Task, str]:
    return {task: member_id for member_id, tasks in targets.items() for task in tasks.of(Role.ACTIVE)}
