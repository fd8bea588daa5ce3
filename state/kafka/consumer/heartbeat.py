"""ConsumerGroupHeartbeat: a member joins, keeps its session alive, and moves to its target assignment. Rows
HB1 to HB61.

Source: GroupCoordinatorService.consumerGroupHeartbeat, GroupMetadataManager.consumerGroupHeartbeat.
"""

from uuid import UUID

from msgspec import UNSET

from state.errors import ErrorCode
from state.kafka.consumer.group_of import check_group, get_or_create_group
from state.kafka.consumer.identity import Identity, identify, replace_member
from state.kafka.consumer.leaving import leave
from state.kafka.consumer.member_update import Update, update_member
from state.kafka.consumer.reconcile import Owned, reconcile
from state.kafka.consumer.refusal import Refused, record_refusal
from state.kafka.consumer.regex_checked import look_to_ask
from state.kafka.consumer.request_checks import check_request
from state.kafka.consumer.target import has_room, maybe_update_target
from state.kafka.consumer.topics import merge_reported
from state.kafka.consumer_group import (
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    AssignedPartitions,
    ConsumerGroup,
    ConsumerMember,
)
from state.kafka.context import RuleId, StepContext
from state.kafka.history import EntryType
from state.kafka.requests import ConsumerGroupHeartbeat, RegexResolution, ReplyTo, TopicIdPartitions
from state.kafka.responses import AssignedTopicPartitions, ConsumerGroupHeartbeatResponse


def heartbeat(context: StepContext, request: ConsumerGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Handle a heartbeat to any group: one that does not exist, a classic one, or a consumer group. An error
    changes nothing of the group.
    """
    saved = None
    try:
        check_request(context, request)
        if request.member_epoch < 0:
            return leave(context, request, reply_to)
        if request.member_epoch > 0:
            check_group(context)
        elif not (context.has_group and isinstance(context.group, ConsumerGroup)):
            saved = context.save()
            get_or_create_group(context, request)
        owned = _owned(request.topic_partitions)
        identity = identify(context, request, owned, reply_to)
        _check_room(context, request, identity)
        if saved is None and _has_new_pattern(request, identity):
            saved = context.save()
        _go_on(context, request, identity, owned, reply_to)
    except Refused as refused:
        if saved is not None:
            context.undo_to(saved)
        if refused.after is not None:
            refused.after(context)
        _refuse(context, request, refused, reply_to)


def _refuse(
    context: StepContext, request: ConsumerGroupHeartbeat, refused: Refused, reply_to: ReplyTo
) -> None:
    client = request.client_id, request.client_host
    record_refusal(context, refused, request.member_id, request.instance_id, client)
    context.reply(
        reply_to, ConsumerGroupHeartbeatResponse, refused.rule, refused.error, error_message=refused.message
    )


def _check_room(context: StepContext, request: ConsumerGroupHeartbeat, identity: Identity) -> None:
    """Raise Refused if the group would have more partitions than the coordinator assigns to one group."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    if not names and not regex:
        return
    group, reported = context.consumer, dict(request.topics or {})
    before = identity.member or identity.replaced
    member_id = identity.member_id
    if before is not None:
        member_id = before.member_id
        names = before.subscribed_topic_names if names is None else names
        regex = before.subscribed_topic_regex if regex is None else regex
    topics = set(names or ())
    if regex and regex in group.resolved_regexes:
        topics.update(group.resolved_regexes[regex].topics)
    elif regex and request.regex is not None:
        topics.update(request.regex.topics)
        reported.update(request.regex.topics)
    if not has_room(context.config, group, member_id, topics, reported):
        message = (
            f"Group {context.group_id} would have more partitions than "
            f"group.max.partitions, {context.config.group_max_partitions}."
        )
        event = EntryType.JOIN_REFUSED if request.member_epoch == 0 else None
        raise Refused(context.rule("TA31"), ErrorCode.GROUP_MAX_SIZE_REACHED, message, event)


def _has_new_pattern(request: ConsumerGroupHeartbeat, identity: Identity) -> bool:
    """Whether the request brings its member a pattern, which may yet be refused."""
    before = identity.member or identity.replaced
    regex = request.subscribed_topic_regex
    return bool(regex) and (before is None or before.subscribed_topic_regex != regex)


def _go_on(
    context: StepContext,
    request: ConsumerGroupHeartbeat,
    identity: Identity,
    owned: Owned | None,
    reply_to: ReplyTo,
) -> None:
    """Update the member and the group epoch, compute a due target, take the member one step towards it, and
    answer.
    """
    if request.topics is not None:
        merge_reported(context, request.topics)
    member = _member(context, request, identity)
    assigned_before = member.assigned
    subscription_changed = update_member(context, member, _update(request, member))
    maybe_update_target(context)
    reconcile(context, member, owned, subscription_changed)
    context.arm_consumer_session(member)
    row, is_full = _answer_row(context, request, assigned_before != member.assigned)
    context.reply(
        reply_to,
        ConsumerGroupHeartbeatResponse,
        row,
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=context.group_settings.heartbeat_interval_ms,
        assignment=_assignment(member.assigned) if is_full else None,
        look=look_to_ask(context, member) or UNSET,
    )


def _member(context: StepContext, request: ConsumerGroupHeartbeat, identity: Identity) -> ConsumerMember:
    """The sender's member, which is added or replaces another one if it is new."""
    client = request.client_id, request.client_host
    if identity.replaced is not None:
        return replace_member(context, identity.rule, identity.replaced, identity.member_id, *client)
    if identity.member is not None:
        _note_return(context, request, identity.rule, identity.member)
        return identity.member
    member = ConsumerMember(
        member_id=identity.member_id, client_id=request.client_id, client_host=request.client_host
    )
    context.consumer.add(member)
    instance_id = request.instance_id
    if instance_id is not None:
        member.instance_id = instance_id
        context.consumer.static_members[instance_id] = member.member_id
    context.record_member(identity.rule, EntryType.MEMBER_ADDED, member, "joined the group")
    return member


def _note_return(
    context: StepContext, request: ConsumerGroupHeartbeat, rule: RuleId, member: ConsumerMember
) -> None:
    """Record that a known member joined again, or changed its protocol."""
    if member.classic is not None:
        reason = "goes on under the consumer protocol; it was on the classic protocol"
    elif member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        reason = "came back with its member id; it keeps its partitions"
    elif request.member_epoch == 0:
        reason = "joined again with its member id; it keeps its epoch and its partitions"
    else:
        return
    context.record_member(rule, EntryType.MEMBER_REJOINED, member, reason, member_epoch=member.member_epoch)


def _update(request: ConsumerGroupHeartbeat, member: ConsumerMember) -> Update:
    """The member's fields after the request. What the request leaves out stays."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    assignor, timeout_ms = request.server_assignor, request.rebalance_timeout_ms
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
    """What the member's pattern matches by this request, None if it does not say."""
    if request.subscribed_topic_regex is not None or not request.looked:
        return request.regex
    return request.looked.get(member.subscribed_topic_regex)


def _answer_row(
    context: StepContext, request: ConsumerGroupHeartbeat, has_changed: bool
) -> tuple[RuleId, bool]:
    """The row of the answer, and whether the answer has the assignment (rows HB58 to HB61)."""
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


def _assignment(assigned: AssignedPartitions) -> list[AssignedTopicPartitions]:
    return [
        AssignedTopicPartitions(UUID(bytes=topic_id), sorted(numbers))
        for topic_id, numbers in sorted(assigned.items())
    ]
