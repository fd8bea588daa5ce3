"""JoinGroup: admission of a member, its id, and the rebalance that follows. Rows J, A, N, E, U."""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType, GroupState
from kafka_why.contract.kafka.requests import JoinGroup, ReplyTo
from kafka_why.contract.kafka.responses import JoinGroupResponse
from state.kafka.classic import assignment, rebalance
from state.kafka.classic.subscription import record_topics
from state.kafka.classic_group import ClassicGroup, Member, PendingMember
from state.kafka.context import RuleId, StepContext, Verdict, new_member_id

FIRST_VERSION_WITH_MEMBER_ID_REQUIRED = 4  # KIP-394


def join(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """A JoinGroup to a group of the classic protocol."""
    refusal = validate_request(context, request)
    if refusal is not None:
        return _refuse(context, reply_to, refusal, request.member_id)
    return _admit(context, request, reply_to)


def join_no_group(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Rows J4 and J5: the first JoinGroup for a group id creates the group."""
    refusal = validate_request(context, request)
    if refusal is None and request.member_id:
        refusal = context.rule("J4"), ErrorCode.UNKNOWN_MEMBER_ID
    if refusal is not None:
        return _refuse(context, reply_to, refusal, request.member_id)
    context.create_group(ClassicGroup, context.rule("J5"), "first JoinGroup for this group id")
    return _admit(context, request, reply_to)


def _admit(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Rows J6 to J8: the checks before those of the member."""
    if not _accept_joining_member(context, context.group_of(ClassicGroup), request.member_id):
        return _refuse_for_size(context, request, reply_to)
    if request.member_id:
        context.rule("J8")
        return _join_existing_member(context, request, reply_to)
    context.rule("J7")
    return _join_new_member(context, request, reply_to)


def validate_request(context: StepContext, request: JoinGroup) -> Verdict | None:
    """Rows J1, M1 and M2: the checks that do not need a group. None if the request passes."""
    config = context.config
    timeout_ms = request.session_timeout_ms
    if not config.group_min_session_timeout_ms <= timeout_ms <= config.group_max_session_timeout_ms:
        return context.rule("J1"), ErrorCode.INVALID_SESSION_TIMEOUT
    return assignment.validate_protocols(context, request)


def _accept_joining_member(context: StepContext, group: ClassicGroup, member_id: str) -> bool:
    """Rows A1 to A3: whether group.max.size allows this member. Pending ids are not counted."""
    if group.state is GroupState.EMPTY:
        context.rule("A1")
        return True
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        # In an over-full group the last members to rejoin are refused.
        context.rule("A2")
        if member is not None and member.parked_join is not None:
            return True
        return group.awaiting_join_response < context.config.group_max_size
    context.rule("A3")
    return member is not None or len(group.members) < context.config.group_max_size


def _refuse_for_size(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Row J6: the group is full. The member id or pending id is removed without a rebalance."""
    row = context.rule("J6")
    group = context.group_of(ClassicGroup)
    full = f"the group is full: group.max.size is {context.config.group_max_size}"
    member = group.members.get(request.member_id)
    group.remove(request.member_id)
    if member is not None:
        context.record_member(row, EntryType.MEMBER_REMOVED, member, full)
    context.record(
        row, EntryType.JOIN_REFUSED, full, member_id=request.member_id or None, client_id=request.client_id
    )
    _refuse(context, reply_to, (row, ErrorCode.GROUP_MAX_SIZE_REACHED), "")


def _join_new_member(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Rows N2 to N6: a JoinGroup without a member id."""
    group = context.group_of(ClassicGroup)
    if not _supports_protocols(context, request):
        verdict = context.rule("N2"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return _refuse(context, reply_to, verdict, "")
    instance_id = request.group_instance_id
    prefix = request.client_id if instance_id is None else instance_id
    member_id = new_member_id(prefix, reply_to.request, context.config.member_id_namespace)
    if instance_id is None and request.api_version >= FIRST_VERSION_WITH_MEMBER_ID_REQUIRED:
        return _require_member_id(context, context.rule("N5"), request, reply_to, member_id)
    if not _record_partition_counts(context, request, reply_to):
        return None
    if instance_id is None:
        return rebalance.add_member(context, context.rule("N6"), request, reply_to, member_id)
    if instance_id not in group.static_members:
        return rebalance.add_member(context, context.rule("N4"), request, reply_to, member_id)
    context.rule("N3")
    return rebalance.replace_static_member(context, request, reply_to, member_id)


def _record_partition_counts(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> bool:
    """Rows M3 and M5, the last check of a JoinGroup, because only an accepted JoinGroup changes what the
    group knows of topics. Return whether it is accepted.
    """
    refusal = assignment.record_partition_counts(context, request)
    if refusal is not None:
        most = context.config.group_max_partitions
        reason = f"the group would have too many partitions: group.max.partitions is {most}"
        context.record(
            refusal[0],
            EntryType.JOIN_REFUSED,
            reason,
            member_id=request.member_id or None,
            client_id=request.client_id,
        )
        _refuse(context, reply_to, refusal, request.member_id)
        return False
    record_topics(context.group_of(ClassicGroup), request.topics)
    return True


def _require_member_id(
    context: StepContext, rule: RuleId, request: JoinGroup, reply_to: ReplyTo, member_id: str
) -> None:
    """Row N5: answer with a member id that the client joins with (KIP-394). A lost answer therefore leaves no
    ghost member.
    """
    deadline_ms = context.deadline(request.session_timeout_ms)
    context.group_of(ClassicGroup).pending_members[member_id] = PendingMember(
        request.client_id, request.client_host, deadline_ms
    )
    context.record(
        rule,
        EntryType.MEMBER_ID_ASSIGNED,
        "a new dynamic member has to join again with the id it was given",
        member_id=member_id,
        client_id=request.client_id,
        client_host=request.client_host,
        deadline_ms=deadline_ms,
    )
    _refuse(context, reply_to, (rule, ErrorCode.MEMBER_ID_REQUIRED), member_id)


def _join_existing_member(context: StepContext, request: JoinGroup, reply_to: ReplyTo) -> None:
    """Rows E2 to E5: a JoinGroup with a member id."""
    group = context.group_of(ClassicGroup)
    if not _supports_protocols(context, request):
        verdict = context.rule("E2"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return _refuse(context, reply_to, verdict, request.member_id)
    if request.member_id in group.pending_members:
        if request.group_instance_id is not None:
            # Only dynamic members have pending ids. Kafka throws here, so its answer names no member.
            return _refuse(context, reply_to, (context.rule("E3"), ErrorCode.UNKNOWN_SERVER_ERROR), "")
        if not _record_partition_counts(context, request, reply_to):
            return None
        return rebalance.add_member(context, context.rule("E4"), request, reply_to, request.member_id)
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        return _refuse(context, reply_to, (context.rule("E5"), error), request.member_id)
    if not _record_partition_counts(context, request, reply_to):
        return None
    return _rejoin(context, request, reply_to, group.members[request.member_id])


def _rejoin(context: StepContext, request: JoinGroup, reply_to: ReplyTo, member: Member) -> None:
    """Rows E6 to E11: a JoinGroup of a known member."""
    group = context.group_of(ClassicGroup)
    same_protocols = member.protocols == request.protocols
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            rebalance.update_member(context, context.rule("E6"), member, request, reply_to)
            rebalance.maybe_complete_join(context)
        case GroupState.COMPLETING_REBALANCE if same_protocols:
            _answer_current_generation(context, context.rule("E7"), reply_to, member)
        case GroupState.COMPLETING_REBALANCE:
            _rejoin_and_rebalance(
                context, context.rule("E8"), request, reply_to, member, "changed its metadata"
            )
        case GroupState.STABLE if group.leader_id == member.member_id:
            # A leader that rejoins asks for a new assignment, with or without changed metadata.
            _rejoin_and_rebalance(
                context, context.rule("E9"), request, reply_to, member, "is the leader and joined again"
            )
        case GroupState.STABLE if not same_protocols:
            _rejoin_and_rebalance(
                context, context.rule("E10"), request, reply_to, member, "changed its metadata"
            )
        case _:
            _answer_current_generation(context, context.rule("E11"), reply_to, member)


def _rejoin_and_rebalance(
    context: StepContext, rule: RuleId, request: JoinGroup, reply_to: ReplyTo, member: Member, what: str
) -> None:
    rebalance.update_member(context, rule, member, request, reply_to)
    reason = f"member {member.member_id} {what}"
    rebalance.prepare(context, rule, reason, member_id=member.member_id, client_reason=request.reason)


def _answer_current_generation(context: StepContext, rule: RuleId, reply_to: ReplyTo, member: Member) -> None:
    """Answer a member that missed its answer. As in Kafka, the request's timeouts are ignored."""
    rebalance.answer_join(context, rule, reply_to, member)


def _supports_protocols(context: StepContext, request: JoinGroup) -> bool:
    """Rows U1 (Empty) and U2: whether the offered protocols fit the group."""
    group = context.group_of(ClassicGroup)
    context.rule("U1" if group.state is GroupState.EMPTY else "U2")
    return group.supports_protocols(request.protocol_type, request.protocols)


def _refuse(context: StepContext, reply_to: ReplyTo, verdict: Verdict, member_id: str) -> None:
    context.reply(reply_to, JoinGroupResponse, *verdict, member_id=member_id)
