"""SyncGroup: the leader brings the assignment, everyone fetches theirs. Rows S0 to S9."""

from state.errors import ErrorCode
from state.kafka import rebalance
from state.kafka.context import Turn
from state.kafka.group import Group, GroupState, Member
from state.kafka.requests import ReplyTo, SyncGroup
from state.kafka.responses import SyncGroupResponse

FIRST_VERSION_WITH_PROTOCOL = 5  # KIP-559


def sync(turn: Turn, request: SyncGroup, reply_to: ReplyTo) -> None:
    """Validate the member and its generation, then act by state."""
    error = _validate(turn, request)
    if error is not ErrorCode.NONE:
        turn.reply(reply_to, SyncGroupResponse, error)
        return
    group = turn.group
    member = group.members[request.member_id]
    if group.state is GroupState.PREPARING_REBALANCE:
        turn.rule("S6")
        turn.reply(reply_to, SyncGroupResponse, ErrorCode.REBALANCE_IN_PROGRESS)
        return
    _has_synced(group, member)
    if group.state is GroupState.STABLE:
        # Here no session is re-armed: the coordinator of Kafka 2.x did, today's does not.
        turn.rule("S9")
        rebalance.answer_sync(turn, reply_to, member)
        return
    if member.parked_sync is not None:
        rebalance.supersede(turn, member.parked_sync, "the member sent a newer SyncGroup")
    member.parked_sync = reply_to
    if group.leader_id == member.member_id:
        turn.rule("S8")
        assignments = {a.member_id: a.assignment for a in request.assignments}
        rebalance.become_stable(turn, assignments, f"leader {group.leader_id} brought the assignment")
    else:
        turn.rule("S7")


def _validate(turn: Turn, request: SyncGroup) -> ErrorCode:
    """Rows S0 to S5, the first that applies."""
    lacks_protocol = request.protocol_type is None or request.protocol_name is None
    if request.api_version >= FIRST_VERSION_WITH_PROTOCOL and lacks_protocol:
        turn.rule("S0")
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if not turn.has_group or turn.group.state is GroupState.EMPTY:
        turn.rule("S1")
        return ErrorCode.UNKNOWN_MEMBER_ID
    group = turn.group
    error = group.validate_member(request.member_id, request.group_instance_id)
    if error is not ErrorCode.NONE:
        turn.rule("S3")
        return error
    if request.generation_id != group.generation:
        turn.rule("S4")
        return ErrorCode.ILLEGAL_GENERATION
    if _differ(request.protocol_type, group.protocol_type) or _differ(
        request.protocol_name, group.protocol_name
    ):
        turn.rule("S5")
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _differ(given: str | None, own: str | None) -> bool:
    """Whether both sides name one, and not the same: a group in its first round has no protocol yet."""
    return given is not None and own is not None and given != own


def _has_synced(group: Group, member: Member) -> None:
    member.awaiting_sync = False
    if not any(m.awaiting_sync for m in group.members.values()):
        group.sync_deadline_ms = None
