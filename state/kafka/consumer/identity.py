"""The sender of a ConsumerGroupHeartbeat: a new member, a known one, or one that replaces a static member.
Rows HB20 to HB35.

Source: GroupMetadataManager (getOrMaybeSubscribeDynamicConsumerGroupMember,
getOrMaybeSubscribeStaticConsumerGroupMember, throwIfConsumerGroupIsFull,
throwIfConsumerGroupMemberEpochIsInvalid).
"""

from collections.abc import Mapping

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat
from kafka_why.contract.kafka.states import LEAVE_GROUP_STATIC_MEMBER_EPOCH
from state.kafka.consumer.joining import Sender, is_full, made_id
from state.kafka.consumer.reconcile import Owned
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.refusal import Refused, no_member


def identify(context: StepContext, request: ConsumerGroupHeartbeat, owned: Owned | None) -> Sender:
    """Return who sends the request, and change nothing. Raise Refused for a sender that may not go on."""
    _check_size(context, request)
    if request.member_epoch == 0:
        if request.instance_id is None:
            return _joining(context, request)
        return _joining_with_instance(context, request, request.instance_id)
    check_instance(context, request.member_id, request.instance_id)
    member = context.group_of(ConsumerGroup).members.get(request.member_id)
    if member is None:
        raise no_member(context, "HB24", request.member_id)
    return Sender(_check_epoch(context, request, member, owned), member.member_id, member)


def _check_size(context: StepContext, request: ConsumerGroupHeartbeat) -> None:
    """Row HB20. A static member that comes back needs no room (KAFKA-20601)."""
    if not is_full(context, request.member_id):
        return
    group, max_size = context.group_of(ConsumerGroup), context.config.group_consumer_max_size
    owner = group.members.get(group.static_members.get(request.instance_id or "", ""))
    is_join = request.member_epoch == 0
    if is_join and owner is not None and _is_replaceable(owner):
        return
    message = f"Group {context.group_id} is full: group.consumer.max.size is {max_size}."
    event = EntryType.JOIN_REFUSED if is_join else None
    raise Refused(context.rule("HB20"), ErrorCode.GROUP_MAX_SIZE_REACHED, message, event)


def _joining(context: StepContext, request: ConsumerGroupHeartbeat) -> Sender:
    member = context.group_of(ConsumerGroup).members.get(request.member_id)
    if member is not None:
        return Sender(context.rule("HB23"), member.member_id, member)
    return Sender(context.rule("HB22"), _member_id(context, request))


def _joining_with_instance(context: StepContext, request: ConsumerGroupHeartbeat, instance_id: str) -> Sender:
    group = context.group_of(ConsumerGroup)
    owner_id = group.static_members.get(instance_id)
    if owner_id is None:
        row = context.rule("HB29")
        member = group.members.get(request.member_id)
        member_id = _member_id(context, request) if member is None else member.member_id
        return Sender(row, member_id, member)
    owner = group.members[owner_id]
    if _is_replaceable(owner):
        row = context.rule("HB32" if owner.classic is not None else "HB30")
        return Sender(row, _member_id(context, request), replaced=owner)
    row = context.rule("HB31")
    if owner_id == request.member_id:
        return Sender(row, owner_id, owner)
    message = (
        f"Instance id {instance_id} is in use by member {owner_id}, "
        "which has neither left the group nor lost its session."
    )
    raise Refused(row, ErrorCode.UNRELEASED_INSTANCE_ID, message, EntryType.JOIN_REFUSED)


def _is_replaceable(owner: ConsumerMember) -> bool:
    """Whether another process may take the member's instance id: it left for a while, or is on the classic
    protocol, which has no release.
    """
    return owner.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH or owner.classic is not None


def _member_id(context: StepContext, request: ConsumerGroupHeartbeat) -> str:
    """The client's own member id, or the one that the coordinator gives it (row HB21)."""
    if request.member_id:
        return request.member_id
    context.rule("HB21")
    return made_id(context, request.client_id, request.instance_id)


def check_instance(
    context: StepContext, member_id: str, instance_id: str | None, *, leaving: bool = False
) -> None:
    """Raise Refused if the instance id is no member's, or another one's. `leaving`: the sender leaves."""
    if instance_id is None:
        return
    owner_id = context.group_of(ConsumerGroup).static_members.get(instance_id)
    if owner_id is None:
        message = f"No member of group {context.group_id} has the instance id {instance_id}."
        raise Refused(context.rule("HB39" if leaving else "HB33"), ErrorCode.UNKNOWN_MEMBER_ID, message)
    if owner_id != member_id:
        message = f"Instance id {instance_id} belongs to member {owner_id}, not to {member_id!r}."
        row = context.rule("HB40" if leaving else "HB34")
        raise Refused(row, ErrorCode.FENCED_INSTANCE_ID, message, EntryType.MEMBER_FENCED)


def _check_epoch(
    context: StepContext, request: ConsumerGroupHeartbeat, member: ConsumerMember, owned: Owned | None
) -> RuleId:
    """Rows HB25 to HB28. The epoch before the last is accepted from a member that owns no more than it may:
    the answer with the new epoch was lost.
    """
    received = request.member_epoch
    if received == member.member_epoch:
        return context.rule("HB26")
    if received > member.member_epoch:
        row = context.rule("HB25")
        why = "the coordinator never gave it that epoch"
        if member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
            why = "it has left for a while"
    else:
        if received == member.previous_epoch and owned is not None and _is_part_of(owned, member.assigned):
            return context.rule("HB27")
        row = context.rule("HB28")
        why = "it has to give up its partitions and join again"
    message = (
        f"Member {member.member_id} is fenced: the request has member epoch {received}, "
        f"and the member is at {member.member_epoch}; {why}."
    )
    raise Refused(row, ErrorCode.FENCED_MEMBER_EPOCH, message, EntryType.MEMBER_FENCED)


def _is_part_of(owned: Owned, assigned: Mapping[bytes, Mapping[int, int]]) -> bool:
    nothing: dict[int, int] = {}
    return all(assigned.get(topic_id, nothing).keys() >= set(numbers) for topic_id, numbers in owned.items())
