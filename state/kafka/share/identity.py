"""The sender of a ShareGroupHeartbeat: a new member, or a known one. Rows SP17, SH14 to SH20, TA31.

Source: GroupMetadataManager (throwIfShareGroupIsFull, getOrMaybeSubscribeShareGroupMember,
throwIfShareGroupMemberEpochIsInvalid).
"""

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.refusal import Refused, no_member
from state.kafka.modern.room import has_room
from state.kafka.share.deletion import refuse_while_deleted
from state.kafka.share_group import ShareGroup, ShareMember


def identify(context: StepContext, request: ShareGroupHeartbeat) -> tuple[RuleId, ShareMember | None]:
    """Return the row that says who sends the request, and the member, None if it is new. Raise Refused for a
    sender that may not go on. Nothing changes.
    """
    group = context.group_of(ShareGroup)
    member = group.members.get(request.member_id)
    _check_size(context, group, member)
    if request.member_epoch == 0:
        refuse_while_deleted(context)
        return context.rule("SH15" if member is None else "SH16"), member
    if member is None:
        raise no_member(context, "SH15", request.member_id)
    return _check_epoch(context, request.member_epoch, member), member


def _check_size(context: StepContext, group: ShareGroup, member: ShareMember | None) -> None:
    """Row SH14, for every epoch."""
    max_size = context.config.group_share_max_size
    if member is not None or len(group.members) < max_size:
        return
    message = f"The share group has reached its maximum capacity of {max_size} members."
    raise Refused(context.rule("SH14"), ErrorCode.GROUP_MAX_SIZE_REACHED, message, EntryType.JOIN_REFUSED)


def _check_epoch(context: StepContext, received: int, member: ShareMember) -> RuleId:
    """Rows SH18 to SH20. The epoch before the last is accepted: the answer with the new one was lost."""
    epoch, previous = member.member_epoch, member.previous_epoch
    if received == epoch:
        return context.rule("SH18")
    if received > epoch:
        row = context.rule("SH18")
        what = f"greater member epoch ({received}) than the one known by the group coordinator ({epoch})"
    elif received == previous:
        return context.rule("SH19")
    else:
        row = context.rule("SH20")
        what = f"smaller member epoch ({received}) than the one known by the group coordinator ({epoch})"
        what += f", and it does not match the previous member epoch ({previous})"
    message = f"The share group member has a {what}. The member must abandon all its partitions and rejoin."
    raise Refused(row, ErrorCode.FENCED_MEMBER_EPOCH, message, EntryType.MEMBER_FENCED)


def check_room(context: StepContext, request: ShareGroupHeartbeat, group: ShareGroup | None) -> None:
    """Row TA31: raise Refused if the group would have more partitions than the coordinator assigns to one
    group.
    """
    names = request.subscribed_topic_names
    if names and not has_room(context.config, group, request.member_id, names, request.topics):
        most = context.config.group_max_partitions
        message = f"Group {context.group_id} would have more partitions than group.max.partitions, {most}."
        event = EntryType.JOIN_REFUSED if request.member_epoch == 0 else None
        raise Refused(context.rule("TA31"), ErrorCode.GROUP_MAX_SIZE_REACHED, message, event)
