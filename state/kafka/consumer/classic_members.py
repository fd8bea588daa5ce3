"""The requests of classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from collections import Counter

from kafka_why.contract.kafka.history import EntryType, MemberState
from kafka_why.contract.kafka.requests import (
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    ReplyTo,
    SyncGroup,
)
from kafka_why.contract.kafka.responses import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    LeftMember,
    SyncGroupResponse,
)
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import (
    PROTOCOL_TYPE,
    ProtocolError,
    Subscription,
    decode_subscription,
)
from state.kafka.classic import rebalance
from state.kafka.classic import requests as classic_requests
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer import migration
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
from state.kafka.consumer.migration import assignment_bytes, by_topic_id
from state.kafka.consumer.target import arm_session, maybe_update_target
from state.kafka.consumer_group import ClassicMember, ConsumerGroup, ConsumerMember
from state.kafka.context import RuleAndError, RuleId, StepContext, deciding_rule, restart_group
from state.kafka.group import reported
from state.kafka.modern import (
    ClientIdentity,
    RequestRefused,
    bump,
    merge_reported,
    record_refusal,
    refresh_fingerprint,
)

# JoinGroup: its sender is, or becomes, a classic member of the group. Rows CV1 to CV18, CV35, DN7, DN8, MI14.
#
# The coordinator assigns, so it answers at once, and no classic member is the leader of such a group. Source:
# GroupMetadataManager.classicGroupJoinToConsumerGroup.


def join(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Admit a classic member, and answer it with its epoch as the generation."""
    refusal = classic_requests.validate_join(context, request)
    if refusal is not None:
        context.reply(reply_to, JoinGroupResponse, *refusal, member_id=request.member_id)
    elif context.group_of(ConsumerGroup).is_empty:
        _join_empty_group(context, request, reply_to)
    else:
        try:
            _join(context, request, reply_to)
        except RequestRefused as refused:
            _refuse(context, request, reply_to, refused)


def _refuse(context: StepContext, request: JoinGroup, reply_to: ReplyTo, refused: RequestRefused) -> None:
    record_refusal(context, refused, request.member_id, _client(request))
    context.reply(reply_to, JoinGroupResponse, refused.rule, refused.error)


def _join_empty_group(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Row CV2: join a new classic group in place of the Empty consumer group. Kafka deletes the consumer
    group even if it then refuses the JoinGroup.
    """
    row = context.rule("CV2")
    error = ErrorCode.NONE
    if request.member_id:
        error = ErrorCode.UNKNOWN_MEMBER_ID
    elif not (request.protocol_type and request.protocols):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if error is not ErrorCode.NONE:
        context.reply(reply_to, JoinGroupResponse, row, error, member_id=request.member_id)
        return
    reason = "a JoinGroup to the Empty consumer group: it becomes a classic group; its offsets stay"
    restart_group(context, row, ClassicGroup, reason)
    classic_requests.join(context, request, reply_to)


def _join(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Rows CV4 to CV18 and CV35: handle a JoinGroup to a group with members. RequestRefused is raised before
    anything changes.
    """
    group = context.group_of(ConsumerGroup)
    _check_policy(context)
    _check_size(context, group, request)
    _check_protocols(context, group, request)
    is_static = request.group_instance_id is not None
    if not (
        request.member_id
        or is_static
        or request.api_version < classic_requests.FIRST_VERSION_WITH_MEMBER_ID_REQUIRED
    ):
        row, member_id = context.rule("CV6"), generated_member_id(context, request.client_id, None)
        context.reply(reply_to, JoinGroupResponse, row, ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        return
    sender = _identify(context, group, request)
    subscription = _parse_subscription(context, request)
    owned = _owned_partitions(context, group, request, subscription)
    _check_capacity(context, request, sender, subscription)
    merge_reported(context, group, request.topics)
    predecessor = sender.predecessor
    if is_static and predecessor is not None and migration.would_downgrade(context, predecessor):
        context.rule("CV15")
        _join_and_downgrade(context, group, request, reply_to, sender, subscription)
        return
    member = _find_or_admit(context, request, sender)
    row = context.rule("CV16")
    update_and_reconcile(context, group, member, _update(request, member, subscription), owned)
    _answer(context, row, request, reply_to, member)


def _check_policy(context: StepContext) -> None:
    if not migration.allows_classic_members(context):
        message = "group.consumer.migration.policy is disabled, so no classic member joins a consumer group"
        raise RequestRefused(
            context.rule("CV35"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message, EntryType.JOIN_REFUSED
        )


def _check_size(context: StepContext, group: ConsumerGroup, request: JoinGroup) -> None:
    # As with HB20, a returning static member does not count.
    if is_full(context, request.member_id) and request.group_instance_id not in group.static_members:
        message = f"the group is full: group.consumer.max.size is {context.config.group_consumer_max_size}"
        raise RequestRefused(
            context.rule("CV4"), ErrorCode.GROUP_MAX_SIZE_REACHED, message, EntryType.JOIN_REFUSED
        )


def _check_protocols(context: StepContext, group: ConsumerGroup, request: JoinGroup) -> None:
    classic = [member.classic for member in group.members.values() if member.classic is not None]
    offered = Counter(name for one in classic for name in {protocol.name for protocol in one.protocols})
    is_shared = any(offered[protocol.name] == len(classic) for protocol in request.protocols)
    if request.protocol_type != PROTOCOL_TYPE or not is_shared:
        message = "no offered protocol is one that all classic members offer"
        raise RequestRefused(context.rule("CV5"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)


def _client(request: JoinGroup) -> ClientIdentity:
    return ClientIdentity(request.client_id, request.client_host, request.group_instance_id)


def _identify(context: StepContext, group: ConsumerGroup, request: JoinGroup) -> SenderIdentity:
    """Rows CV7 and CV9 to CV14: find the sender's member, or give the sender a member id."""
    instance_id, member_id = request.group_instance_id, request.member_id
    if not member_id:
        context.rule("CV7")
        member_id = generated_member_id(context, request.client_id, instance_id)
    if instance_id is None:
        member = group.members.get(member_id)
        return SenderIdentity(context.rule("CV10" if member is None else "CV9"), member_id, member)
    owner = group.members.get(group.static_members.get(instance_id, ""))
    if not request.member_id:
        if owner is None:
            return SenderIdentity(context.rule("CV11"), member_id)
        return SenderIdentity(context.rule("CV12"), member_id, replaced=owner)
    if owner is None:
        message = f"no member has the instance id {instance_id}"
        raise RequestRefused(context.rule("CV13"), ErrorCode.UNKNOWN_MEMBER_ID, message)
    row = context.rule("CV14")
    if owner.member_id != member_id:
        message = f"member {owner.member_id} has taken over the instance id {instance_id}"
        raise RequestRefused(row, ErrorCode.FENCED_INSTANCE_ID, message)
    return SenderIdentity(row, member_id, owner)


def _parse_subscription(context: StepContext, request: JoinGroup) -> Subscription:
    try:
        return decode_subscription(request.protocols[0].metadata)
    except ProtocolError as error:
        raise RequestRefused(context.rule("CV8"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None


def _owned_partitions(
    context: StepContext, group: ConsumerGroup, request: JoinGroup, subscription: Subscription
) -> Partitions:
    """Return the partitions that the sender owns, by topic id."""
    found = reported(group.topics, request.topics or {}, group.deleted_topic_ids)
    owned, unknown = by_topic_id(subscription.owned_partitions, {**group.topics, **found})
    if unknown:
        message = f"the ids of the topics {', '.join(unknown)} are not known"
        raise RequestRefused(context.rule("MI14"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
    return owned


def _check_capacity(
    context: StepContext, request: JoinGroup, sender: SenderIdentity, subscription: Subscription
) -> None:
    most = context.config.group_max_partitions
    message = f"the group would have too many partitions: group.max.partitions is {most}"
    topics = set(subscription.topics)
    check_capacity(context, sender, topics, request.topics, message, EntryType.JOIN_REFUSED)


def _find_or_admit(context: StepContext, request: JoinGroup, sender: SenderIdentity) -> ConsumerMember:
    """Return the sender's member. A new member is added, or replaces the static member."""
    member, why = sender.member, request.reason
    if member is None:
        reason = "a new member joined with the classic protocol"
        return admit(context, sender, _client(request), reason, client_reason=why)
    reason = "a classic member joined again"
    if member.classic is None:
        reason = "a member changed to the classic protocol"
    context.record_member(sender.rule, EntryType.MEMBER_REJOINED, member, reason, client_reason=why)
    return member


def _update(request: JoinGroup, member: ConsumerMember, subscription: Subscription) -> Update:
    return Update(
        client_id=request.client_id,
        client_host=request.client_host,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=None,
        subscribed_topic_names=sorted(set(subscription.topics)),
        subscribed_topic_regex="",
        classic=ClassicMember(request.session_timeout_ms, request.protocols),
    )


def _answer(
    context: StepContext, rule: RuleId, request: JoinGroup, reply_to: ReplyTo, member: ConsumerMember
) -> None:
    assert member.classic is not None
    # The member now has to sync and to renew its session.
    member.classic.sync_deadline_ms = context.deadline(request.rebalance_timeout_ms)
    arm_session(context, member)
    context.reply(
        reply_to,
        JoinGroupResponse,
        rule,
        generation_id=member.member_epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=request.protocols[0].name,
        member_id=member.member_id,
    )


def _join_and_downgrade(
    context: StepContext,
    group: ConsumerGroup,
    request: JoinGroup,
    reply_to: ReplyTo,
    sender: SenderIdentity,
    subscription: Subscription,
) -> None:
    """Rows DN7 and DN8: the sender replaces the last member on the consumer protocol.

    Kafka differs twice: it answers with generation 0 when a rebalance starts, and it starts none if another
    member has not reached its target, so two members have the same partition for a time.
    """
    is_settled = _needs_no_rebalance(context, group, sender, subscription)
    member = _find_or_admit(context, request, sender)
    member.client_id, member.client_host = request.client_id, request.client_host
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.classic = ClassicMember(request.session_timeout_ms, request.protocols)
    who = f"instance {member.instance_id} came back as {member.member_id} on the classic protocol"
    row = context.rule("DN7" if is_settled else "DN8")
    classic = migration.convert(context, row, who)
    if is_settled:
        context.reply(
            reply_to,
            JoinGroupResponse,
            row,
            generation_id=classic.generation,
            protocol_type=classic.protocol_type,
            protocol_name=classic.protocol_name,
            member_id=member.member_id,
        )
        return
    classic.set_parked_join(classic.members[member.member_id], reply_to)
    reason = f"{who}, and the target assignment is not that of the members"
    rebalance.prepare(
        context,
        context.group_of(ClassicGroup),
        row,
        reason,
        member_id=member.member_id,
        client_reason=request.reason,
    )


def _needs_no_rebalance(
    context: StepContext, group: ConsumerGroup, sender: SenderIdentity, subscription: Subscription
) -> bool:
    """Return True if this JoinGroup needs no new target and all other members have reached theirs."""
    before = sender.predecessor
    assert before is not None
    same_topics = sorted(set(subscription.topics)) == before.subscribed_topic_names
    if (
        not same_topics
        or before.subscribed_topic_regex
        or refresh_fingerprint(context.group_of(ConsumerGroup))
    ):
        return False
    others = [member for member in group.members.values() if member is not before]
    is_current = group.assignment_epoch == group.group_epoch
    return is_current and all(other.is_reconciled_to(group.assignment_epoch) for other in others)


# SyncGroup, Heartbeat and LeaveGroup to a group of the consumer protocol. Rows CV19 to CV34.
#
# The generation of a classic member is its member epoch. Source: GroupMetadataManager
# (classicGroupSyncToConsumerGroup, classicGroupHeartbeatToConsumerGroup, classicGroupLeaveToConsumerGroup).


def sync(context: StepContext, request: SyncGroup, reply_to: ReplyTo) -> None:
    """Answer a classic member with its assignment. The assignments that the request carries are ignored."""
    group = context.group_of(ConsumerGroup)
    refusal = classic_requests.validate_sync_protocol(context, request) or _validate(context, group, request)
    if refusal is not None:
        context.reply(reply_to, SyncGroupResponse, *refusal)
        return
    member, classic = _classic_member(group, request.member_id)
    first = classic.protocols[0]
    if _differ(request.protocol_type, PROTOCOL_TYPE) or _differ(request.protocol_name, first.name):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        context.reply(reply_to, SyncGroupResponse, context.rule("CV23"), error)
        return
    if _is_behind(group, member) and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _await_join(context, member, classic)
        error = ErrorCode.REBALANCE_IN_PROGRESS
        context.reply(reply_to, SyncGroupResponse, context.rule("CV24"), error)
        return
    classic.sync_deadline_ms = None
    arm_session(context, member)
    context.reply(
        reply_to,
        SyncGroupResponse,
        context.rule("CV25"),
        protocol_type=PROTOCOL_TYPE,
        protocol_name=first.name,
        assignment=assignment_bytes(member.assigned, group.names_by_id(), first.metadata),
    )


def heartbeat(context: StepContext, request: Heartbeat, reply_to: ReplyTo) -> None:
    """Renew the session of a classic member. The answer says whether the member has to join again."""
    group = context.group_of(ConsumerGroup)
    refusal = _validate(context, group, request)
    if refusal is not None:
        context.rule("CV26")
        context.reply(reply_to, HeartbeatResponse, *refusal)
        return
    member, classic = _classic_member(group, request.member_id)
    arm_session(context, member)
    _update_target_of_classic_members(context, group)
    if not _has_to_join(context, group, member):
        context.reply(reply_to, HeartbeatResponse, context.rule("CV28"))
        return
    _await_join(context, member, classic)
    context.reply(reply_to, HeartbeatResponse, context.rule("CV27"), ErrorCode.REBALANCE_IN_PROGRESS)


def leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    """Remove members of either protocol, all at once (row CV34)."""
    group = context.group_of(ConsumerGroup)
    found: dict[str, str | None] = {}
    verdicts = [_leave_one(context, group, leaving, found) for leaving in request.members]
    if found:
        row = context.rule("CV34")
        # A member on the consumer protocol leaves by a heartbeat, so only an administrator names it here.
        is_own = any(group.members[member_id].classic is not None for member_id in found)
        reason = "left the group" if is_own else "an administrator asked for it"
        fence(context, row, list(found), reason, client_reasons=found)
    members = [
        LeftMember(leaving.member_id, leaving.group_instance_id, error)
        for leaving, (_, error) in zip(request.members, verdicts, strict=True)
    ]
    context.reply(reply_to, LeaveGroupResponse, deciding_rule(verdicts), members=members)


def _validate(
    context: StepContext, group: ConsumerGroup, request: SyncGroup | Heartbeat
) -> RuleAndError | None:
    """Rows CV19 to CV22: return the first row that applies with its error, or None."""
    error = group.validate_instance(request.member_id, request.group_instance_id)
    if error is ErrorCode.FENCED_INSTANCE_ID:
        return context.rule("CV20"), error
    member = group.members.get(request.member_id)
    if error is not ErrorCode.NONE or member is None:
        return context.rule("CV19"), ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None:
        return context.rule("CV21"), ErrorCode.UNKNOWN_MEMBER_ID
    if request.generation_id != member.member_epoch:
        return context.rule("CV22"), ErrorCode.ILLEGAL_GENERATION
    return None


def _classic_member(group: ConsumerGroup, member_id: str) -> tuple[ConsumerMember, ClassicMember]:
    member = group.members[member_id]
    assert member.classic is not None, "the member was checked to be on the classic protocol"
    return member, member.classic


def _differ(given: str | None, own: str) -> bool:
    return given is not None and given != own


def _is_behind(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Row CV29: return True if the member has to follow a newer target.

    A new group epoch alone makes no member join again: its target has to be computed first (KAFKA-20272).
    """
    return member.member_epoch < group.assignment_epoch


def _has_to_join(context: StepContext, group: ConsumerGroup, member: ConsumerMember) -> bool:
    if _is_behind(group, member):
        context.rule("CV29")
        return True
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        context.rule("CV30")
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and _are_all_released(group, member)


def _are_all_released(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return True if no other member holds a partition of the member's target."""
    return all(
        group.held.get(topic_id, {}).get(number, member.member_id) == member.member_id
        for topic_id, numbers in group.target.get(member.member_id, {}).items()
        for number in numbers
    )


def _await_join(context: StepContext, member: ConsumerMember, classic: ClassicMember) -> None:
    """Row TM4: arm the join timer unless it is armed."""
    if classic.join_deadline_ms is None:
        classic.join_deadline_ms = context.deadline(member.rebalance_timeout_ms)


def _update_target_of_classic_members(context: StepContext, group: ConsumerGroup) -> None:
    """Row DN13: compute a due target at a Heartbeat if the group has only classic members.

    Without this, the partitions of a member that left stay unassigned, as they do in Kafka, because classic
    members that have their target do not join again.
    """
    if any(member.classic is None for member in group.members.values()):
        return
    if group.metadata_stale and refresh_fingerprint(group):
        bump(context, context.rule("DN13"), "the topics that members subscribe to have changed")
    if group.group_epoch > group.assignment_epoch:
        context.rule("DN13")
        maybe_update_target(context, group)


def _leave_one(
    context: StepContext, group: ConsumerGroup, leaving: LeavingMember, found: dict[str, str | None]
) -> RuleAndError:
    """Rows CV31 to CV33: add a member that may leave to `found`, with its client's reason."""
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if instance_id is not None and not member_id:
        member_id = group.static_members.get(instance_id, "")
    else:
        error = group.validate_instance(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return context.rule("CV33"), error
    if member_id not in group.members:
        return context.rule("CV33"), ErrorCode.UNKNOWN_MEMBER_ID
    found.setdefault(member_id, leaving.reason)
    return context.rule("CV31" if instance_id is None else "CV32"), ErrorCode.NONE
