"""ConsumerGroupHeartbeat: a member joins, keeps its session alive, and moves to its target assignment. Rows
HB1 to HB61.

Source: GroupCoordinatorService.consumerGroupHeartbeat, GroupMetadataManager.consumerGroupHeartbeat.
"""

from collections.abc import Mapping

from msgspec import UNSET

from kafka_why.contract.kafka.history import (
    LEAVE_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    EntryType,
    MemberState,
)
from kafka_why.contract.kafka.requests import (
    ConsumerGroupHeartbeat,
    RegexResolution,
    ReplyTo,
    TopicIdPartitions,
)
from kafka_why.contract.kafka.responses import ConsumerGroupDescribeResponse, ConsumerGroupHeartbeatResponse
from kafka_why.contract.messages import ErrorCode
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer.members import (
    SenderIdentity,
    Update,
    admit,
    check_capacity,
    fence,
    generated_member_id,
    is_full,
    update_and_reconcile,
)
from state.kafka.consumer.migration import upgrade
from state.kafka.consumer.regex import pattern_to_check
from state.kafka.consumer.target import SETTINGS, Owned, arm_session
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext, restart_group
from state.kafka.modern import (
    RequestRefused,
    assigned_partitions,
    client_of,
    fenced,
    heartbeat_handler,
    is_blank,
    is_not,
    known_member,
    merge_reported,
    not_found,
    refusal,
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
        raise RequestRefused(context.rule("HB1"), ErrorCode.UNSUPPORTED_VERSION, message)
    fault = _find_fault(context, request)
    if fault is not None:
        row, message = fault
        raise RequestRefused(row, ErrorCode.INVALID_REQUEST, message)
    name = request.server_assignor
    if name is not None and name not in config.group_consumer_assignors:
        known = ", ".join(config.group_consumer_assignors)
        message = f"ServerAssignor {name!r} is not supported. Supported assignors: {known}."
        raise RequestRefused(context.rule("HB13"), ErrorCode.UNSUPPORTED_ASSIGNOR, message)


def _find_fault(context: StepContext, request: ConsumerGroupHeartbeat) -> tuple[RuleId, str] | None:
    """Return the row that finds the request invalid, with the message, or None."""
    epoch = request.member_epoch
    needs_id = (
        request.api_version >= FIRST_VERSION_WITH_CLIENTS_MEMBER_ID
        or epoch > 0
        or epoch == LEAVE_GROUP_MEMBER_EPOCH
    )
    if needs_id and is_blank(request.member_id):
        return context.rule("HB5"), "MemberId can't be empty."
    if is_blank(request.group_id):
        return context.rule("HB6"), "GroupId can't be empty."
    if request.instance_id is not None and is_blank(request.instance_id):
        return context.rule("HB7"), "InstanceId can't be empty."
    if request.rack_id is not None and is_blank(request.rack_id):
        return context.rule("HB7"), "RackId can't be empty."
    if epoch == 0:
        return _fault_of_join(context, request)
    if epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH and request.instance_id is None:
        return context.rule("HB11"), "InstanceId can't be null in a request with the member epoch -2."
    if epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        return context.rule("HB12"), f"The member epoch {epoch} is invalid: it must be -2 at the least."
    return None


def _fault_of_join(context: StepContext, request: ConsumerGroupHeartbeat) -> tuple[RuleId, str] | None:
    if request.rebalance_timeout_ms == -1:
        return context.rule("HB8"), "The first request must have RebalanceTimeoutMs."
    if request.topic_partitions is None or request.topic_partitions:
        return context.rule("HB9"), "TopicPartitions must be empty in the first request."
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return context.rule(
            "HB10"
        ), "The first request must have SubscribedTopicNames or SubscribedTopicRegex."
    return None


# The sender of a ConsumerGroupHeartbeat: a new member, a known one, or one that replaces a static member.
# Rows HB20 to HB35.
#
# Source: GroupMetadataManager (getOrMaybeSubscribeDynamicConsumerGroupMember,
# getOrMaybeSubscribeStaticConsumerGroupMember, throwIfConsumerGroupIsFull,
# throwIfConsumerGroupMemberEpochIsInvalid).


def identify(context: StepContext, request: ConsumerGroupHeartbeat, owned: Owned | None) -> SenderIdentity:
    """Return the sender's identity without changing anything. Raise RequestRefused if the sender may not
    continue.
    """
    _check_size(context, request)
    if request.member_epoch == 0:
        if request.instance_id is None:
            return _identify_joining(context, request)
        return _joining_with_instance(context, request, request.instance_id)
    group = context.group_of(ConsumerGroup)
    member = known_member(context, request, group.members, group.static_members, ("HB33", "HB34", "HB24"))
    return SenderIdentity(_check_epoch(context, request, member, owned), member.member_id, member)


def _check_size(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """Row HB20: refuse a new member if the group is full. A returning static member does not count
    (KAFKA-20601).
    """
    if not is_full(context, request.member_id):
        return
    group, max_size = context.group_of(ConsumerGroup), context.config.group_consumer_max_size
    owner = group.members.get(group.static_members.get(request.instance_id or "", ""))
    is_join = request.member_epoch == 0
    if is_join and owner is not None and _is_replaceable(owner):
        return
    message = f"Group {context.group_id} is full: group.consumer.max.size is {max_size}."
    event = EntryType.JOIN_REFUSED if is_join else None
    raise RequestRefused(context.rule("HB20"), ErrorCode.GROUP_MAX_SIZE_REACHED, message, event)


def _identify_joining(context: StepContext, request: ConsumerGroupHeartbeat) -> SenderIdentity:
    member = context.group_of(ConsumerGroup).members.get(request.member_id)
    if member is not None:
        return SenderIdentity(context.rule("HB23"), member.member_id, member)
    return SenderIdentity(context.rule("HB22"), _member_id(context, request))


def _joining_with_instance(
    context: StepContext, request: ConsumerGroupHeartbeat, instance_id: str
) -> SenderIdentity:
    group = context.group_of(ConsumerGroup)
    owner_id = group.static_members.get(instance_id)
    if owner_id is None:
        row = context.rule("HB29")
        member = group.members.get(request.member_id)
        member_id = _member_id(context, request) if member is None else member.member_id
        return SenderIdentity(row, member_id, member)
    owner = group.members[owner_id]
    if _is_replaceable(owner):
        row = context.rule("HB32" if owner.classic is not None else "HB30")
        return SenderIdentity(row, _member_id(context, request), replaced=owner)
    row = context.rule("HB31")
    if owner_id == request.member_id:
        return SenderIdentity(row, owner_id, owner)
    message = (
        f"Instance id {instance_id} is in use by member {owner_id}, "
        "which has neither left the group nor lost its session."
    )
    raise RequestRefused(row, ErrorCode.UNRELEASED_INSTANCE_ID, message, EntryType.JOIN_REFUSED)


def _is_replaceable(owner: ConsumerMember) -> bool:
    """Return True if another process may take over the member's instance id."""
    # The classic protocol does not release instance ids.
    return owner.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH or owner.classic is not None


def _member_id(context: StepContext, request: ConsumerGroupHeartbeat) -> str:
    if request.member_id:
        return request.member_id
    context.rule("HB21")
    return generated_member_id(context, request.client_id, request.instance_id)


def _check_epoch(
    context: StepContext, request: ConsumerGroupHeartbeat, member: ConsumerMember, owned: Owned | None
) -> RuleId:
    """Rows HB25 to HB28: return the row that accepts the request's epoch."""
    received = request.member_epoch
    if received == member.member_epoch:
        return context.rule("HB26")
    # The answer with the new epoch may have been lost.
    is_previous = member.previous_epoch == received < member.member_epoch
    if is_previous and owned is not None and _is_part_of(owned, member.assigned):
        return context.rule("HB27")
    raise fenced(context, received, member, ("HB25", "HB28"), "partitions")


def _is_part_of(owned: Owned, assigned: Mapping[bytes, Mapping[int, int]]) -> bool:
    return all(assigned.get(topic_id, {}).keys() >= set(numbers) for topic_id, numbers in owned.items())


# A ConsumerGroupHeartbeat by which a member leaves, permanently or temporarily. Rows HB37 to HB42.
#
# Source: GroupMetadataManager.consumerGroupLeave.


def leave(context: StepContext, request: ConsumerGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Remove the member, or mark a static member as temporarily away. The member's epoch is not checked."""
    group, member_id = context.group_of(ConsumerGroup), request.member_id
    member = known_member(context, request, group.members, group.static_members, ("HB39", "HB40", "HB37"))
    epoch = request.member_epoch
    if epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        row = context.rule("HB42")
        _leave_for_a_while(context, row, member)
    else:
        row = context.rule("HB38" if request.instance_id is None else "HB41")
        fence(context, row, [member_id], "left the group")
    context.reply(reply_to, ConsumerGroupHeartbeatResponse, row, member_id=member_id, member_epoch=epoch)


def _leave_for_a_while(context: StepContext, rule: RuleId, member: ConsumerMember) -> None:
    """Free the partitions that the static member was revoking. It keeps the others until its session ends."""
    if member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        return
    kept = {topic_id: dict.fromkeys(numbers, 0) for topic_id, numbers in member.assigned.items()}
    context.group_of(ConsumerGroup).assign(member, kept, {})
    member.member_epoch = LEAVE_GROUP_STATIC_MEMBER_EPOCH
    # The member waits for nothing (unlike KAFKA-20641).
    member.state = MemberState.STABLE
    member.rebalance_deadline_ms = None
    member.revoking_since_ms = None
    context.record_member(
        rule,
        EntryType.MEMBER_LEFT_TEMPORARILY,
        member,
        "the static member left for a while; its partitions wait for it until its session ends",
        deadline_ms=member.session_deadline_ms,
        member_epoch=member.member_epoch,
    )


# Requests of the consumer protocol for a group id that has no consumer group. Rows HB15, HB17 to HB19,
# HB36, AD2.
#
# Source: GroupMetadataManager.getOrMaybeCreateConsumerGroup.


_KIND = "consumer group"


def get_or_create_group(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """Make sure that there is a consumer group: for a request that joins, create it or convert the classic
    group to one. Raise RequestRefused if there is none and the request does not join, or if the group cannot
    be converted.
    """
    if context.has_group and isinstance(context.group, ConsumerGroup):
        if request.member_epoch != 0:
            context.rule("HB16")
        return
    if request.member_epoch != 0:
        raise _no_consumer_group(context, leaves=request.member_epoch < 0)
    if context.has_group and not isinstance(context.group, ClassicGroup):
        raise _of_another_type(context.rule("HB19"), context.group_id)
    context.save()
    if not context.has_group:
        reason = "first ConsumerGroupHeartbeat for this group id"
        context.create_group(ConsumerGroup, context.rule("HB15"), reason)
    elif context.group.is_empty:
        reason = "the Empty classic group becomes a consumer group; its offsets stay"
        restart_group(context, context.rule("HB17"), ConsumerGroup, reason)
    else:
        context.rule("HB18")
        upgrade(context, request)


def _no_consumer_group(context: StepContext, *, leaves: bool) -> RequestRefused:
    if not context.has_group:
        missing = context.rule("HB36" if leaves else "HB15")
        return RequestRefused(
            missing, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {context.group_id} does not exist."
        )
    row = "HB19"
    if isinstance(context.group, ClassicGroup):
        row = "HB17" if context.group.is_empty else "HB18"
    return _of_another_type(context.rule("HB36" if leaves else row), context.group_id)


def _of_another_type(rule: RuleId, group_id: str) -> RequestRefused:
    return RequestRefused(rule, ErrorCode.GROUP_ID_NOT_FOUND, is_not(group_id, _KIND))


describe_no_group = not_found("AD2", _KIND, ConsumerGroupDescribeResponse)
refusal_of_heartbeat = refusal("HB19", _KIND, check_request)
refusal_of_describe = refusal("AD2", _KIND)


def _handle_heartbeat(context: StepContext, request: ConsumerGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Handle the heartbeat of a member or of a sender that joins. Raise RequestRefused if it may not
    continue.
    """
    owned = _owned(request.topic_partitions)
    group = context.group_of(ConsumerGroup)
    sender = identify(context, request, owned)
    _check_capacity(context, request, sender)
    if _has_new_pattern(request, sender):
        context.save()
    if request.topics is not None:
        merge_reported(context, group, request.topics)
    member = _find_or_admit(context, request, sender)
    assigned_before = member.assigned
    update_and_reconcile(context, group, member, _update(request, member), owned)
    arm_session(context, member)
    row, is_full = _answer_row(context, request, assigned_before != member.assigned)
    context.reply(
        reply_to,
        ConsumerGroupHeartbeatResponse,
        row,
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=SETTINGS.of(context).heartbeat_interval_ms,
        assignment=assigned_partitions(member.assigned) if is_full else None,
        look=pattern_to_check(context, group, member) or UNSET,
    )


heartbeat = heartbeat_handler(check_request, get_or_create_group, leave, _handle_heartbeat)


def _check_capacity(context: StepContext, request: ConsumerGroupHeartbeat, sender: SenderIdentity) -> None:
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    if not names and not regex:
        return
    resolved, reported = context.group_of(ConsumerGroup).resolved_regexes, dict(request.topics or {})
    before = sender.predecessor
    if before is not None:
        names = before.subscribed_topic_names if names is None else names
        regex = before.subscribed_topic_regex if regex is None else regex
    topics = set(names or ())
    if regex and regex in resolved:
        topics.update(resolved[regex].topics)
    elif regex and request.regex is not None:
        topics.update(request.regex.topics)
        reported.update(request.regex.topics)
    message = (
        f"Group {context.group_id} would have more partitions than "
        f"group.max.partitions, {context.config.group_max_partitions}."
    )
    event = EntryType.JOIN_REFUSED if request.member_epoch == 0 else None
    check_capacity(context, sender, topics, reported, message, event)


def _has_new_pattern(request: ConsumerGroupHeartbeat, sender: SenderIdentity) -> bool:
    """Return True if the request changes its member's pattern, which may still be refused."""
    before = sender.predecessor
    regex = request.subscribed_topic_regex
    return bool(regex) and (before is None or before.subscribed_topic_regex != regex)


def _find_or_admit(
    context: StepContext, request: ConsumerGroupHeartbeat, sender: SenderIdentity
) -> ConsumerMember:
    """Return the sender's member. A new member is added, or replaces the static member."""
    member = sender.member
    if member is None:
        return admit(context, sender, client_of(request), "joined the group")
    _record_return(context, request, sender.rule, member)
    return member


def _record_return(
    context: StepContext, request: ConsumerGroupHeartbeat, rule: RuleId, member: ConsumerMember
) -> None:
    """Record that a known member joined again, or changed its protocol."""
    if member.classic is not None:
        reason = "continues with the consumer protocol instead of the classic protocol"
    elif member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        reason = "came back with its member id; it keeps its partitions"
    elif request.member_epoch == 0:
        reason = "joined again with its member id; it keeps its epoch and its partitions"
    else:
        return
    context.record_member(rule, EntryType.MEMBER_REJOINED, member, reason, member_epoch=member.member_epoch)


def _update(request: ConsumerGroupHeartbeat, member: ConsumerMember) -> Update:
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    assignor, timeout_ms = request.server_assignor, request.rebalance_timeout_ms
    # Fields that the request omits keep their values.
    return Update(
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
    """Return the topics that the request reports for the member's pattern, or None."""
    if request.subscribed_topic_regex is not None or not request.looked:
        return request.regex
    return request.looked.get(member.subscribed_topic_regex)


def _answer_row(
    context: StepContext, request: ConsumerGroupHeartbeat, has_changed: bool
) -> tuple[RuleId, bool]:
    """Rows HB58 to HB61: return the row of the answer, and True if the answer has the assignment."""
    if request.member_epoch == 0:
        return context.rule("HB58"), True
    subscribes = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    if request.rebalance_timeout_ms != -1 and subscribes and request.topic_partitions is not None:
        return context.rule("HB59"), True
    return (context.rule("HB60"), True) if has_changed else (context.rule("HB61"), False)


def _owned(topic_partitions: list[TopicIdPartitions] | None) -> Owned | None:
    if topic_partitions is None:
        return None
    owned: dict[bytes, set[int]] = {}
    for topic in topic_partitions:
        if topic.partitions:
            owned.setdefault(topic.topic_id.bytes, set()).update(topic.partitions)
    return owned
