"""Due deadlines of members. Rows TM1 to TM5: each removes its member."""

from kafka_why.contract.kafka.states import LEAVE_GROUP_STATIC_MEMBER_EPOCH
from state.kafka.consumer.fence import fence
from state.kafka.consumer.settings import SETTINGS
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.context import RuleId, StepContext
from state.kafka.timers import DeadlineReached, TimerKind


def deadline_reached(context: StepContext, deadline: DeadlineReached) -> None:
    """Remove the member whose deadline is due."""
    member = context.group_of(ConsumerGroup).members[deadline.member_id]
    row, reason = _cause(context, member, deadline.kind)
    fence(context, row, [member.member_id], reason)


def _cause(context: StepContext, member: ConsumerMember, kind: TimerKind) -> tuple[RuleId, str]:
    """The row of a due deadline, and what the member did not do in time."""
    own = f"within its rebalance timeout of {member.rebalance_timeout_ms} ms"
    match kind:
        case TimerKind.HEARTBEAT if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
            return context.rule("TM2"), f"no heartbeat within its session timeout of {timeout_ms} ms"
        case TimerKind.HEARTBEAT:
            timeout_ms = SETTINGS.of(context).session_timeout_ms
            missed = "no heartbeat"
            if member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
                missed = "left for a while and did not come back"
            return context.rule("TM1"), f"{missed} within the session timeout of {timeout_ms} ms"
        case TimerKind.REBALANCE:
            return context.rule("TM3"), f"did not revoke its partitions {own}"
        case TimerKind.JOIN:
            return context.rule("TM4"), f"did not join again {own}"
        case TimerKind.SYNC:
            return context.rule("TM5"), f"no SyncGroup {own}"
        case TimerKind.RETENTION | TimerKind.PARKED | TimerKind.TASK:
            raise AssertionError("this deadline belongs to no member")
