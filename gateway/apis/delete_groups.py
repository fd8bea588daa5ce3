"""DeleteGroups (key 42). The coordinator gets one request for each group."""

from functools import partial
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.authorized import may_delete_group
from gateway.apis.batch import together
from gateway.apis.context import Deferred, RequestContext
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from state.kafka.requests import DeleteGroup


async def serve(context: RequestContext, request: Any) -> Deferred:
    """Delete groups that have no members."""
    group_ids = list(dict.fromkeys(request.groups_names))
    return together(context, partial(_delete, context), group_ids, lambda results: {"results": results})


def _delete(context: RequestContext, group_id: str) -> Fields | Deferred:
    if not may_delete_group(context, group_id):
        return {"group_id": group_id, "error_code": GatewayError.GROUP_AUTHORIZATION_FAILED}
    response = context.send(DeleteGroup(**context.to_group(group_id)), ANSWER_TIMEOUT_MS)
    return Deferred(response, lambda answer: {"group_id": group_id, "error_code": answer.error_code})


API = Api(key=ApiKey.DeleteGroups, serve=serve)
