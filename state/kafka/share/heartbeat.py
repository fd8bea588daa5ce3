"""ShareGroupHeartbeat: a member joins, keeps its session alive, and gets its target assignment. Rows SH11 to
SH28.

Source: GroupCoordinatorService.shareGroupHeartbeat, GroupMetadataManager.shareGroupHeartbeat.

A row, such as SH14, is a rule of docs/rules-share.md. `context.cite` records that a row was applied.
"""

from collections.abc import Collection, Iterator, Mapping

from assignors.kafka import simple
from kafka_why.contract.kafka.history import EntryType, MemberState
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.responses import AlterShareGroupOffsetsResponse, ShareGroupHeartbeatResponse
from kafka_why.contract.kafka.share_requests import AlterShareGroupOffsets, ShareGroupHeartbeat
from kafka_why.contract.kafka.snapshot import Partitions, listed_partitions, named, names_change
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import TopicPartition
from state.kafka.context import RuleId, StepContext
from state.kafka.group import DeadlineReached, TimerKind, Topic
from state.kafka.modern import (
    ModernSettings,
    RequestRefused,
    answer_not_found,
    assignable_topics,
    assigned_partitions,
    assignment_due_in_ms,
    bump,
    by_topic_id,
    check_capacity,
    check_not_blank,
    event_of_refusal,
    heartbeat_handler,
    is_target_due,
    malformed,
    merge_reported_topics,
    record_target,
    refresh_fingerprint,
    topics_of_target,
    without,
    wrong_type_message,
)
from state.kafka.modern_members import not_a_member
from state.kafka.share.offsets import alter_offsets
from state.kafka.share.state import (
    RETRIABLE,
    forget_unused,
    partitions_text,
    record_overdue_tasks,
    refuse_during_deletion,
    refuse_overdue_requests,
    request_missing_initializations,
)
from state.kafka.share_group import LEAVE_GROUP_MEMBER_EPOCH, ShareGroup, ShareMember

# Refusals of a ShareGroupHeartbeat before its group is read. Rows SH3, SH6 to SH10.
#
# Source: KafkaApis.isMemberIdValid, GroupCoordinatorService.throwIfShareGroupHeartbeatRequestIsInvalid.


MEMBER_ID_MAX_CHARS = 36


def check_request(context: StepContext, request: ShareGroupHeartbeat) -> None:
    """Raise RequestRefused if the request is malformed."""
    if not 0 < len(request.member_id) <= MEMBER_ID_MAX_CHARS:
        raise malformed(context, "SH3", f"MemberId must have 1 to {MEMBER_ID_MAX_CHARS} characters.")
    check_not_blank(
        context,
        ("MemberId", request.member_id, "SH6"),
        ("GroupId", request.group_id, "SH7"),
        ("RackId", request.rack_id, "SH8"),
    )
    if request.member_epoch == 0 and not request.subscribed_topic_names:
        raise malformed(context, "SH9", "SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_GROUP_MEMBER_EPOCH:
        raise malformed(context, "SH10", "MemberEpoch is invalid.")


# The sender of a ShareGroupHeartbeat: a member, or a new one. Rows SP17, SH14 to SH20, TA31.
#
# Source: GroupMetadataManager (throwIfShareGroupIsFull, getOrMaybeSubscribeShareGroupMember,
# throwIfShareGroupMemberEpochIsInvalid).


def identify(
    context: StepContext, group: ShareGroup, request: ShareGroupHeartbeat
) -> tuple[RuleId, ShareMember | None]:
    """Return the row that identifies the sender, and its member, or None for a new sender.

    Nothing changes. Raise RequestRefused if the sender may not join or its epoch is refused.
    """
    member = group.members.get(request.member_id)
    _check_size(context, group, member)
    if request.member_epoch == 0:
        refuse_during_deletion(context)
        return context.cite("SH15" if member is None else "SH16"), member
    if member is None:
        raise not_a_member(context, "SH15", request.member_id)
    return _check_epoch(context, request.member_epoch, member), member


def _check_size(context: StepContext, group: ShareGroup, member: ShareMember | None) -> None:
    """Row SH14: refuse a new member if the group is full, whatever the request's epoch."""
    max_size = context.config.group_share_max_size
    if member is not None or len(group.members) < max_size:
        return
    message = f"The share group has reached its maximum capacity of {max_size} members."
    raise RequestRefused(
        context.cite("SH14"), ErrorCode.GROUP_MAX_SIZE_REACHED, message, EntryType.JOIN_REFUSED
    )


def _check_epoch(context: StepContext, received: int, member: ShareMember) -> RuleId:
    """Rows SH18 to SH20: return the row that accepts the request's epoch, or raise RequestRefused."""
    epoch, previous = member.member_epoch, member.previous_epoch
    if received == epoch:
        return context.cite("SH18")
    if received > epoch:
        row = context.cite("SH18")
        fault = f"greater member epoch ({received}) than the one known by the group coordinator ({epoch})"
    elif received == previous:
        # The answer with the new epoch may have been lost.
        return context.cite("SH19")
    else:
        row = context.cite("SH20")
        fault = f"smaller member epoch ({received}) than the one known by the group coordinator ({epoch})"
        fault += f", and it does not match the previous member epoch ({previous})"
    message = f"The share group member has a {fault}. The member must abandon all its partitions and rejoin."
    raise RequestRefused(row, ErrorCode.FENCED_MEMBER_EPOCH, message, EntryType.MEMBER_FENCED)


# Changes of a member by a heartbeat, and the group epoch. Rows SH21 to SH24.
#
# Source: GroupMetadataManager.shareGroupHeartbeat.


def update_member(
    context: StepContext,
    group: ShareGroup,
    member: ShareMember,
    request: ShareGroupHeartbeat,
    is_pending: bool,
) -> bool:
    """Update the member, and raise the group epoch at most once if the group needs a new target.

    Return True if the epoch was raised. `is_pending` is True if the target did not match the initialized
    partitions before the request (row SH22).
    """
    names_before, requested_names = member.subscribed_topic_names, request.subscribed_topic_names
    names = names_before if requested_names is None else sorted(set(requested_names))
    member.client_id, member.client_host = request.client_id, request.client_host
    if request.rack_id is not None:
        member.rack_id = request.rack_id
    if names != names_before:
        group.subscribe(member, names)
        forget_unused(context, group)
    is_fingerprint_stale = names != names_before or is_pending or group.metadata_stale
    topics_changed = is_fingerprint_stale and refresh_fingerprint(group)
    if names != names_before:
        reason = f"member {member.member_id} {names_change(names_before, names)}"
        bump(context, context.cite("SH21"), reason, member_id=member.member_id)
    elif is_pending:
        missing = unassigned(context, group)
        bump(context, context.cite("SH22"), _why_pending(missing), partitions=missing or None)
    elif topics_changed:
        bump(context, context.cite("SH23"), "the topics that members subscribe to have changed")
    else:
        return False
    return True


def _why_pending(missing: Mapping[str, Collection[int]]) -> str:
    """Return why the target has to be computed again. `missing` are the partitions that no target has."""
    if not missing:
        return "the target has partitions that are not initialized"
    return f"initialized and in no target: {partitions_text(missing)}"


# The end of a membership: a heartbeat with epoch -1, or the end of the session. Rows SH29 to SH33, SG4.
#
# Source: GroupMetadataManager (shareGroupLeave, shareGroupFenceMember).


def leave(context: StepContext, request: ShareGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Remove the member. Its epoch is not checked. Raise RequestRefused if the sender is not a member."""
    group = context.group_of(ShareGroup)
    member = group.members.get(request.member_id)
    if member is None:
        raise not_a_member(context, "SH30", request.member_id)
    row = context.cite("SH31")
    _remove(context, group, row, member, "left the group")
    context.reply(
        reply_to,
        ShareGroupHeartbeatResponse,
        row,
        member_id=member.member_id,
        member_epoch=LEAVE_GROUP_MEMBER_EPOCH,
    )


def deadline_reached(context: StepContext, group: ShareGroup, deadline: DeadlineReached) -> None:
    """Handle a timer by its kind: remove a member whose session is over, answer overdue parked requests, or
    record overdue tasks.
    """
    if deadline.kind is TimerKind.PARKED:
        return refuse_overdue_requests(context, group, deadline)
    if deadline.kind is TimerKind.TASK:
        return record_overdue_tasks(context, group)
    member = group.members[deadline.member_id]
    timeout_ms = SETTINGS.of(context).session_timeout_ms
    reason = f"no heartbeat within the session timeout of {timeout_ms} ms"
    return _remove(context, group, context.cite("SH33"), member, reason)


def _remove(context: StepContext, group: ShareGroup, rule: RuleId, member: ShareMember, reason: str) -> None:
    """Remove the member, and raise the group epoch. No target is computed: the next heartbeat does it."""
    group.remove(member)
    context.record_member(rule, EntryType.MEMBER_REMOVED, member, reason, member_epoch=member.member_epoch)
    forget_unused(context, group)
    refresh_fingerprint(group)
    bump(context, rule, f"member {member.member_id} was removed: {reason}")
    if not group.members:
        context.record(context.cite("SH32"), EntryType.EMPTY, "the last member is gone")


# A member's next heartbeat is due after the group's heartbeat interval, or earlier if it waits for its first
# partitions. Row SH28a.
#
# Only a heartbeat computes and delivers a target. So in Kafka a joining member waits for a whole heartbeat
# interval (5 s), although the share coordinator initializes its partitions earlier.


SHORTEST_MS = 100
"""The shortest heartbeat interval in an answer."""
_TASK_WAIT_MS = 1_000
"""The heartbeat interval while a task is open. Most tasks of the share coordinator take less time."""
_TASK_AGE_MAX_MS = 10_000
"""An older task may take any time, so it causes no early heartbeats. A member sends about ten for one task.
"""
_CODES_THAT_MAY_PASS = RETRIABLE | {ErrorCode.NONE}
"""The last error codes of tasks that may still succeed."""


def next_heartbeat_ms(context: StepContext, group: ShareGroup, member: ShareMember) -> int:
    """Return the HeartbeatIntervalMs of the answer to the member. It is shorter than the configured one if
    the member may soon get its first partitions.
    """
    settings = SETTINGS.of(context)
    interval_ms = settings.heartbeat_interval_ms
    if member.assigned or not context.config.share_assign_at_once:
        return interval_ms
    if group.is_rebalancing:
        wait_ms = assignment_due_in_ms(context, settings.assignment_interval_ms)
    elif _waits_for_initialization(context, group, member):
        wait_ms = _TASK_WAIT_MS
    else:
        return interval_ms
    context.cite("SH28a")
    return min(interval_ms, max(wait_ms, SHORTEST_MS))


def _waits_for_initialization(context: StepContext, group: ShareGroup, member: ShareMember) -> bool:
    """Return True if a recent task that may still succeed is open for one of the member's topics."""
    since_ms = context.now_ms - _TASK_AGE_MAX_MS
    # After a lasting error each heartbeat begins a new task (row SI14), so no member waits for it.
    return any(
        initialization.task
        and initialization.at_ms > since_ms
        and initialization.error_code in _CODES_THAT_MAY_PASS
        for name in member.subscribed_topic_names
        if (topic := group.topics.get(name)) is not None
        and (initializing := group.initializing.get(topic.topic_id)) is not None
        for initialization in initializing.partitions.values()
    )


# Reconciliation: a member reaches the target assignment in one step. Rows ST9 to ST11.
#
# Nothing is revoked first, because any number of members may have a partition. Source:
# GroupMetadataManager.maybeReconcile, ShareGroupAssignmentBuilder.java.


def reconcile(context: StepContext, group: ShareGroup, member: ShareMember, is_bumped: bool) -> None:
    """Move the member to the group's target assignment.

    `is_bumped` is True if the request raised the group epoch. Partitions of topics that the member no longer
    subscribes to are removed at once.
    """
    epoch = group.assignment_epoch
    if member.member_epoch != epoch:
        row = context.cite("ST10")
    elif is_bumped:
        row = context.cite("ST11")
    else:
        context.cite("ST9")
        return
    subscribed = group.ids_of(member.subscribed_topic_names)  # row ST5
    target = group.target.get(member.member_id, {})
    before, epoch_before = member.assigned, member.member_epoch
    member.assigned = {id_: numbers for id_, numbers in target.items() if id_ in subscribed}
    if epoch_before != epoch:
        member.previous_epoch, member.member_epoch = epoch_before, epoch
    elif member.assigned == before:
        return
    context.record_member(
        row,
        EntryType.MEMBER_RECONCILED,
        member,
        _reconciliation_reason(before, member.assigned, group.names_by_id(), epoch),
        member_epoch=epoch,
        member_state=MemberState.STABLE.value,
        assigned=named(member.assigned, group.names_by_id()),
    )


def _reconciliation_reason(
    before: Partitions, after: Partitions, names: Mapping[bytes, str], epoch: int
) -> str:
    gets, loses = without(after, before), without(before, after)
    parts = []
    if gets:
        parts.append(f"gets {listed_partitions(gets, names)}")
    if loses:
        parts.append(f"loses {listed_partitions(loses, names)}")
    return f"the member {' and '.join(parts) or 'has what it had'} at epoch {epoch}"


# Requests of share groups for a group id that has no share group. Rows SH12, SH13, SH29, SD2, SD11, SO5,
# SO9a, SO14a.
#
# Source: GroupMetadataManager.getOrMaybeCreateShareGroup, shareGroup.


KIND = "share group"


def get_or_create_group(context: StepContext, request: ShareGroupHeartbeat) -> None:
    """If the group id has no group and the request joins, create a share group. Raise RequestRefused if it
    has no group and the request does not join, or if it has a group of another type.
    """
    if context.has_group and isinstance(context.group, ShareGroup):
        return
    error = ErrorCode.GROUP_ID_NOT_FOUND
    leaves = request.member_epoch < 0
    if context.has_group:
        row = context.cite("SH29" if leaves else "SH13")
        raise RequestRefused(row, error, wrong_type_message(context.group_id, KIND))
    if leaves:
        raise RequestRefused(context.cite("SH29"), error, f"Group {context.group_id} not found.")
    if request.member_epoch > 0:
        raise RequestRefused(context.cite("SH12"), error, f"Share group {context.group_id} not found.")
    context.save()
    context.create_group(ShareGroup, context.cite("SH12"), "first ShareGroupHeartbeat for this group id")


def alter_without_group(context: StepContext, request: AlterShareGroupOffsets, reply_to: ReplyTo) -> None:
    """Handle an AlterShareGroupOffsets to a group id without a share group: alter the offsets if it has no
    group, and refuse the request if it has a group of another type.
    """
    handle = _refuse_alteration if context.has_group else alter_offsets
    handle(context, request, reply_to)


_refuse_alteration = answer_not_found("SO9a", KIND, AlterShareGroupOffsetsResponse)


def _handle_heartbeat(context: StepContext, request: ShareGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Handle the heartbeat of a member or of a sender that joins, in Kafka's order of steps. Raise
    RequestRefused, before anything is changed, if the sender may not stay or join.
    """
    group = context.group_of(ShareGroup)
    row, existing = identify(context, group, request)
    if names := request.subscribed_topic_names:
        event = event_of_refusal(request)
        check_capacity(context, group, request.member_id, names, request.topics, event)
    if request.topics is not None:
        merge_reported_topics(context, group, request.topics)
    is_pending = is_assignment_pending(context, group)
    member = _admit(context, request, row) if existing is None else existing
    if existing is not None and request.member_epoch == 0:
        reason = "joined again with its member id; it keeps its epoch and its partitions"
        context.record_member(
            row, EntryType.MEMBER_REJOINED, member, reason, member_epoch=member.member_epoch
        )
    assigned_before = member.assigned
    is_bumped = update_member(context, group, member, request, is_pending)
    maybe_update_target(context)
    reconcile(context, group, member, is_bumped)
    SETTINGS.arm_session(context, member)  # row SH26
    request_missing_initializations(context, group)
    sends_assignment = (
        request.member_epoch == 0
        or request.subscribed_topic_names is not None
        or member.assigned != assigned_before
    )
    context.reply(
        reply_to,
        ShareGroupHeartbeatResponse,
        context.cite("SH28"),
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=next_heartbeat_ms(context, group, member),
        assignment=assigned_partitions(member.assigned) if sends_assignment else None,
    )


heartbeat = heartbeat_handler(check_request, get_or_create_group, leave, _handle_heartbeat)


def _admit(context: StepContext, request: ShareGroupHeartbeat, row: RuleId) -> ShareMember:
    """Add the sender as a new member that subscribes to no topics yet."""
    member = ShareMember(request.member_id, client_id=request.client_id, client_host=request.client_host)
    context.group_of(ShareGroup).add(member)
    context.record_member(row, EntryType.MEMBER_ADDED, member, "joined the group")
    return member


# The target assignment of a share group: when it is computed, and from what. Rows SH22, ST1 to ST5, SB1 to
# SB12.
#
# Source: GroupMetadataManager.maybeUpdateTargetAssignment, initializedAssignmentPending.


SETTINGS = ModernSettings("share", session="SN14", heartbeat="SN14", assignment="SN14")


def is_assignment_pending(context: StepContext, group: ShareGroup) -> bool:
    """Row SH22: return True if the target does not match the initialized partitions of subscribed topics.

    Return False if the group epoch is already above the assignment epoch (row SH24). Partitions of an earlier
    topic of the same name do not count, and neither do those of a topic that the target leaves out (row
    TA32).
    """
    if not group.initialized or group.is_rebalancing:
        return False
    return any(
        group.covered.get(topic.topic_id, set()) != set(group.assignable(topic))
        for _, topic in _initialized_topics(context, group)
    )


def unassigned(context: StepContext, group: ShareGroup) -> dict[str, list[int]]:
    """Return the initialized partitions of subscribed topics that are in no target."""
    missing = {
        name: sorted(set(group.assignable(topic)).difference(group.covered.get(topic.topic_id, ())))
        for name, topic in _initialized_topics(context, group)
    }
    return {name: numbers for name, numbers in sorted(missing.items()) if numbers}


def _initialized_topics(context: StepContext, group: ShareGroup) -> Iterator[tuple[str, Topic]]:
    """Yield the topics that a target may have and that have initialized partitions."""
    topics, _ = assignable_topics(group, context.config.group_max_partitions)
    for name, topic in topics.items():
        if topic.topic_id in group.initialized:
            yield name, topic


def maybe_update_target(context: StepContext) -> None:
    """Compute the target assignment if the group has changed since the last one and the assignment interval
    is over.
    """
    if not is_target_due(context, SETTINGS, current="ST1", too_early="ST2"):
        return
    group, row = context.group_of(ShareGroup), context.cite("ST3")
    last_target = group.target
    topics, left_out = topics_of_target(context, group)
    group.set_target(by_topic_id(_run_assignor(group, topics), topics))
    record_target(context, group, row, simple.NAME, last_target, left_out)


def _run_assignor(group: ShareGroup, topics: Mapping[str, Topic]) -> Mapping[str, list[TopicPartition]]:
    """Run the assignor, which identifies topics by name. Each member has an entry in the result."""
    names = {topic.topic_id: name for name, topic in topics.items()}
    last_assignment = {
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
        last_assignment,
    )
