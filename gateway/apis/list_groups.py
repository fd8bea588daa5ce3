"""ListGroups (key 16), from the groups topic: see `gateway.coordinator.fresh_groups`."""

from collections.abc import Iterable
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.authorized import may_describe_group
from gateway.apis.context import RequestContext
from gateway.authorization.acls import CLUSTER_NAME, Operation, ResourceType
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from state.errors import ErrorCode
from state.kafka.responses import ListedGroup


async def serve(context: RequestContext, request: Any) -> Fields:
    """The groups of this listener's broker that the client may describe. The first listener belongs to no
    broker and lists the groups of all.
    """
    groups = await context.services.groups.groups()
    if groups is None:
        return {"error_code": GatewayError.COORDINATOR_LOAD_IN_PROGRESS}
    describes_all = context.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
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


def _is_here(context: RequestContext, group: ListedGroup) -> bool:
    return context.node_id is None or context.coordinator_of(group.group_id) == context.node_id


def _lowered(names: Iterable[str]) -> set[str]:
    return {name.strip().lower() for name in names}


# A list has what the requests before it did.
API = Api(key=ApiKey.ListGroups, serve=serve, is_alone=True)
