"""The requests of classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup. The
client of a classic member uses the classic protocol.

A row, such as CV5, is a rule of docs/rules-consumer.md. `context.cite` records that a row was applied.
"""

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
    ConsumerSender,
    MemberUpdate,
    admit,
    fence,
    generated_member_id,
    is_full,
    update_and_reconcile,
)
from state.kafka.consumer.migration import assignment_bytes, by_topic_id
from state.kafka.consumer.target import SETTINGS, maybe_update_target
from state.kafka.consumer_group import ClassicMember, ConsumerGroup, ConsumerMember
from state.kafka.context import RuleAndError, RuleId, StepContext, deciding_rule
from state.kafka.group import topics_from_request, validate_instance
from state.kafka.modern import (
    ClientIdentity,
    RequestRefused,
    bump,
    check_capacity,
    merge_reported_topics,
    record_refusal,
    refresh_fingerprint,
)

# JoinGroup: its sender is, or becomes, a classic member of the group. Rows CV1 to CV18, CV35, DN7, DN8, MI14.
#
# The coordinator assigns, so it answers at once, and no classic member is the leader of such a group. Source:
# GroupMetadataManager.classicGroupJoinToConsumerGroup.


def join(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Handle the JoinGroup of a classic member. The generation in the answer is the member's epoch."""
    refusal = classic_requests.validate_join(context, request)
    if refusal is not None:
        context.reply(reply_to, JoinGroupResponse, *refusal, member_id=request.member_id)
    elif context.group_of(ConsumerGroup).is_empty:
        classic_requests.join_instead(context, request, reply_to, "consumer", refused="CV2", joined="CV2")
    else:
        try:
            _join(context, request, reply_to)
        except RequestRefused as refused:
            _refuse(context, request, reply_to, refused)


def _refuse(context: StepContext, request: JoinGroup, reply_to: ReplyTo, refused: RequestRefused) -> None:
    """Answer the JoinGroup with the error, and record the refusal if it needs a history entry."""
    record_refusal(context, refused, request.member_id, _client(request))
    context.reply(reply_to, JoinGroupResponse, refused.rule, refused.error)


def _join(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Rows CV4 to CV18 and CV35: handle a JoinGroup to a group with members. RequestRefused is raised before
    anything changes.
    """
    group = context.group_of(ConsumerGroup)
    _check_policy(context)
    _check_size(context, group, request)
    _check_protocols(context, group, request)
    is_static = request.group_instance_id is not None
    if (
        not request.member_id
        and not is_static
        and request.api_version >= classic_requests.FIRST_VERSION_WITH_MEMBER_ID_REQUIRED
    ):
        row, member_id = context.cite("CV6"), generated_member_id(context, request.client_id, None)
        context.reply(reply_to, JoinGroupResponse, row, ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        return
    sender = _identify(context, group, request)
    subscription = _parse_subscription(context, request)
    owned = _owned_partitions(context, group, request, subscription)
    _check_capacity(context, request, sender, subscription)
    merge_reported_topics(context, group, request.topics)
    existing = sender.existing_member
    if is_static and existing is not None and migration.would_downgrade(context, existing):
        context.cite("CV15")
        _join_and_downgrade(context, group, request, reply_to, sender, subscription)
        return
    member = _find_or_admit(context, request, sender)
    row = context.cite("CV16")
    update_and_reconcile(context, group, member, _member_update(request, member, subscription), owned)
    _answer(context, row, request, reply_to, member)


def _check_policy(context: StepContext) -> None:
    """Row CV35: raise RequestRefused if the policy allows no classic members."""
    if not migration.allows_classic_members(context):
        message = "group.consumer.migration.policy is disabled, so no classic member joins a consumer group"
        raise RequestRefused(
            context.cite("CV35"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message, EntryType.JOIN_REFUSED
        )


def _check_size(context: StepContext, group: ConsumerGroup, request: JoinGroup) -> None:
    """Row CV4: refuse a new member if the group is full. A returning static member is not new."""
    if is_full(context, request.member_id) and request.group_instance_id not in group.static_members:
        message = f"the group is full: group.consumer.max.size is {context.config.group_consumer_max_size}"
        raise RequestRefused(
            context.cite("CV4"), ErrorCode.GROUP_MAX_SIZE_REACHED, message, EntryType.JOIN_REFUSED
        )


def _check_protocols(context: StepContext, group: ConsumerGroup, request: JoinGroup) -> None:
    """Row CV5: raise RequestRefused unless the request is a consumer's, and all classic members offer one of
    its protocols.
    """
    classic_members = [member.classic for member in group.members.values() if member.classic is not None]
    name_sets = [{protocol.name for protocol in member.protocols} for member in classic_members]
    is_shared = any(all(protocol.name in names for names in name_sets) for protocol in request.protocols)
    if request.protocol_type != PROTOCOL_TYPE or not is_shared:
        message = "no protocol of the request is offered by all classic members"
        raise RequestRefused(context.cite("CV5"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message)


def _client(request: JoinGroup) -> ClientIdentity:
    return ClientIdentity(request.client_id, request.client_host, request.group_instance_id)


def _identify(context: StepContext, group: ConsumerGroup, request: JoinGroup) -> ConsumerSender:
    """Rows CV7 and CV9 to CV14: return the sender's identity. A sender without a member id gets one.

    Raises RequestRefused if a sender with a member id has an instance id of no member or of another one.
    """
    instance_id, member_id = request.group_instance_id, request.member_id
    if not member_id:
        context.cite("CV7")
        member_id = generated_member_id(context, request.client_id, instance_id)
    if instance_id is None:
        member = group.members.get(member_id)
        return ConsumerSender(context.cite("CV10" if member is None else "CV9"), member_id, member)
    owner = group.members.get(group.static_members.get(instance_id, ""))
    if not request.member_id:
        if owner is None:
            return ConsumerSender(context.cite("CV11"), member_id)
        return ConsumerSender(context.cite("CV12"), member_id, replaced=owner)
    if owner is None:
        message = f"no member has the instance id {instance_id}"
        raise RequestRefused(context.cite("CV13"), ErrorCode.UNKNOWN_MEMBER_ID, message)
    row = context.cite("CV14")
    if owner.member_id != member_id:
        message = f"member {owner.member_id} has taken over the instance id {instance_id}"
        raise RequestRefused(row, ErrorCode.FENCED_INSTANCE_ID, message)
    return ConsumerSender(row, member_id, owner)


def _parse_subscription(context: StepContext, request: JoinGroup) -> Subscription:
    try:
        return decode_subscription(request.protocols[0].metadata)
    except ProtocolError as error:
        raise RequestRefused(context.cite("CV8"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from None


def _owned_partitions(
    context: StepContext, group: ConsumerGroup, request: JoinGroup, subscription: Subscription
) -> Partitions:
    """Return the partitions that the sender owns, by topic id. Raise RequestRefused if the id of one of their
    topics is not known (row MI14).
    """
    added = topics_from_request(group.topics, request.topics or {}, group.deleted_topic_ids)
    owned, unknown = by_topic_id(subscription.owned_partitions, {**group.topics, **added})
    if unknown:
        message = f"the ids of the topics {', '.join(unknown)} are not known"
        raise RequestRefused(context.cite("MI14"), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
    return owned


def _check_capacity(
    context: StepContext,
    request: JoinGroup,
    sender: ConsumerSender,
    subscription: Subscription,
) -> None:
    """Row TA31: raise RequestRefused if the sender's topics would give the group too many partitions."""
    max_partitions, group = context.config.group_max_partitions, context.group_of(ConsumerGroup)
    message = f"the group would have too many partitions: group.max.partitions is {max_partitions}"
    topics, event = set(subscription.topics), EntryType.JOIN_REFUSED
    check_capacity(context, group, sender.id_before, topics, request.topics, event, message)


def _find_or_admit(context: StepContext, request: JoinGroup, sender: ConsumerSender) -> ConsumerMember:
    """Return the sender's member. A new sender is added as a member, or replaces a static member."""
    member, client_reason = sender.member, request.reason
    if member is None:
        reason = "a new member joined with the classic protocol"
        return admit(context, sender, _client(request), reason, client_reason=client_reason)
    reason = "a classic member joined again"
    if member.classic is None:
        reason = "a member changed to the classic protocol"
    context.record_member(sender.rule, EntryType.MEMBER_REJOINED, member, reason, client_reason=client_reason)
    return member


def _member_update(request: JoinGroup, member: ConsumerMember, subscription: Subscription) -> MemberUpdate:
    return MemberUpdate(
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
    """Answer the JoinGroup with the member's epoch as the generation, and arm the member's timers."""
    assert member.classic is not None
    # The member now has to sync and to renew its session.
    member.classic.sync_deadline_ms = context.deadline(request.rebalance_timeout_ms)
    SETTINGS.arm_session(context, member)
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
    sender: ConsumerSender,
    subscription: Subscription,
) -> None:
    """Rows DN7 and DN8: replace the last member on the consumer protocol with the sender, and convert the
    group to a classic group.

    Kafka differs in two ways. It answers with generation 0 if a rebalance starts. It starts no rebalance if
    another member has not reached its target, and then two members have the same partition for a time.
    """
    # Decided before `_find_or_admit` changes the group.
    keeps_assignments = _can_keep_assignments(context, group, sender, subscription)
    member = _find_or_admit(context, request, sender)
    member.client_id, member.client_host = request.client_id, request.client_host
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.classic = ClassicMember(request.session_timeout_ms, request.protocols)
    cause = f"instance {member.instance_id} came back as {member.member_id} on the classic protocol"
    row = context.cite("DN7" if keeps_assignments else "DN8")
    classic = migration.convert(context, row, cause)
    if keeps_assignments:
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
    reason = f"{cause}, and the target assignment is not that of the members"
    rebalance.prepare_rebalance(
        context,
        context.group_of(ClassicGroup),
        row,
        reason,
        member_id=member.member_id,
        client_reason=request.reason,
    )


def _can_keep_assignments(
    context: StepContext,
    group: ConsumerGroup,
    sender: ConsumerSender,
    subscription: Subscription,
) -> bool:
    """Return True if the downgrade needs no rebalance: the sender replaces its member with the same topics,
    the group's target is current, and all other members have reached it.
    """
    replaced = sender.existing_member
    assert replaced is not None
    has_same_topics = (
        not replaced.subscribed_topic_regex
        and sorted(set(subscription.topics)) == replaced.subscribed_topic_names
    )
    # A changed fingerprint means that the subscribed topics have got other ids or partition counts.
    if not has_same_topics or refresh_fingerprint(context.group_of(ConsumerGroup)):
        return False
    others = [member for member in group.members.values() if member is not replaced]
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
    protocol = classic.protocols[0]
    if classic_requests.differ(request.protocol_type, PROTOCOL_TYPE) or classic_requests.differ(
        request.protocol_name, protocol.name
    ):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        context.reply(reply_to, SyncGroupResponse, context.cite("CV23"), error)
        return
    # A member that has partitions to revoke is answered with the assignment that lacks them.
    if _is_behind(group, member) and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _arm_join_timer(context, member, classic)
        error = ErrorCode.REBALANCE_IN_PROGRESS
        context.reply(reply_to, SyncGroupResponse, context.cite("CV24"), error)
        return
    classic.sync_deadline_ms = None
    SETTINGS.arm_session(context, member)
    context.reply(
        reply_to,
        SyncGroupResponse,
        context.cite("CV25"),
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol.name,
        assignment=assignment_bytes(member.assigned, group.names_by_id(), protocol.metadata),
    )


def heartbeat(context: StepContext, request: Heartbeat, reply_to: ReplyTo) -> None:
    """Renew the session of a classic member. The answer says whether the member has to join again."""
    group = context.group_of(ConsumerGroup)
    refusal = _validate(context, group, request)
    if refusal is not None:
        context.cite("CV26")
        context.reply(reply_to, HeartbeatResponse, *refusal)
        return
    member, classic = _classic_member(group, request.member_id)
    SETTINGS.arm_session(context, member)
    _update_target_of_classic_members(context, group)
    if not _has_to_join(context, group, member):
        context.reply(reply_to, HeartbeatResponse, context.cite("CV28"))
        return
    _arm_join_timer(context, member, classic)
    context.reply(reply_to, HeartbeatResponse, context.cite("CV27"), ErrorCode.REBALANCE_IN_PROGRESS)


def leave(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
    """Remove members of either protocol, all at once (row CV34)."""
    group = context.group_of(ConsumerGroup)
    client_reasons: dict[str, str | None] = {}  # of the members that leave, by member id
    verdicts = [_check_leaving_member(context, group, leaving, client_reasons) for leaving in request.members]
    if client_reasons:
        row = context.cite("CV34")
        # A member on the consumer protocol leaves by a heartbeat, so only an administrator names it here.
        has_classic_member = any(group.members[id_].classic is not None for id_ in client_reasons)
        reason = "left the group" if has_classic_member else "an administrator asked for it"
        fence(context, row, list(client_reasons), reason, client_reasons=client_reasons)
    members = [
        LeftMember(leaving.member_id, leaving.group_instance_id, error)
        for leaving, (_, error) in zip(request.members, verdicts, strict=True)
    ]
    context.reply(reply_to, LeaveGroupResponse, deciding_rule(verdicts), members=members)


def _validate(
    context: StepContext, group: ConsumerGroup, request: SyncGroup | Heartbeat
) -> RuleAndError | None:
    """Rows CV19 to CV22: return the first row that applies with its error, or None."""
    error = validate_instance(group.static_members, request.member_id, request.group_instance_id)
    if error is ErrorCode.FENCED_INSTANCE_ID:
        return context.cite("CV20"), error
    member = group.members.get(request.member_id)
    if error is not ErrorCode.NONE or member is None:
        return context.cite("CV19"), ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None:
        return context.cite("CV21"), ErrorCode.UNKNOWN_MEMBER_ID
    if request.generation_id != member.member_epoch:
        return context.cite("CV22"), ErrorCode.ILLEGAL_GENERATION
    return None


def _classic_member(group: ConsumerGroup, member_id: str) -> tuple[ConsumerMember, ClassicMember]:
    """Return the member and its state as a classic member."""
    member = group.members[member_id]
    assert member.classic is not None, "the member was checked to be on the classic protocol"
    return member, member.classic


def _is_behind(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Row CV29: return True if a newer target than the member's has been computed.

    A new group epoch alone does not make the member join again (KAFKA-20272).
    """
    return member.member_epoch < group.assignment_epoch


def _has_to_join(context: StepContext, group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return True if the member has to join again: to follow a newer target, to revoke partitions, or to get
    partitions that it has waited for.
    """
    if _is_behind(group, member):
        context.cite("CV29")
        return True
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        context.cite("CV30")
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and _are_all_released(group, member)


def _are_all_released(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return True if no other member holds a partition of the member's target."""
    return all(
        group.held.get(topic_id, {}).get(number, member.member_id) == member.member_id
        for topic_id, numbers in group.target.get(member.member_id, {}).items()
        for number in numbers
    )


def _arm_join_timer(context: StepContext, member: ConsumerMember, classic: ClassicMember) -> None:
    """Row TM4: arm the timer for the member's next JoinGroup, unless it is armed already."""
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
        bump(context, context.cite("DN13"), "the topics that members subscribe to have changed")
    if group.group_epoch > group.assignment_epoch:
        context.cite("DN13")
        maybe_update_target(context, group)


def _check_leaving_member(
    context: StepContext, group: ConsumerGroup, leaving: LeavingMember, client_reasons: dict[str, str | None]
) -> RuleAndError:
    """Rows CV31 to CV33: return the row and the error for a member that leaves. If it may leave, add its
    reason to `client_reasons`.
    """
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if instance_id is not None and not member_id:
        member_id = group.static_members.get(instance_id, "")
    else:
        error = validate_instance(group.static_members, member_id, instance_id)
        if error is not ErrorCode.NONE:
            return context.cite("CV33"), error
    if member_id not in group.members:
        return context.cite("CV33"), ErrorCode.UNKNOWN_MEMBER_ID
    client_reasons.setdefault(member_id, leaving.reason)
    return context.cite("CV31" if instance_id is None else "CV32"), ErrorCode.NONE
