"""Reconciliation: a member moves from its current to its target tasks. Rows KSR0 to KSR23.

A member first gives tasks up. It moves to the target's epoch when its client no longer reports these tasks.
Then it waits for tasks that other members still hold. It waits for an active task while a member of any
process has the task as active. It waits for a task of any role while another member of its own process has
the task, because the members of a process share a state directory. Each heartbeat of the member is one step.
Source: CurrentAssignmentBuilder.java, GroupMetadataManager.maybeReconcile.

A row, such as KSR0, is a rule of docs/rules-streams.md. `context.cite` records that a row was applied.
"""

from collections.abc import Iterable
from typing import NamedTuple

from kafka_why.contract.kafka.history import MemberState
from kafka_why.contract.kafka.snapshot import listed
from state.kafka.context import StepContext
from state.kafka.modern_members import NAMED_MEMBERS, NextState, store_next_state
from state.kafka.streams_group import (
    NO_TASKS,
    Role,
    RoleTasks,
    StreamsGroup,
    StreamsGroupMember,
    Task,
)


class TaskSets(NamedTuple):
    """Tasks by role, as sets. Each step of a member is computed with such sets."""

    active: set[Task]
    standby: set[Task]
    warm_up: set[Task]

    @classmethod
    def copy_of(cls, tasks: RoleTasks) -> "TaskSets":
        return cls(set(tasks.active), set(tasks.standby), set(tasks.warm_up))

    def to_role_tasks(self) -> RoleTasks:
        return RoleTasks(sorted(self.active), sorted(self.standby), sorted(self.warm_up))

    def minus(self, other: "TaskSets") -> "TaskSets":
        return TaskSets(*(tasks - removed for tasks, removed in zip(self, other, strict=True)))

    def overlaps(self, other: "TaskSets") -> bool:
        """Return True if both have a task in the same role."""
        return any(not tasks.isdisjoint(others) for tasks, others in zip(self, other, strict=True))

    @property
    def is_empty(self) -> bool:
        return not any(self)


_TaskState = NextState[RoleTasks, RoleTasks]


def reconcile(
    context: StepContext, group: StreamsGroup, member: StreamsGroupMember, owned: RoleTasks | None
) -> None:
    """Move the member one step towards the group's target assignment. `owned` are the tasks that the request
    reports. If it is None, the client counts as having all that was assigned to it.
    """
    epoch = member.member_epoch
    client_tasks = None if owned is None else TaskSets.copy_of(owned)
    match member.state:
        case MemberState.STABLE:
            if epoch == group.assignment_epoch:
                context.cite("KSR0")
                return
            context.cite("KSR1")
        case MemberState.UNREVOKED_PARTITIONS:
            if client_tasks is None or client_tasks.overlaps(TaskSets.copy_of(member.pending)):
                context.cite("KSR2")
                return
            context.cite("KSR3")
            # As in Kafka, the member moves one epoch on, even if it has to give up other tasks next.
            epoch += 1
        case MemberState.UNRELEASED_PARTITIONS:
            context.cite("KSR4")
    _store(context, group, member, _next_state(context, group, member, client_tasks, epoch))


def _next_state(
    context: StepContext, group: StreamsGroup, member: StreamsGroupMember, owned: TaskSets | None, epoch: int
) -> _TaskState:
    """Return the member's next state. The member stays at `epoch` while it has tasks to give up, else it
    moves to the target's epoch. `owned` are the tasks that the client reports, None if it reports none.
    """
    current = TaskSets.copy_of(member.assigned)
    target = TaskSets.copy_of(group.target.get(member.member_id, NO_TASKS))
    revoke, want = current.minus(target), target.minus(current)
    keep = current.minus(revoke)
    waits_for = TaskSets(
        *(
            {task for task in wanted if blockers(group, member, role, task)}
            for role, wanted in zip(Role, want, strict=True)
        )
    )
    # A task that the member runs as active becomes a warm-up only after the client has closed it (row KSR14).
    waits_for.warm_up.update(want.warm_up & current.active)
    want = want.minus(waits_for)
    _change_roles(context, keep, revoke, want)
    promoted = _keep_promoted(context, keep, revoke, target)
    state = MemberState.STABLE if waits_for.is_empty else MemberState.UNRELEASED_PARTITIONS
    if not revoke.is_empty and (owned is None or owned.overlaps(revoke)):
        row, unrevoked = context.cite("KSR15"), MemberState.UNREVOKED_PARTITIONS
        return NextState(
            row, epoch, unrevoked, keep.to_role_tasks(), revoke.to_role_tasks(), waits_for.to_role_tasks()
        )
    row = context.cite("KSR18" if waits_for.is_empty else "KSR17")
    if not want.is_empty:
        row = context.cite("KSR16")
        # A promoted task is a standby or warm-up task until its active role is free.
        newly_active = promoted & want.active
        keep = keep.minus(TaskSets(active=set(), standby=newly_active, warm_up=newly_active))
        keep = TaskSets(*(kept | gained for kept, gained in zip(keep, want, strict=True)))
    return NextState(
        row, group.assignment_epoch, state, keep.to_role_tasks(), NO_TASKS, waits_for.to_role_tasks()
    )


def _change_roles(context: StepContext, keep: TaskSets, revoke: TaskSets, want: TaskSets) -> None:
    """Rows KSR11 and KSR12: move tasks, in place, to roles that need no revocation first. An active task
    becomes a standby at once, while its active role is revoked. A standby task and a warm-up task are the
    same for the client, so each can become the other at once.
    """
    if demoted := revoke.active & want.standby:
        context.cite("KSR11")
        keep.standby.update(demoted)
        want.standby.difference_update(demoted)
    for in_old_role, in_new_role, kept in (
        (revoke.standby, want.warm_up, keep.warm_up),
        (revoke.warm_up, want.standby, keep.standby),
    ):
        if relabelled := in_old_role & in_new_role:
            context.cite("KSR12")
            kept.update(relabelled)
            in_old_role.difference_update(relabelled)
            in_new_role.difference_update(relabelled)


def _keep_promoted(context: StepContext, keep: TaskSets, revoke: TaskSets, target: TaskSets) -> set[Task]:
    """Row KSR13: keep the standby and warm-up tasks that the target makes active, so that their state stays
    open until they are active. Return these tasks.
    """
    promoted: set[Task] = set()
    for to_revoke, kept in ((revoke.standby, keep.standby), (revoke.warm_up, keep.warm_up)):
        if to_activate := to_revoke & target.active:
            context.cite("KSR13")
            promoted |= to_activate
            to_revoke.difference_update(to_activate)
            kept.update(to_activate)
    return promoted


def blockers(
    group: StreamsGroup, member: StreamsGroupMember, role: Role, task: Task
) -> list[tuple[StreamsGroupMember, Role]]:
    """Rows KSR6 to KSR9: return the other members, with their roles, that have to give up the task before the
    member may have it in `role`. A task that the member itself has to give up does not block it (unlike
    Kafka, row KSB12).
    """
    blocking = []
    for member_id, roles in sorted(group.held.get(task, {}).items()):
        holder = group.members[member_id]
        if holder is member:
            continue
        blocking += [
            (holder, held_role)
            for held_role in sorted(roles)
            if holder.process == member.process or (role is Role.ACTIVE and held_role is Role.ACTIVE)
        ]
    return blocking


def _store(context: StepContext, group: StreamsGroup, member: StreamsGroupMember, new: _TaskState) -> None:
    """Store the member's next state, with a history entry. Newly active tasks get the target's epoch."""
    assigned_before, revoked = member.assigned, member.pending
    newly_active = {*new.assigned.active} - {*assigned_before.active}
    store_next_state(
        context,
        group,
        member,
        new,
        (assigned_before, revoked),
        member.assignment_epochs | dict.fromkeys(newly_active, group.assignment_epoch),
        timer="KSM2",
        revoked=revoked,
        show=RoleTasks.shown,
        reason=lambda: _reason(group, member, new, assigned_before, revoked),
    )


def _reason(
    group: StreamsGroup,
    member: StreamsGroupMember,
    new: _TaskState,
    assigned_before: RoleTasks,
    revoked: RoleTasks,
) -> str:
    """Return a sentence about the member's change. `revoked` are the tasks that its client has given up."""
    clauses = [f"has revoked {revoked}"] if revoked else []
    before, after = TaskSets.copy_of(assigned_before), TaskSets.copy_of(new.assigned)
    gains = after.minus(before)
    if new.pending:
        clauses.append(f"has to revoke {new.pending} before it moves to epoch {group.assignment_epoch}")
        if not gains.is_empty:
            clauses.append(f"keeps the state of {gains.to_role_tasks()}")
    else:
        lost = before.minus(after)
        # A standby or warm-up task that becomes active is not lost.
        lost.standby.difference_update(gains.active)
        lost.warm_up.difference_update(gains.active)
        if not lost.is_empty:
            clauses.append(f"loses {lost.to_role_tasks()}, which its client does not have")
        if gains.is_empty:
            clauses.append(f"is at epoch {new.epoch} and gets no new task")
        else:
            clauses.append(f"gets {gains.to_role_tasks()} at epoch {new.epoch}")
    if new.waits_for:
        clauses.append(f"waits for {_held_by_others(group, member, new.waits_for)}")
    return "the member " + "; it ".join(clauses)


def _held_by_others(group: StreamsGroup, member: StreamsGroupMember, waits_for: RoleTasks) -> str:
    """Return a text that names the tasks and the members that still hold them."""
    by_holder: dict[str, set[Task]] = {}
    for role in Role:
        for task in waits_for.of(role):
            for holder, held_role in blockers(group, member, role, task):
                by_holder.setdefault(f"{holder.member_id} ({held_role})", set()).add(task)
    texts = [f"{_listed_tasks(tasks)} of member {holder}" for holder, tasks in sorted(by_holder.items())]
    return listed(texts, "member", NAMED_MEMBERS) if texts else str(waits_for)


def _listed_tasks(tasks: Iterable[Task]) -> str:
    return listed([f"{subtopology}_{number}" for subtopology, number in sorted(tasks)], "task")
