"""ConsumerGroupHeartbeat: a member joins, keeps its session alive, and moves to its target assignment. Rows
HB1 to HB61.

Source: GroupCoordinatorService.consumerGroupHeartbeat, GroupMetadataManager.consumerGroupHeartbeat.
"""

from collections.abc import Callable

from msgspec import UNSET

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    ConsumerGroupHeartbeat,
    RegexResolution,
    ReplyTo,
    TopicIdPartitions,
)
from kafka_why.contract.kafka.responses import ConsumerGroupHeartbeatResponse
from kafka_why.contract.kafka.states import LEAVE_GROUP_STATIC_MEMBER_EPOCH
from state.kafka.consumer.identity import identify
from state.kafka.consumer.joining import Sender, admit, check_room, go_on
from state.kafka.consumer.leaving import leave
from state.kafka.consumer.member_update import Update
from state.kafka.consumer.no_consumer_group import maybe_create_consumer_group
from state.kafka.consumer.reconcile import Owned
from state.kafka.consumer.regex_checked import look_to_ask
from state.kafka.consumer.request_checks import check_request
from state.kafka.consumer.session import arm_session
from state.kafka.consumer.settings import SETTINGS
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.answered import assigned_partitions
from state.kafka.modern.refusal import Client, Refused, record_refusal
from state.kafka.modern.topics import merge_reported


def heartbeat(context: StepContext, request: ConsumerGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Handle a heartbeat to a consumer group. An error changes nothing of the group."""
    _answer(context, request, reply_to, _note_group)


def heartbeat_no_consumer_group(
    context: StepContext, request: ConsumerGroupHeartbeat, reply_to: ReplyTo
) -> None:
    """Handle a heartbeat to a group id that has no consumer group, but may get one. An error changes nothing
    of what there is.
    """
    _answer(context, request, reply_to, maybe_create_consumer_group)


def _note_group(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    if request.member_epoch != 0:
        context.rule("HB16")


def _answer(
    context: StepContext,
    request: ConsumerGroupHeartbeat,
    reply_to: ReplyTo,
    enter_group: Callable[[StepContext, ConsumerGroupHeartbeat], None],
) -> None:
    try:
        check_request(context, request)
        enter_group(context, request)
        if request.member_epoch < 0:
            leave(context, request, reply_to)
        else:
            _beat(context, request, reply_to)
    except Refused as refused:
        context.undo()
        if refused.after is not None:
            refused.after(context)
        _refuse(context, request, refused, reply_to)


def _beat(context: StepContext, request: ConsumerGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Handle the heartbeat of a sender that joins, or is a member. Raise Refused if it may not go on."""
    owned = _owned(request.topic_partitions)
    sender = identify(context, request, owned)
    _check_room(context, request, sender)
    if _has_new_pattern(request, sender):
        context.save()
    if request.topics is not None:
        merge_reported(context, context.group_of(ConsumerGroup), request.topics)
    member = _member(context, request, sender)
    assigned_before = member.assigned
    go_on(context, member, _update(request, member), owned)
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
        look=look_to_ask(context, member) or UNSET,
    )


def _refuse(
    context: StepContext, request: ConsumerGroupHeartbeat, refused: Refused, reply_to: ReplyTo
) -> None:
    record_refusal(context, refused, request.member_id, _client(request))
    context.reply(
        reply_to, ConsumerGroupHeartbeatResponse, refused.rule, refused.error, error_message=refused.message
    )


def _check_room(context: StepContext, request: ConsumerGroupHeartbeat, sender: Sender) -> None:
    """Raise Refused if the group has no room for what the sender subscribes to."""
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
    check_room(context, sender, topics, reported, message, event)


def _has_new_pattern(request: ConsumerGroupHeartbeat, sender: Sender) -> bool:
    """Whether the request brings its member a pattern, which may yet be refused."""
    before = sender.predecessor
    regex = request.subscribed_topic_regex
    return bool(regex) and (before is None or before.subscribed_topic_regex != regex)


def _member(context: StepContext, request: ConsumerGroupHeartbeat, sender: Sender) -> ConsumerMember:
    """The sender's member, which is added or replaces another one if it is new."""
    member = sender.member
    if member is None:
        return admit(context, sender, _client(request), "joined the group")
    _note_return(context, request, sender.rule, member)
    return member


def _client(request: ConsumerGroupHeartbeat) -> Client:
    return Client(request.client_id, request.client_host, request.instance_id)


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
