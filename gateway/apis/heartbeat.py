"""Heartbeat (key 12)."""

from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.guards import GROUP_REFUSED, may_read_group
from gateway.wire.codec import Fields
from gateway.wire.heartbeats import decode_heartbeat
from kafka_why.contract.kafka.requests import Heartbeat
from kafka_why.contract.kafka.responses import HeartbeatResponse


def serve(context: RequestContext, request: Any) -> Fields | Deferred:
    """Pass the member's heartbeat to the coordinator."""
    if not may_read_group(context, request.group_id):
        return GROUP_REFUSED
    response = context.send(
        Heartbeat(
            **context.to_group(request.group_id),
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
        )
    )
    return Deferred(response, _fields)


def _fields(answer: HeartbeatResponse) -> Fields:
    return {"error_code": answer.error_code}


API = Api(key=ApiKey.Heartbeat, serve_at_once=serve, decode=decode_heartbeat)
