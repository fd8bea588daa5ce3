"""ConsumerGroupHeartbeat: a member joins, keeps its session alive, and moves to its target assignment. Rows
HB1 to HB61.

Source: GroupCoordinatorService.consumerGroupHeartbeat, GroupMetadataManager.consumerGroupHeartbeat.

A row, such as HB20, is a rule of docs/rules-consumer.md. `context.cite` records that a row was applied.
"""

from msgspec import UNSET

from kafka_why.contract.kafka.history import (
    LEAVE_GROUP_MEMBER_EPOCH,
    EntryType,
)
from kafka_why.contract.kafka.requests import (
    ConsumerGroupHeartbeat,
    RegexResolution,
    ReplyTo,
    TopicIdPartitions,
)
from kafka_why.contract.kafka.responses import ConsumerGroupHeartbeatResponse
from kafka_why.contract.messages import ErrorCode
from state.kafka.consumer.members import (
    ConsumerSender,
    MemberUpdate,
    admit,
    fence,
    generated_member_id,
    is_full,
    update_and_reconcile,
)
from state.kafka.consumer.migration import upgrade
from state.kafka.consumer.regex import request_due_check
from state.kafka.consumer.target import SETTINGS
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember, Owned
from state.kafka.context import RuleId, StepContext
from state.kafka.modern import (
    CreationRows,
    RequestRefused,
    assigned_partitions,
    check_capacity,
    check_not_blank,
    client_of,
    ensure_group,
    event_of_refusal,
    heartbeat_handler,
    malformed,
    merge_reported_topics,
)
from state.kafka.modern_members import (
    JoinRows,
    LeaveRows,
    MemberEpochRows,
    MemberRows,
    SenderRows,
    check_leave_epoch,
    find_sender,
    group_full,
    identify_sender,
    leave_by_epoch,
    leave_temporarily,
)

# Refusals of a ConsumerGroupHeartbeat before its group is read. Rows HB1, HB5 to HB13.
#
# Source: GroupCoordinatorService.throwIfConsumerGroupHeartbeatRequestIsInvalid.


# From this version on the client chooses its member id (KIP-1082).
FIRST_VERSION_WITH_CLIENTS_MEMBER_ID = 1


def check_request(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """Raise RequestRefused if the request is malformed, or names an assignor that is not configured."""
    config = context.config
    if not config.consumer_protocol:
        message = "The consumer group protocol is switched off (group.coordinator.rebalance.protocols)."
        raise RequestRefused(context.cite("HB1"), ErrorCode.UNSUPPORTED_VERSION, message)
    _check_form(context, request)
    name = request.server_assignor
    if name is not None and name not in config.group_consumer_assignors:
        known = ", ".join(config.group_consumer_assignors)
        message = f"ServerAssignor {name!r} is not supported. Supported assignors: {known}."
        raise RequestRefused(context.cite("HB13"), ErrorCode.UNSUPPORTED_ASSIGNOR, message)


def _check_form(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """Raise RequestRefused if the request is malformed."""
    epoch = request.member_epoch
    # In earlier versions a joining client has no member id yet.
    needs_id = (
        request.api_version >= FIRST_VERSION_WITH_CLIENTS_MEMBER_ID
        or epoch > 0
        or epoch == LEAVE_GROUP_MEMBER_EPOCH
    )
    check_not_blank(
        context,
        ("MemberId", request.member_id if needs_id else None, "HB5"),
        ("GroupId", request.group_id, "HB6"),
        ("InstanceId", request.instance_id, "HB7"),
        ("RackId", request.rack_id, "HB7"),
    )
    if epoch == 0:
        _check_join(context, request)
    elif epoch < 0:
        check_leave_epoch(context, request, no_instance="HB11", too_low="HB12")


def _check_join(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """Rows HB8 to HB10: raise RequestRefused if a request that joins lacks a field, or reports partitions."""
    if request.rebalance_timeout_ms == -1:
        raise malformed(context, "HB8", "The first request must have RebalanceTimeoutMs.")
    if request.topic_partitions is None or request.topic_partitions:
        raise malformed(context, "HB9", "TopicPartitions must be empty in the first request.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        message = "The first request must have SubscribedTopicNames or SubscribedTopicRegex."
        raise malformed(context, "HB10", message)


# The sender of a ConsumerGroupHeartbeat: a new member, a member, or a new process that replaces a static
# member. Rows HB20 to HB35.
#
# Source: GroupMetadataManager (getOrMaybeSubscribeDynamicConsumerGroupMember,
# getOrMaybeSubscribeStaticConsumerGroupMember, throwIfConsumerGroupIsFull,
# throwIfConsumerGroupMemberEpochIsInvalid).


_SENDER_ROWS = SenderRows(
    JoinRows(new="HB22", known="HB23", new_instance="HB29", own_instance="HB31", instance_in_use="HB31"),
    MemberRows(unknown_instance="HB33", fenced_instance="HB34", unknown_member="HB24"),
    MemberEpochRows(current="HB26", higher="HB25", previous="HB27", lower="HB28"),
)


def identify(context: StepContext, request: ConsumerGroupHeartbeat, owned: Owned | None) -> ConsumerSender:
    """Return the sender's identity without changing anything. Raise RequestRefused if the group is full, or
    if the ids or the epoch of the sender are refused.
    """
    _check_size(context, request)
    group = context.group_of(ConsumerGroup)
    row, member, replaced = identify_sender(context, request, group, owned, _SENDER_ROWS, _row_of_replacement)
    member_id = _new_member_id(context, request) if member is None else member.member_id
    return ConsumerSender(row, member_id, member, replaced)


def _check_size(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """Row HB20: refuse a new member if the group is full. A returning static member does not count
    (KAFKA-20601).
    """
    if not is_full(context, request.member_id):
        return
    group, max_size = context.group_of(ConsumerGroup), context.config.group_consumer_max_size
    owner = group.members.get(group.static_members.get(request.instance_id or "", ""))
    if request.member_epoch != 0 or owner is None or _row_of_replacement(owner) is None:
        raise group_full(context, "HB20", "group.consumer.max.size", max_size, event_of_refusal(request))


def _row_of_replacement(owner: ConsumerMember) -> str | None:
    """Return the row by which another process takes over the member's instance id, or None if it may not."""
    if owner.classic is not None:
        # A classic member never releases its instance id by leaving temporarily.
        return "HB32"
    return "HB30" if owner.is_away else None


def _new_member_id(context: StepContext, request: ConsumerGroupHeartbeat) -> str:
    """Return the id of a new member: the one that its client has chosen, or else a generated one (row
    HB21).
    """
    if request.member_id:
        return request.member_id
    context.cite("HB21")
    return generated_member_id(context, request.client_id, request.instance_id)


# A ConsumerGroupHeartbeat by which a member leaves, permanently or temporarily. Rows HB37 to HB42.
#
# Source: GroupMetadataManager.consumerGroupLeave.


_LEAVING_MEMBER_ROWS = MemberRows(unknown_instance="HB39", fenced_instance="HB40", unknown_member="HB37")
_LEAVE_ROWS = LeaveRows(dynamic="HB38", static="HB41", temporarily="HB42")


def leave(context: StepContext, request: ConsumerGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Remove the member, or mark a static member as temporarily away. The member's epoch is not checked."""
    group = context.group_of(ConsumerGroup)
    member = find_sender(context, request, group, _LEAVING_MEMBER_ROWS)
    leave_by_epoch(
        context,
        request,
        reply_to,
        _LEAVE_ROWS,
        remove=lambda row: fence(context, row, [member.member_id], "left the group"),
        mark_away=lambda row: leave_temporarily(context, group, row, member),
    )


# Requests of the consumer protocol for a group id that has no consumer group. Rows HB15, HB17 to HB19,
# HB36, AD2.
#
# Source: GroupMetadataManager.getOrMaybeCreateConsumerGroup.


KIND = "consumer group"
_CREATION_ROWS = CreationRows("HB15", empty_classic="HB17", classic="HB18", other="HB19", leaves="HB36")


def get_or_create_group(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """If there is no consumer group and the request joins, create one or convert the classic group.

    Raise RequestRefused if there is none and the request does not join, or if the group cannot be converted.
    """
    existed = ensure_group(context, request, ConsumerGroup, KIND, _CREATION_ROWS, upgrade)
    if existed and request.member_epoch != 0:
        context.cite("HB16")


def _handle_heartbeat(context: StepContext, request: ConsumerGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Handle the heartbeat of a member, or of a sender that joins. Raise RequestRefused if a check fails."""
    owned = _owned(request.topic_partitions)
    group = context.group_of(ConsumerGroup)
    sender = identify(context, request, owned)
    _check_capacity(context, request, sender)
    if _has_new_pattern(request, sender):
        context.save()  # `update_and_reconcile` may refuse the pattern
    if request.topics is not None:
        merge_reported_topics(context, group, request.topics)
    member = _find_or_admit(context, request, sender)
    assigned_before = member.assigned
    update_and_reconcile(context, group, member, _member_update(request, member), owned)
    SETTINGS.arm_session(context, member)
    row, has_assignment = _answer_row(context, request, assignment_changed=assigned_before != member.assigned)
    context.reply(
        reply_to,
        ConsumerGroupHeartbeatResponse,
        row,
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=SETTINGS.of(context).heartbeat_interval_ms,
        assignment=assigned_partitions(member.assigned) if has_assignment else None,
        look=request_due_check(context, group, member) or UNSET,
    )


heartbeat = heartbeat_handler(check_request, get_or_create_group, leave, _handle_heartbeat)


def _check_capacity(context: StepContext, request: ConsumerGroupHeartbeat, sender: ConsumerSender) -> None:
    """Raise RequestRefused if the topics that the request subscribes to would give the group too many
    partitions (row TA31).
    """
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    if not names and not regex:
        return
    resolved, reported = context.group_of(ConsumerGroup).resolved_regexes, dict(request.topics or {})
    existing = sender.existing_member
    if existing is not None:
        names = existing.subscribed_topic_names if names is None else names
        regex = existing.subscribed_topic_regex if regex is None else regex
    topics = set(names or ())
    if regex and regex in resolved:
        topics.update(resolved[regex].topics)
    elif regex and request.regex is not None:
        topics.update(request.regex.topics)
        reported.update(request.regex.topics)
    group, event = context.group_of(ConsumerGroup), event_of_refusal(request)
    check_capacity(context, group, sender.id_before, topics, reported, event)


def _has_new_pattern(request: ConsumerGroupHeartbeat, sender: ConsumerSender) -> bool:
    """Return True if the request has another pattern than the sender's member."""
    existing = sender.existing_member
    regex = request.subscribed_topic_regex
    return bool(regex) and (existing is None or existing.subscribed_topic_regex != regex)


def _find_or_admit(
    context: StepContext, request: ConsumerGroupHeartbeat, sender: ConsumerSender
) -> ConsumerMember:
    """Return the sender's member. A new sender is added as a member, or replaces a static member."""
    member = sender.member
    if member is None:
        return admit(context, sender, client_of(request), "joined the group")
    _record_return(context, request, sender.rule, member)
    return member


def _record_return(
    context: StepContext, request: ConsumerGroupHeartbeat, rule: RuleId, member: ConsumerMember
) -> None:
    """Record that a member joined again or changed its protocol. Any other heartbeat has no entry."""
    if member.classic is not None:
        reason = "continues with the consumer protocol instead of the classic protocol"
    elif member.is_away:
        reason = "came back with its member id; it keeps its partitions"
    elif request.member_epoch == 0:
        reason = "joined again with its member id; it keeps its epoch and its partitions"
    else:
        return
    context.record_member(rule, EntryType.MEMBER_REJOINED, member, reason, member_epoch=member.member_epoch)


def _member_update(request: ConsumerGroupHeartbeat, member: ConsumerMember) -> MemberUpdate:
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    assignor, timeout_ms = request.server_assignor, request.rebalance_timeout_ms
    # Fields that the request omits keep their values.
    return MemberUpdate(
        client_id=request.client_id,
        client_host=request.client_host,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=member.server_assignor if assignor is None else assignor,
        subscribed_topic_names=member.subscribed_topic_names if names is None else sorted(set(names)),
        subscribed_topic_regex=member.subscribed_topic_regex if regex is None else regex,
        resolution=_resolution(request, member),
        checks_topics=request.checks_topics is True,
    )


def _resolution(request: ConsumerGroupHeartbeat, member: ConsumerMember) -> RegexResolution | None:
    """Return the topics that the request reports for the member's pattern, or None.

    The request has them for a new pattern (`regex`), or for a pattern that an answer requested to check
    (`looked`).
    """
    if request.subscribed_topic_regex is not None or not request.looked:
        return request.regex
    return request.looked.get(member.subscribed_topic_regex)


def _answer_row(
    context: StepContext, request: ConsumerGroupHeartbeat, *, assignment_changed: bool
) -> tuple[RuleId, bool]:
    """Rows HB58 to HB61: return the row of the answer, and True if the answer includes the assignment."""
    if request.member_epoch == 0:
        return context.cite("HB58"), True
    # A client that sends all fields may lack its assignment, for example because an answer was lost.
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    if request.rebalance_timeout_ms != -1 and subscribes and request.topic_partitions is not None:
        return context.cite("HB59"), True
    return (context.cite("HB60"), True) if assignment_changed else (context.cite("HB61"), False)


def _owned(topic_partitions: list[TopicIdPartitions] | None) -> Owned | None:
    """Return the partitions that the client reports, by topic id, or None if it reports none."""
    if topic_partitions is None:
        return None
    owned: dict[bytes, set[int]] = {}
    for topic in topic_partitions:
        if topic.partitions:
            owned.setdefault(topic.topic_id.bytes, set()).update(topic.partitions)
    return owned
