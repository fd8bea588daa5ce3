"""The one entry of the core: what one event does to one group."""

from msgspec import Struct

from state.classic import expiry
from state.classic.heartbeat import heartbeat
from state.classic.join import join
from state.classic.leave import leave
from state.classic.sync import sync
from state.config import CoordinatorConfig
from state.effects import Effects
from state.errors import ErrorCode
from state.group import Group
from state.history import EventType
from state.messages import (
    AnyRequest,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ReleaseGroup,
    ReplyTo,
    SyncGroup,
)
from state.responses import (
    AnyResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ReleaseGroupResponse,
    SyncGroupResponse,
)
from state.timers import DeadlineReached
from state.turn import Turn


class Received(Struct, frozen=True):
    """An event: a request read from the log. `late_by_ms` is how far behind an already fired deadline it
    stands.
    """

    request_id: str
    request: AnyRequest
    late_by_ms: int = 0


class Failed(Struct, frozen=True):
    """An event: handling this request raised, and the group is as it was before. It is answered, no more."""

    request_id: str
    request: AnyRequest


class Quarantine(Struct, frozen=True):
    """An event: handling a deadline raised, and the group is as it was before. Its deadlines are stopped."""

    deadline: DeadlineReached
    error: str


Event = Received | Failed | DeadlineReached | Quarantine

RESPONSE_TO: dict[type[AnyRequest], type[AnyResponse]] = {
    JoinGroup: JoinGroupResponse,
    SyncGroup: SyncGroupResponse,
    Heartbeat: HeartbeatResponse,
    LeaveGroup: LeaveGroupResponse,
    ReleaseGroup: ReleaseGroupResponse,
}


def step(group: Group | None, group_id: str, event: Event, now_ms: int, config: CoordinatorConfig) -> Effects:
    """Apply one event to a group at a time, and say what follows.

    `group` is changed in place (None: there is no such group; the returned effects hold the group
    afterwards). `now_ms` is never before the group's clock. Nothing a client may send raises: errors are
    answers. A request and a deadline that is due are both events; whoever calls fires deadlines in time order
    (`state.fold`).
    """
    turn = Turn(group, group_id, _cause(event), now_ms, config)
    if group is not None:
        assert now_ms >= group.clock_ms, "a group's clock never runs backwards"
        group.clock_ms = now_ms
    match event:
        case Received():
            _received(turn, event)
        case DeadlineReached():
            expiry.deadline_reached(turn, event)
        case Failed():
            turn.rule("F1")
            refuse(turn, event.request, reply_to(event), ErrorCode.UNKNOWN_SERVER_ERROR)
        case Quarantine():
            _quarantine(turn, event)
    return turn.effects()


def _cause(event: Event) -> str:
    match event:
        case Received() | Failed():
            return event.request_id
        case DeadlineReached():
            return str(event)
        case Quarantine():
            return str(event.deadline)


def reply_to(event: Received | Failed) -> ReplyTo:
    request = event.request
    return ReplyTo(request.reply_partition, request.correlation_id, event.request_id)


def _received(turn: Turn, event: Received) -> None:
    request, to = event.request, reply_to(event)
    if not request.group_id:
        turn.rule("P1")
        return refuse(turn, request, to, ErrorCode.INVALID_GROUP_ID)
    if turn.has_group and event.late_by_ms:
        turn.rule("F3")
        turn.record(
            EventType.APPLIED_LATE,
            "a request stands in the log behind a deadline that fired; it is applied at the group's clock",
            late_by_ms=event.late_by_ms,
        )
    if turn.has_group and turn.group.quarantined is not None and not isinstance(request, ReleaseGroup):
        turn.rule("F2")
        return refuse(turn, request, to, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    match request:
        case Heartbeat():
            heartbeat(turn, request, to)
        case JoinGroup():
            join(turn, request, to)
        case SyncGroup():
            sync(turn, request, to)
        case LeaveGroup():
            leave(turn, request, to)
        case ReleaseGroup():
            _release(turn, to)


def refuse(turn: Turn, request: AnyRequest, to: ReplyTo, error: ErrorCode) -> None:
    """Answer any request with an error alone; a JoinGroup has its member id echoed, as Kafka does."""
    echoed = {"member_id": request.member_id} if isinstance(request, JoinGroup) else {}
    turn.reply(to, RESPONSE_TO[type(request)], error, **echoed)


def _quarantine(turn: Turn, event: Quarantine) -> None:
    """Stop the group's deadlines; whoever waits for an answer of it gets one."""
    turn.rule("F2")
    group = turn.group
    group.quarantined = event.error
    turn.record(EventType.QUARANTINED, f"{event.deadline} raised {event.error}")
    for member in group.members.values():
        if member.parked_join is not None:
            turn.reply(member.parked_join, JoinGroupResponse, ErrorCode.UNKNOWN_SERVER_ERROR)
        if member.parked_sync is not None:
            turn.reply(member.parked_sync, SyncGroupResponse, ErrorCode.UNKNOWN_SERVER_ERROR)
        member.parked_join = member.parked_sync = None
        member.is_new = False


def _release(turn: Turn, to: ReplyTo) -> None:
    """Let deadlines run again. Those of the group that passed meanwhile are due now; members, whose
    heartbeats were refused, have a session anew, as in Kafka when a coordinator takes a group over.
    """
    turn.rule("F4")
    if turn.has_group and turn.group.quarantined is not None:
        turn.group.quarantined = None
        for member in turn.group.members.values():
            turn.arm_session(member)
        turn.deadline(0)
        turn.record(EventType.RELEASED, "released by an operator; its deadlines run again")
    turn.reply(to, ReleaseGroupResponse)
