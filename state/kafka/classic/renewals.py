"""The two most frequent requests to a Stable group, each decided in one pass: a member's heartbeat, and its
commit of one partition.

The outcome is that of the general step, which handles any request (rows H8 and O8); tests compare both over
random logs. If another row may apply, a function here changes nothing and returns None.

A row, such as H8, is a rule of docs/rules.md.
"""

from collections.abc import Mapping

from kafka_why.contract.kafka.history import GroupState
from kafka_why.contract.kafka.requests import Heartbeat, OffsetCommit
from kafka_why.contract.kafka.responses import HeartbeatResponse
from kafka_why.contract.messages import ErrorCode
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.commits import commit_one
from state.kafka.context import Effects, Reply
from state.kafka.protocol import Renewal


def heartbeat(
    group: ClassicGroup, request: Heartbeat, request_id: str, now_ms: int, _: CoordinatorConfig
) -> Effects | None:
    """Renew the session of a member by row H8, or return None if another row may apply."""
    member = _sender(group, request)
    if member is None:
        return None
    answer = HeartbeatResponse(
        group_id=request.group_id,
        correlation_id=request.correlation_id,
        request=request_id,
        error_code=ErrorCode.NONE,
        rule="H8",
    )
    deadline_ms = _new_session_deadline_ms(member, now_ms)
    effects = Effects(
        group,
        [Reply(request.reply_partition, answer)],
        history=[],
        offsets=[],
        rules=["H8"],
        earliest_armed_ms=deadline_ms,
    )
    group.clock_ms, member.heartbeat_deadline_ms = now_ms, deadline_ms
    return effects


def commit(
    group: ClassicGroup, request: OffsetCommit, request_id: str, now_ms: int, config: CoordinatorConfig
) -> Effects | None:
    """Store a member's offset and renew its session by row O8, or return None if another row may apply."""
    member = _sender(group, request)
    if member is None:
        return None
    deadline_ms = _new_session_deadline_ms(member, now_ms)
    effects = commit_one(group, request, request_id, now_ms, config, row="O8", deadline_ms=deadline_ms)
    if effects is not None:
        member.heartbeat_deadline_ms = deadline_ms
    return effects


RENEWALS: Mapping[type, Renewal] = {Heartbeat: heartbeat, OffsetCommit: commit}


def _new_session_deadline_ms(member: ClassicGroupMember, now_ms: int) -> int:
    return now_ms + max(member.session_timeout_ms, 0)  # as `StepContext.deadline` does


def _sender(group: ClassicGroup, request: Heartbeat | OffsetCommit) -> ClassicGroupMember | None:
    """Return the member that sent the request, or None if another row than H8 or O8 may apply."""
    if (
        group.state is not GroupState.STABLE
        or request.generation_id != group.generation
        or group.quarantined is not None
    ):
        return None
    instance_id = request.group_instance_id
    if instance_id is not None and group.static_members.get(instance_id) != request.member_id:
        return None
    return group.members.get(request.member_id)
