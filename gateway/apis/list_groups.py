"""ListGroups (key 16), from the groups topic: see `gateway.coordinator.fresh_groups`."""

from collections.abc import Iterable
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api, Passed
from gateway.apis.authorized import may_describe_group
from gateway.apis.context import RequestContext
from gateway.apis.guards import may_on_cluster
from gateway.apis.screened import Screened
from gateway.apis.shares_at_brokers import are_at_brokers
from gateway.authorization.acls import Operation
from gateway.wire import beside
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from state.errors import ErrorCode
from state.kafka.responses import ListedGroup
from state.kafka.share_group import PROTOCOL_TYPE as SHARE  # their type has the same name


async def serve(context: RequestContext, request: Any) -> Fields:
    """The groups of this listener's broker that the client may describe. The first listener belongs to no
    broker and lists the groups of all.
    """
    groups = await context.services.groups.groups()
    if groups is None:
        return {"error_code": GatewayError.COORDINATOR_LOAD_IN_PROGRESS}
    describes_all = may_on_cluster(context, Operation.DESCRIBE)
    states, types = _lowered(request.states_filter), _lowered(request.types_filter)
    return {
        "error_code": ErrorCode.NONE,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
            for group in groups
            if _is_here(context, group)
            and (not states or group.state.lower() in states)
            and (not types or group.group_type in types)
            and (describes_all or may_describe_group(context, group.group_id))
        ],
    }


async def _screen_share_groups(context: RequestContext, message: bytes) -> Screened | None:
    """The share groups of the listener's broker, and the coordinator's groups beside them."""
    request = await beside.decode_passed(context.header, message)
    own = await serve(context, request)
    types = _lowered(request.types_filter)
    if own["error_code"] or (types and SHARE not in types):
        return Screened(None, own)
    describes_all = may_on_cluster(context, Operation.DESCRIBE)

    def change(response: Any) -> None:
        response.groups = [
            group
            for group in response.groups
            if group.protocol_type == SHARE and (describes_all or may_describe_group(context, group.group_id))
        ]

    return Screened(message, {"groups": own["groups"]}, change)


def _is_here(context: RequestContext, group: ListedGroup) -> bool:
    return context.node_id is None or context.coordinator_of(group.group_id) == context.node_id


def _lowered(names: Iterable[str]) -> set[str]:
    return {name.strip().lower() for name in names}


# A list has what the requests before it did.
API = Api(
    key=ApiKey.ListGroups,
    serve=serve,
    is_alone=True,
    is_passed=are_at_brokers,
)
ROW = Passed(key=ApiKey.ListGroups, is_free=True, screen=_screen_share_groups)
