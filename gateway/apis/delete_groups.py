"""DeleteGroups (key 42). The coordinator gets one request for each group."""

from functools import partial
from typing import Any

from gateway.apis.authorized import may_delete_group
from gateway.apis.batch import each
from gateway.apis.context import RequestContext
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from state.kafka.requests import DeleteGroup
from state.kafka.responses import DeleteGroupResponse


async def serve(context: RequestContext, request: Any) -> Fields:
    """Delete groups that have no members."""
    group_ids = list(dict.fromkeys(request.groups_names))
    return {"results": await each(partial(_delete, context), group_ids)}


async def _delete(context: RequestContext, group_id: str) -> Fields:
    if not may_delete_group(context, group_id):
        return {"group_id": group_id, "error_code": GatewayError.GROUP_AUTHORIZATION_FAILED}
    answer = await context.services.backend.ask(
        DeleteGroup(**context.to_group(group_id)), DeleteGroupResponse, ANSWER_TIMEOUT_MS
    )
    return {"group_id": group_id, "error_code": answer.error_code}
