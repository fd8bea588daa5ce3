"""A ConsumerGroupHeartbeat by which a member leaves, for good or for a while. Rows HB37 to HB42.

Source: GroupMetadataManager.consumerGroupLeave.
"""

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import ConsumerGroupHeartbeat, ReplyTo
from kafka_why.contract.kafka.responses import ConsumerGroupHeartbeatResponse
from kafka_why.contract.kafka.states import LEAVE_GROUP_STATIC_MEMBER_EPOCH, MemberState
from state.kafka.consumer.fence import fence
from state.kafka.consumer.identity import check_instance
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext
from state.kafka.modern.refusal import no_member


def leave(context: StepContext, request: ConsumerGroupHeartbeat, reply_to: ReplyTo) -> None:
    """Remove the member, or let a static member be away. The member's epoch is not checked."""
    member_id = request.member_id
    check_instance(context, member_id, request.instance_id, leaving=True)
    member = context.group_of(ConsumerGroup).members.get(member_id)
    if member is None:
        raise no_member(context, "HB37", member_id)
    epoch = request.member_epoch
    if epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        row = context.rule("HB42")
        _leave_for_a_while(context, row, member)
    else:
        row = context.rule("HB38" if request.instance_id is None else "HB41")
        fence(context, row, [member_id], "left the group")
    context.reply(reply_to, ConsumerGroupHeartbeatResponse, row, member_id=member_id, member_epoch=epoch)


def _leave_for_a_while(context: StepContext, rule: RuleId, member: ConsumerMember) -> None:
    """Free what the member was giving up. It keeps the rest until its session ends, which is not renewed.

    The member has nothing to wait for, so its state is STABLE (unlike KAFKA-20641).
    """
    if member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        return
    kept = {topic_id: dict.fromkeys(numbers, 0) for topic_id, numbers in member.assigned.items()}
    context.group_of(ConsumerGroup).assign(member, kept, {})
    member.member_epoch = LEAVE_GROUP_STATIC_MEMBER_EPOCH
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
