"""The two most frequent requests to a Stable group, each decided in one pass: a member's heartbeat, and its
commit of one partition.

The general step decides the same (rows H8 and O8), and tests compare both over random logs. If another row
may apply, a function here changes nothing and returns None.
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
    """Renew the session of a member by row H8."""
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
    group.clock_ms = now_ms
    member.heartbeat_deadline_ms = now_ms + max(member.session_timeout_ms, 0)
    replies = [Reply(request.reply_partition, answer)]
    return Effects(group, replies, [], [], ["H8"], member.heartbeat_deadline_ms)


def commit(
    group: ClassicGroup, request: OffsetCommit, request_id: str, now_ms: int, config: CoordinatorConfig
) -> Effects | None:
    """Store a member's offset and renew its session by row O8."""
    member = _sender(group, request)
    if member is None:
        return None
    deadline_ms = now_ms + max(member.session_timeout_ms, 0)
    effects = commit_one(group, request, request_id, now_ms, config, "O8", deadline_ms)
    if effects is not None:
        member.heartbeat_deadline_ms = deadline_ms
    return effects


RENEWALS: Mapping[type, Renewal] = {Heartbeat: heartbeat, OffsetCommit: commit}


def _sender(group: ClassicGroup, request: Heartbeat | OffsetCommit) -> ClassicGroupMember | None:
    """Return the member that sent the request, or None if the group does not accept it at once."""
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
