"""Reconciliation: a member moves from its current to its target tasks. Rows KSR0 to KSR23.

A member first gives tasks up, and moves to the target's epoch when it has shown that it did. It waits for
tasks that others still hold: an active task for its holder in any process, every role for the other members
of its own process, whose state directory it shares. Each of its heartbeats is one step. Source:
CurrentAssignmentBuilder.java, GroupMetadataManager.maybeReconcile.
"""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from kafka_why.contract.kafka.history import EntryType, MemberState
from kafka_why.contract.kafka.snapshot import listed
from state.kafka.context import RuleId, StepContext
from state.kafka.streams_group import (
    NO_TASKS,
    Role,
    RoleTasks,
    StreamsGroup,
    StreamsGroupMember,
    Task,
)

# The maximum number of members that a sentence of the history names.
_NAMED_MEMBERS = 3


class TaskSets(NamedTuple):
    """Tasks by role, for the calculation of a step."""

    active: set[Task]
    standby: set[Task]
    warm_up: set[Task]

    @classmethod
    def copy_of(cls, tasks: RoleTasks) -> "TaskSets":
        return cls(set(tasks.active), set(tasks.standby), set(tasks.warm_up))

    def tasks(self) -> RoleTasks:
        return RoleTasks(sorted(self.active), sorted(self.standby), sorted(self.warm_up))

    def minus(self, other: "TaskSets") -> "TaskSets":
        return TaskSets(*(mine - others for mine, others in zip(self, other, strict=True)))

    def meets(self, other: "TaskSets") -> bool:
        """Return True if both have a task in the same role."""
        return any(not mine.isdisjoint(others) for mine, others in zip(self, other, strict=True))

    @property
    def is_empty(self) -> bool:
        return not any(self)


class _Next(Struct, frozen=True):
    """A member's next state. `waits_for` are tasks of its target that others hold."""

    rule: RuleId
    epoch: int
    state: MemberState
    assigned: RoleTasks
    pending: RoleTasks = NO_TASKS
    waits_for: RoleTasks = NO_TASKS


def reconcile(
    context: StepContext, group: StreamsGroup, member: StreamsGroupMember, owned: RoleTasks | None
) -> None:
    """Move the member one step towards the group's target assignment. `owned` are the tasks that the request
    reports. If it is None, the client counts as having all that was assigned to it.
    """
    epoch = member.member_epoch
    has = None if owned is None else TaskSets.copy_of(owned)
    match member.state:
        case MemberState.STABLE:
            if epoch == group.assignment_epoch:
                context.rule("KSR0")
                return
            context.rule("KSR1")
        case MemberState.UNREVOKED_PARTITIONS:
            if has is None or has.meets(TaskSets.copy_of(member.pending)):
                context.rule("KSR2")
                return
            context.rule("KSR3")
            epoch += 1
        case MemberState.UNRELEASED_PARTITIONS:
            context.rule("KSR4")
    _store(context, group, member, _next(context, group, member, has, epoch))


def _next(
    context: StepContext, group: StreamsGroup, member: StreamsGroupMember, owned: TaskSets | None, epoch: int
) -> _Next:
    """Return the member's next state, from this epoch on."""
    had = TaskSets.copy_of(member.assigned)
    target = TaskSets.copy_of(group.target.get(member.member_id, NO_TASKS))
    revoke, want = had.minus(target), target.minus(had)
    keep = had.minus(revoke)
    waits = TaskSets(
        *(
            {task for task in wanted if blockers(group, member, role, task)}
            for role, wanted in zip(Role, want, strict=True)
        )
    )
    # An active task that the member runs is no warm-up before the client has closed it (row KSR14).
    waits.warm_up.update(want.warm_up & had.active)
    want = want.minus(waits)
    _change_roles(context, keep, revoke, want)
    promoted = _promoted(context, keep, revoke, target)
    state = MemberState.STABLE if waits.is_empty else MemberState.UNRELEASED_PARTITIONS
    if not revoke.is_empty and (owned is None or owned.meets(revoke)):
        row, unrevoked = context.rule("KSR15"), MemberState.UNREVOKED_PARTITIONS
        return _Next(row, epoch, unrevoked, keep.tasks(), revoke.tasks(), waits.tasks())
    row = context.rule("KSR18" if waits.is_empty else "KSR17")
    if not want.is_empty:
        row = context.rule("KSR16")
        keep = keep.minus(TaskSets(set(), promoted & want.active, promoted & want.active))
        keep = TaskSets(*(mine | new for mine, new in zip(keep, want, strict=True)))
    return _Next(row, group.assignment_epoch, state, keep.tasks(), waits_for=waits.tasks())


def _change_roles(context: StepContext, keep: TaskSets, revoke: TaskSets, want: TaskSets) -> None:
    """Rows KSR11 and KSR12: give tasks new roles that need no revocation first. An active task becomes a
    standby at once, while the active role is revoked. A standby and a warm-up are the same for the client.
    """
    if demoted := revoke.active & want.standby:
        context.rule("KSR11")
        keep.standby.update(demoted)
        want.standby.difference_update(demoted)
    for old, new, kept in (
        (revoke.standby, want.warm_up, keep.warm_up),
        (revoke.warm_up, want.standby, keep.standby),
    ):
        if relabelled := old & new:
            context.rule("KSR12")
            kept.update(relabelled)
            old.difference_update(relabelled)
            new.difference_update(relabelled)


def _promoted(context: StepContext, keep: TaskSets, revoke: TaskSets, target: TaskSets) -> set[Task]:
    """Row KSR13: keep copies of tasks that the member shall run itself, so that their state stays open until
    it does. Return these tasks.
    """
    promoted: set[Task] = set()
    for old, kept in ((revoke.standby, keep.standby), (revoke.warm_up, keep.warm_up)):
        if found := old & target.active:
            context.rule("KSR13")
            promoted |= found
            old.difference_update(found)
            kept.update(found)
    return promoted


def blockers(
    group: StreamsGroup, member: StreamsGroupMember, role: Role, task: Task
) -> list[tuple[StreamsGroupMember, Role]]:
    """Rows KSR6 to KSR9: return the other members, and their roles, for which the member has to wait. What
    the member itself has to give up does not block it (unlike Kafka, row KSB12).
    """
    found = []
    for member_id, roles in sorted(group.held.get(task, {}).items()):
        holder = group.members[member_id]
        if holder is member:
            continue
        found += [
            (holder, held)
            for held in sorted(roles)
            if holder.process == member.process or role is held is Role.ACTIVE
        ]
    return found


def _store(context: StepContext, group: StreamsGroup, member: StreamsGroupMember, new: _Next) -> None:
    """Store the member's new state, arm or disarm its rebalance timer (KSM2), and add a history entry.

    If only `previous_epoch` changes, nothing is recorded.
    """
    member.previous_epoch = member.member_epoch
    if (new.epoch, new.state, new.assigned, new.pending) == (
        member.member_epoch,
        member.state,
        member.assigned,
        member.pending,
    ):
        return
    had, revoked, since_ms = member.assigned, member.pending, member.revoking_since_ms
    added = {*new.assigned.active} - {*had.active}
    epochs = member.assignment_epochs | dict.fromkeys(added, group.assignment_epoch)
    group.assign(member, new.assigned, new.pending, epochs)
    member.member_epoch, member.state = new.epoch, new.state
    member.revoking_since_ms = member.rebalance_deadline_ms = None
    if new.state is MemberState.UNREVOKED_PARTITIONS:
        context.rule("KSM2")
        member.revoking_since_ms = context.now_ms
        member.rebalance_deadline_ms = context.deadline(member.rebalance_timeout_ms)
    context.record_member(
        new.rule,
        EntryType.MEMBER_RECONCILED,
        member,
        _reason(group, member, new, had, revoked),
        member_epoch=member.member_epoch,
        member_state=member.state.value,
        assigned=member.assigned.shown(),
        revoking=member.pending.shown() or None,
        awaiting=new.waits_for.shown() or None,
        deadline_ms=member.rebalance_deadline_ms,
        took_ms=context.now_ms - since_ms if revoked and since_ms is not None else None,
    )


def _reason(
    group: StreamsGroup, member: StreamsGroupMember, new: _Next, had: RoleTasks, revoked: RoleTasks
) -> str:
    """Return a sentence about the change of the member. `revoked` are the tasks that its client has given
    up.
    """
    does = [f"has revoked {revoked}"] if revoked else []
    before, after = TaskSets.copy_of(had), TaskSets.copy_of(new.assigned)
    gains = after.minus(before)
    if new.pending:
        does.append(f"has to revoke {new.pending} before it moves to epoch {group.assignment_epoch}")
        if not gains.is_empty:
            does.append(f"keeps the state of {gains.tasks()}")
    else:
        lost = before.minus(after)
        for kept, active in ((lost.standby, gains.active), (lost.warm_up, gains.active)):
            kept.difference_update(active)
        if not lost.is_empty:
            does.append(f"loses {lost.tasks()}, which its client does not have")
        got = f"gets {gains.tasks()} at epoch {new.epoch}"
        does.append(f"is at epoch {new.epoch} and gets no new task" if gains.is_empty else got)
    if new.waits_for:
        does.append(f"waits for {_held_by_others(group, member, new.waits_for)}")
    return "the member " + "; it ".join(does)


def _held_by_others(group: StreamsGroup, member: StreamsGroupMember, waits_for: RoleTasks) -> str:
    """Return the tasks by the member that still holds them."""
    by_holder: dict[str, set[Task]] = {}
    for role in Role:
        for task in waits_for.of(role):
            for holder, held in blockers(group, member, role, task):
                by_holder.setdefault(f"{holder.member_id} ({held})", set()).add(task)
    texts = [f"{_names(tasks)} of member {holder}" for holder, tasks in sorted(by_holder.items())]
    return listed(texts, "member", _NAMED_MEMBERS) if texts else str(waits_for)


def _names(tasks: Iterable[Task]) -> str:
    return listed([f"{subtopology}_{number}" for subtopology, number in sorted(tasks)], "task")
