"""Heartbeat (key 12)."""

from typing import Any

from gateway.apis.context import Call
from gateway.wire.codec import Fields
from state.kafka.requests import Heartbeat
from state.kafka.responses import HeartbeatResponse


async def serve(call: Call, request: Any) -> Fields:
    """Say that the member is alive."""
    answer = await call.services.backend.ask(
        Heartbeat(
            **call.to_group(request.group_id),
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
        ),
        HeartbeatResponse,
    )
    return {"error_code": answer.error_code}
