"""Heartbeat (key 12)."""

from typing import Any

from gateway.apis.context import RequestContext
from gateway.wire.codec import Fields
from state.kafka.requests import Heartbeat
from state.kafka.responses import HeartbeatResponse


async def serve(context: RequestContext, request: Any) -> Fields:
    """Pass the member's heartbeat to the coordinator."""
    answer = await context.services.backend.ask(
        Heartbeat(
            **context.to_group(request.group_id),
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
        ),
        HeartbeatResponse,
    )
    return {"error_code": answer.error_code}
