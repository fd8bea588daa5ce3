"""Due deadlines of members. Rows TM1 to TM5: each removes its member."""

from state.kafka.consumer.fence import fence
from state.kafka.consumer_group import LEAVE_GROUP_STATIC_MEMBER_EPOCH, ConsumerMember
from state.kafka.context import StepContext
from state.kafka.timers import DeadlineReached, TimerKind


def deadline_reached(context: StepContext, deadline: DeadlineReached) -> None:
    """Remove the member whose deadline is due."""
    member = context.consumer.members[deadline.member_id]
    row, reason = _cause(context, member, deadline.kind)
    fence(context, context.rule(row), [member.member_id], reason)


def _cause(context: StepContext, member: ConsumerMember, kind: TimerKind) -> tuple[str, str]:
    """The row of a due deadline, and what the member did not do in time."""
    match kind:
        case TimerKind.HEARTBEAT if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
            return "TM2", f"no heartbeat within its session timeout of {timeout_ms} ms"
        case TimerKind.HEARTBEAT:
            timeout_ms = context.group_settings.session_timeout_ms
            if member.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
                return "TM1", f"left for a while and was away for longer than its session of {timeout_ms} ms"
            return "TM1", f"no heartbeat within the session timeout of {timeout_ms} ms"
        case TimerKind.REBALANCE:
            timeout_ms = member.rebalance_timeout_ms
            return "TM3", f"did not give up its partitions within its rebalance timeout of {timeout_ms} ms"
        case TimerKind.JOIN:
            timeout_ms = member.rebalance_timeout_ms
            return "TM4", f"did not join again within its rebalance timeout of {timeout_ms} ms"
        case TimerKind.SYNC:
            timeout_ms = member.rebalance_timeout_ms
            return "TM5", f"no SyncGroup within its rebalance timeout of {timeout_ms} ms"
        case TimerKind.RETENTION:
            raise AssertionError("a retention deadline belongs to no member")
