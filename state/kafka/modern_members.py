"""The rules about members that consumer and streams groups have in common: the form of a heartbeat, its
sender, leaving, and the steps by which a member moves to its target assignment.

A row is a rule of docs/rules-consumer.md or docs/rules-streams.md. A function here takes the rows that it
applies as arguments, because each protocol has rows of its own. `context.cite` records that a row was
applied.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from kafka_why.contract.kafka.history import LEAVE_GROUP_STATIC_MEMBER_EPOCH, EntryType, MemberState
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat, ReplyTo
from kafka_why.contract.kafka.snapshot import NamedPartitions
from kafka_why.contract.kafka.streams_responses import StreamsGroupHeartbeat
from kafka_why.contract.messages import ErrorCode
from state.kafka.context import RuleId, StepContext
from state.kafka.modern import RequestRefused, malformed
from state.kafka.modern_group import EM, EpochGroup

EpochHeartbeat = ConsumerGroupHeartbeat | StreamsGroupHeartbeat

# Refusals of a heartbeat before its group is read.


def check_leave_epoch(
    context: StepContext, request: EpochHeartbeat, *, no_instance: str, too_low: str
) -> None:
    """Raise RequestRefused if the member epoch is -2 without an instance id (row `no_instance`), or is lower
    than -2 (row `too_low`). With -2 a static member leaves temporarily.
    """
    epoch = request.member_epoch
    if epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH and request.instance_id is None:
        message = "InstanceId can't be null in a request with the member epoch -2."
        raise malformed(context, no_instance, message)
    if epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        message = f"The member epoch {epoch} is invalid: it must be -2 at the least."
        raise malformed(context, too_low, message)


# The sender of a heartbeat.


class SenderIdentity(Struct, Generic[EM], frozen=True):
    """The member that a request comes from.

    `member` is None if the group has no member with the sender's id. `replaced` is the static member whose
    instance id the sender takes over. `rule` is the row that identified the sender.
    """

    rule: RuleId
    member_id: str
    member: EM | None = None
    replaced: EM | None = None

    @property
    def existing_member(self) -> EM | None:
        """The member that the request updates or replaces, or None if the sender is new."""
        return self.member or self.replaced

    @property
    def id_before(self) -> str:
        """The member id that the sender has in the group before this request: that of the member which it
        updates or replaces, or its own if it is new.
        """
        existing = self.existing_member
        return self.member_id if existing is None else existing.member_id


class MemberRows(NamedTuple):
    """The rows that refuse a sender that should be a member."""

    unknown_instance: str  # its instance id belongs to no member
    fenced_instance: str  # its instance id belongs to another member
    unknown_member: str


class JoinRows(NamedTuple):
    """The rows that identify or refuse a sender that joins."""

    new: str  # without an instance id: the sender is not a member yet
    known: str  # without an instance id: the sender is a member already
    new_instance: str  # the instance id belongs to no member
    own_instance: str  # the instance id belongs to the sender's member
    instance_in_use: str  # the instance id belongs to another member, which the sender may not replace


class MemberEpochRows(NamedTuple):
    """The rows that accept or refuse the epoch in a member's heartbeat."""

    current: str  # the member's current epoch
    higher: str  # an epoch above the current one
    previous: str  # the member's previous epoch
    lower: str  # another epoch below the current one


class SenderRows(NamedTuple):
    """The rows by which `identify_sender` identifies or refuses the sender of a heartbeat."""

    join: JoinRows
    member: MemberRows
    epoch: MemberEpochRows


def not_a_member(context: StepContext, row: str, member_id: str) -> RequestRefused:
    """Return the refusal of a sender that is not a member."""
    message = f"Member {member_id} is not a member of group {context.group_id}."
    return RequestRefused(context.cite(row), ErrorCode.UNKNOWN_MEMBER_ID, message)


def find_sender(
    context: StepContext, request: EpochHeartbeat, group: EpochGroup[EM, Any], rows: MemberRows
) -> EM:
    """Return the member that sent the request. Raise RequestRefused, by one of `rows`, if the sender is not a
    member, or if its instance id belongs to no member or to another one.
    """
    member_id, instance_id = request.member_id, request.instance_id
    if instance_id is not None:
        owner_id = group.static_members.get(instance_id)
        if owner_id is None:
            message = f"No member of group {context.group_id} has the instance id {instance_id}."
            raise RequestRefused(context.cite(rows.unknown_instance), ErrorCode.UNKNOWN_MEMBER_ID, message)
        if owner_id != member_id:
            message = f"Instance id {instance_id} belongs to member {owner_id}, not to {member_id!r}."
            error = ErrorCode.FENCED_INSTANCE_ID
            raise RequestRefused(context.cite(rows.fenced_instance), error, message, EntryType.MEMBER_FENCED)
    if member_id not in group.members:
        raise not_a_member(context, rows.unknown_member, member_id)
    return group.members[member_id]


def _accept_previous_epoch(
    context: StepContext,
    group: EpochGroup[EM, Any],
    member: EM,
    received: int,
    owned: Any,
    rows: MemberEpochRows,
) -> RuleId:
    """Return the row that accepts `received`, which is not the member's current epoch. Raise RequestRefused
    unless it is the previous epoch.

    A client still sends the previous epoch if the answer with the current one was lost. It must report in
    `owned` what it has, and that must not include anything that the member does not have.
    """
    if received < member.member_epoch:
        if received == member.previous_epoch and owned is not None and member.has_all(owned):
            return context.cite(rows.previous)
        row, why = context.cite(rows.lower), f"it has to give up its {group.noun} and join again"
    elif member.is_away:
        row, why = context.cite(rows.higher), "it has left for a while"
    else:
        row, why = context.cite(rows.higher), "the coordinator never gave it that epoch"
    message = (
        f"Member {member.member_id} is fenced: the request has member epoch {received}, "
        f"and the member is at {member.member_epoch}; {why}."
    )
    raise RequestRefused(row, ErrorCode.FENCED_MEMBER_EPOCH, message, EntryType.MEMBER_FENCED)


def group_full(
    context: StepContext, row: str, setting: str, max_size: int, event: EntryType | None
) -> RequestRefused:
    """Return the refusal of a new member because the group is full. `event` is the type of its history entry,
    or None if it has none.
    """
    message = f"Group {context.group_id} is full: {setting} is {max_size}."
    return RequestRefused(context.cite(row), ErrorCode.GROUP_MAX_SIZE_REACHED, message, event)


def identify_sender(
    context: StepContext,
    request: EpochHeartbeat,
    group: EpochGroup[EM, Any],
    owned: Any,
    rows: SenderRows,
    row_of_replacement: Callable[[EM], str | None],
) -> tuple[RuleId, EM | None, EM | None]:
    """Return the row that identifies the sender, the sender's member or None, and the static member that the
    sender replaces or None. Raise RequestRefused if the sender's ids or its epoch are refused.

    `owned` is what the client reports as its own, or None if it reports nothing. If a sender joins with the
    instance id of a member, `row_of_replacement` gets this member and returns the row by which the sender
    replaces it, or None if the sender may not.
    """
    # Only a heartbeat with the epoch 0 joins.
    if request.member_epoch != 0:
        received, sender = request.member_epoch, find_sender(context, request, group, rows.member)
        if received == sender.member_epoch:
            return context.cite(rows.epoch.current), sender, None
        return _accept_previous_epoch(context, group, sender, received, owned, rows.epoch), sender, None
    join = rows.join
    member, instance_id = group.members.get(request.member_id), request.instance_id
    if instance_id is None:
        return context.cite(join.new if member is None else join.known), member, None
    owner = group.members.get(group.static_members.get(instance_id, ""))
    if owner is None:
        return context.cite(join.new_instance), member, None
    if (row := row_of_replacement(owner)) is not None:
        return context.cite(row), None, owner
    if owner is member:
        return context.cite(join.own_instance), member, None
    message = (
        f"Instance id {instance_id} is in use by member {owner.member_id}, "
        "which has neither left the group nor lost its session."
    )
    error = ErrorCode.UNRELEASED_INSTANCE_ID
    raise RequestRefused(context.cite(join.instance_in_use), error, message, EntryType.JOIN_REFUSED)


# Replacement and leaving.


def replace_member(
    context: StepContext,
    group: EpochGroup[EM, Any],
    rule: RuleId,
    old: EM,
    new: EM,
    *held: Any,
    process_id: str | None = None,
) -> None:
    """Replace the static member `old` with `new`, and give `new` the target of `old`. `held` is what `new`
    holds, as the arguments of `EpochGroup.assign`. `process_id` is the new process of a streams group's
    member.
    """
    target = group.target.get(old.member_id)
    group.remove(old)
    group.add(new)
    group.assign(new, *held)
    if target is not None:
        group.target[new.member_id] = target
    context.record_member(
        rule,
        EntryType.MEMBER_REPLACED,
        new,
        f"the static member came back, {old.member_id} is fenced",
        replaced_member_id=old.member_id,
        process_id=process_id,
    )


class LeaveRows(NamedTuple):
    """The rows by which a dynamic member leaves, a static member leaves, and a static member leaves
    temporarily.
    """

    dynamic: str
    static: str
    temporarily: str


def leave_by_epoch(
    context: StepContext,
    request: EpochHeartbeat,
    reply_to: ReplyTo,
    rows: LeaveRows,
    *,
    remove: Callable[[RuleId], None],
    mark_away: Callable[[RuleId], None],
) -> None:
    """Remove the sender, or mark it as temporarily away if it leaves with the epoch -2, and answer.

    The caller has checked that the sender is a member. As in Kafka, the epochs are not compared.
    """
    if request.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        row = context.cite(rows.temporarily)
        mark_away(row)
    else:
        row = context.cite(rows.dynamic if request.instance_id is None else rows.static)
        remove(row)
    epoch = request.member_epoch
    context.reply(reply_to, request.response_type, row, member_id=request.member_id, member_epoch=epoch)


def leave_temporarily(context: StepContext, group: EpochGroup[EM, Any], rule: RuleId, member: EM) -> None:
    """Mark the static member as away, and free the partitions or tasks that it was giving up. It keeps the
    rest until its session ends. The session is not renewed.
    """
    if member.is_away:
        return
    group.keep_assigned(member)
    # The member waits for nothing (unlike KAFKA-20641).
    member.member_epoch, member.state = LEAVE_GROUP_STATIC_MEMBER_EPOCH, MemberState.STABLE
    member.rebalance_deadline_ms = member.revoking_since_ms = None
    context.record_member(
        rule,
        EntryType.MEMBER_LEFT_TEMPORARILY,
        member,
        f"the static member left for a while; its {group.noun} wait for it until its session ends",
        deadline_ms=member.session_deadline_ms,
        member_epoch=member.member_epoch,
    )


# The steps of a member to its target.


# The maximum number of members that a sentence of the history names.
NAMED_MEMBERS = 3


H = TypeVar("H")  # the partitions or tasks that a member holds
W = TypeVar("W")  # those that it waits for


class NextState(Struct, Generic[H, W], frozen=True):
    """A member's next state on the way to its target.

    `epoch` is the member epoch. `assigned` are the partitions or tasks that the member may use, and `pending`
    those that it has to give up. `waits_for` is the part of its target that other members still hold.
    """

    rule: RuleId
    epoch: int
    state: MemberState
    assigned: H
    pending: H
    waits_for: W


def store_next_state(
    context: StepContext,
    group: EpochGroup[EM, Any],
    member: EM,
    new: NextState[Any, Any],
    before: tuple[Any, Any],
    *epochs: Any,
    timer: str | None,
    revoked: Any,
    show: Callable[[Any], NamedPartitions],
    reason: Callable[[], str],
) -> None:
    """Store the member's new state, arm or disarm its rebalance timer, and add a history entry with the
    `reason`. If only `previous_epoch` changes, nothing is recorded.

    `before` has the partitions or tasks that were assigned to the member, and those that it had to give up.
    `revoked` are those that its client has given up. `epochs` are the assignment epochs of the active tasks,
    only in a streams group. `timer` is the row of the rebalance timer, or None if the member has no such
    timer. `show` converts partitions or tasks into the form of the history.
    """
    member.previous_epoch = member.member_epoch
    if (new.epoch, new.state, new.assigned, new.pending) == (member.member_epoch, member.state, *before):
        return
    since_ms = member.revoking_since_ms
    group.assign(member, new.assigned, new.pending, *epochs)
    member.member_epoch, member.state = new.epoch, new.state
    member.revoking_since_ms = member.rebalance_deadline_ms = None
    if new.state is MemberState.UNREVOKED_PARTITIONS:
        member.revoking_since_ms = context.now_ms
        if timer is not None:
            context.cite(timer)
            member.rebalance_deadline_ms = context.deadline(member.rebalance_timeout_ms)
    context.record_member(
        new.rule,
        EntryType.MEMBER_RECONCILED,
        member,
        reason(),
        member_epoch=member.member_epoch,
        member_state=member.state.value,
        assigned=show(new.assigned),
        revoking=show(new.pending) or None,
        awaiting=show(new.waits_for) or None,
        deadline_ms=member.rebalance_deadline_ms,
        took_ms=context.now_ms - since_ms if revoked and since_ms is not None else None,
    )
