"""DeleteGroups (key 42). The coordinator gets one request for each group, and parks that for a share group
until the share coordinator has deleted its state. Share groups of the brokers' own coordinators are deleted
by these.
"""

from functools import partial
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api, Passed
from gateway.apis.batch import together
from gateway.apis.context import Deferred, RequestContext
from gateway.apis.guards import may_delete_group
from gateway.apis.screened import Screened
from gateway.apis.shares_at_brokers import are_at_brokers
from gateway.coordinator.backend import ANSWER_TIMEOUT_MS, SHARE_STATE_TIMEOUT_MS
from gateway.wire import beside
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import DeleteGroup
from state.kafka.share_group import PROTOCOL_TYPE as SHARE


async def serve(context: RequestContext, request: Any) -> Deferred:
    """Delete groups that have no members."""
    group_ids = list(dict.fromkeys(request.groups_names))
    return together(context, partial(_delete, context), group_ids, lambda results: {"results": results})


def _delete(context: RequestContext, group_id: str) -> Fields | Deferred:
    if not may_delete_group(context, group_id):
        return {"group_id": group_id, "error_code": GatewayError.GROUP_AUTHORIZATION_FAILED}
    is_shared = context.services.groups.type_of(group_id) == SHARE
    timeout_ms = SHARE_STATE_TIMEOUT_MS if is_shared else ANSWER_TIMEOUT_MS
    response = context.send(DeleteGroup(**context.to_group(group_id)), timeout_ms)
    return Deferred(response, lambda answer: {"group_id": group_id, "error_code": answer.error_code})


async def _screen_share_groups(context: RequestContext, message: bytes) -> Screened | None:
    """Groups of other types at the brokers are not deleted: clients of the gateway do not see them."""
    request = await beside.decode_passed(context.header, message)
    async with context.fan_out.acquired(context):
        deferred = await serve(context, request)
        results = deferred.fields(await deferred.response)["results"]
        missing = [one["group_id"] for one in results if one["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND]
        found = await context.services.share_groups.existing(context.node_id, missing)
    others = [one for one in results if one["group_id"] not in found]
    if not found:
        return Screened(None, {"results": others})
    request.groups_names = [group_id for group_id in missing if group_id in found]
    return Screened(await beside.with_body(context.header, message, request), {"results": others})


API = Api(
    key=ApiKey.DeleteGroups,
    serve=serve,
    is_passed=are_at_brokers,
)
ROW = Passed(key=ApiKey.DeleteGroups, is_free=True, screen=_screen_share_groups)
