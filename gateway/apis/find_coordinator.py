"""FindCoordinator (key 10): the gateway answers for groups, a broker for transactions."""

from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api
from gateway.apis.context import RequestContext
from gateway.apis.guards import may_describe_group
from gateway.upstream.connections import Address
from gateway.wire import codec
from gateway.wire.codec import Fields
from gateway.wire.errors import GatewayError
from kafka_why.contract.errors import ErrorCode

GROUP, TRANSACTION = 0, 1  # FindCoordinatorRequest.CoordinatorType
_FIRST_VERSION_WITH_KEYS = 4
NOWHERE = -1


def is_upstreams(request: Any) -> bool:
    """Whether a broker has to answer, because only brokers know the coordinators of transactions."""
    return bool(request.key_type == TRANSACTION)


async def serve(context: RequestContext, request: Any) -> Fields:
    """Name this gateway as the coordinator of groups. Other kinds have none: only brokers look for the
    coordinators of share partitions (KIP-932).
    """
    many = context.version >= _FIRST_VERSION_WITH_KEYS
    keys = request.coordinator_keys if many else [request.key]
    bound, slices = context.services.cluster.limits.groups_per_request, context.slices()
    found = []
    for number, key in enumerate(keys):
        is_beyond = number >= bound
        found.append(
            _refused(key, ErrorCode.INVALID_REQUEST)
            if is_beyond
            else await _find(context, request.key_type, key)
        )
        await slices.rest()
    if many:
        return {"coordinators": found}
    (only,) = found
    return {
        **{name: only[name] for name in ("node_id", "host", "port", "error_code")},
        "error_message": only["error_code"].name,
    }


async def _find(context: RequestContext, key_type: int, key: str) -> dict[str, Any]:
    if key_type != GROUP:
        return _refused(key, ErrorCode.INVALID_REQUEST)
    if not may_describe_group(context, key):
        return _refused(key, GatewayError.GROUP_AUTHORIZATION_FAILED)
    context.services.share_groups.refresh_leaders(key)
    node_id = context.coordinator_of(key)
    if node_id is None:
        return _refused(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    at = await context.listener(node_id)
    return {
        "key": key,
        "node_id": node_id,
        "host": at.host,
        "port": at.port,
        "error_code": ErrorCode.NONE,
        "error_message": "",
    }


def _refused(key: str, error: ErrorCode | GatewayError) -> dict[str, Any]:
    return {
        "key": key,
        "node_id": NOWHERE,
        "host": "",
        "port": NOWHERE,
        "error_code": error,
        "error_message": "",
    }


async def rewrite(context: RequestContext, response: Any) -> None:
    """Replace the brokers' addresses by the gateway's listeners in a broker's response about transactions."""
    for found in response.coordinators if context.version >= _FIRST_VERSION_WITH_KEYS else [response]:
        if found.node_id == NOWHERE:
            continue
        context.services.cluster.update_brokers({found.node_id: Address(found.host, found.port)})
        at = await context.listener(found.node_id)
        found.host, found.port = at.host, at.port


# It costs the coordinator nothing. A broker answers for transactions.
API = Api(
    key=ApiKey.FindCoordinator,
    serve=serve,
    decode=codec.decode_passed,
    asks_coordinator=False,
    is_metered=False,
    is_upstreams=is_upstreams,
)
