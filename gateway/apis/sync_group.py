"""SyncGroup (key 14). The coordinator parks the request until the leader has sent the assignment."""

from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.guards import GROUP_REFUSED, may_read_group
from gateway.coordinator.backend import PARKED_TIMEOUT_MS
from gateway.wire.codec import Fields
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import MemberAssignment, SyncGroup
from kafka_why.contract.kafka.responses import SyncGroupResponse

_FIRST_VERSION_WITH_PROTOCOL = 5


def serve(context: RequestContext, request: Any) -> Fields | Deferred:
    """Request the member's assignment."""
    if not may_read_group(context, request.group_id):
        return _refused(context, request)
    response = context.send(
        SyncGroup(
            **context.to_group(request.group_id),
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=[MemberAssignment(a.member_id, a.assignment) for a in request.assignments],
        ),
        PARKED_TIMEOUT_MS,
    )
    return Deferred(response, _fields, holds_back=True)


def _refused(context: RequestContext, request: Any) -> Fields:
    """The error of a client that may not. A request without a protocol has its own error all the same, which
    Kafka finds first.
    """
    is_whole = request.protocol_type is not None and request.protocol_name is not None
    if context.version >= _FIRST_VERSION_WITH_PROTOCOL and not is_whole:
        return {"error_code": ErrorCode.INCONSISTENT_GROUP_PROTOCOL}
    return GROUP_REFUSED


def _fields(answer: SyncGroupResponse) -> Fields:
    return {
        "error_code": answer.error_code,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }


API = Api(key=ApiKey.SyncGroup, serve_at_once=serve, parks=SyncGroupResponse)
