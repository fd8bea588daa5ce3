"""SyncGroup (key 14). The coordinator parks the request until the leader has sent the assignment."""

from typing import Any

from gateway.apis.context import Deferred, RequestContext
from gateway.coordinator.backend import PARKED_TIMEOUT_MS
from gateway.wire.codec import Fields
from state.kafka.requests import MemberAssignment, SyncGroup
from state.kafka.responses import SyncGroupResponse


def serve(context: RequestContext, request: Any) -> Deferred:
    """Request the member's assignment."""
    response = context.ask(
        SyncGroup(
            **context.to_group(request.group_id),
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=[MemberAssignment(a.member_id, a.assignment) for a in request.assignments],
        ),
        SyncGroupResponse,
        PARKED_TIMEOUT_MS,
    )
    return Deferred(response, _fields, holds_back=True)


def _fields(answer: SyncGroupResponse) -> Fields:
    return {
        "error_code": answer.error_code,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }
