"""Responses: one Struct a message, with the fields of Kafka's message of that name in snake_case.

Source: clients/src/main/resources/common/message/*Response.json of Apache Kafka.
"""

from msgspec import Struct

from state.errors import ErrorCode
from state.messages import RECORD_VERSION

NO_GENERATION = -1


class Response(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every response carries. `rule` is the row of docs/rules.md that decided it."""

    group_id: str
    correlation_id: str
    request: str
    error_code: ErrorCode
    rule: str = ""
    version: int = RECORD_VERSION


class JoinGroupMember(Struct, frozen=True):
    """One member as the leader sees it; `metadata` is the member's for the protocol that was selected."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResponse(Response, frozen=True, kw_only=True, tag="JoinGroup"):
    """`members` is empty for all but the leader."""

    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: list[JoinGroupMember] = []


class SyncGroupResponse(Response, frozen=True, kw_only=True, tag="SyncGroup"):
    """`assignment` is what the leader gave this member, opaque to the coordinator."""

    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatResponse(Response, frozen=True, kw_only=True, tag="Heartbeat"):
    """Nothing but the error code."""


class LeftMember(Struct, frozen=True):
    """The outcome for one member of a LeaveGroup batch; the ids are echoed as they came."""

    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


class LeaveGroupResponse(Response, frozen=True, kw_only=True, tag="LeaveGroup"):
    """One entry a member of the request, in its order."""

    members: list[LeftMember] = []


class ReleaseGroupResponse(Response, frozen=True, kw_only=True, tag="ReleaseGroup"):
    """Nothing but the error code."""


class ErrorResponse(Response, frozen=True, kw_only=True, tag="Error"):
    """The answer to what no handler could answer: malformed, of an unknown type, or a fault of the
    coordinator.
    """

    error_message: str


AnyResponse = (
    JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | ReleaseGroupResponse
    | ErrorResponse
)
