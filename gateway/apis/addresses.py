"""The addresses of brokers in responses. The gateway replaces each address by that of its listener for the
broker, so clients never learn a broker's address. Metadata (key 3) and DescribeCluster (60) carry addresses,
and so do Produce (0), Fetch (1), ShareFetch (78) and ShareAcknowledge (79) if a leader has moved (KIP-951,
KIP-932). DescribeQuorum (55) has those of controllers. FindCoordinator (10) is answered by the gateway for
groups, by a broker for transactions.
"""

from collections.abc import Callable, Iterable
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api, may_describe_group
from gateway.apis.context import RequestContext
from gateway.apis.internal_topics import mark
from gateway.upstream.connections import Address
from gateway.wire import codec
from gateway.wire.codec import Fields, GatewayError
from kafka_why.contract.messages import ErrorCode

_FIRST_QUORUM_WITH_NODES = 2


async def rewrite_metadata(context: RequestContext, response: Any) -> None:
    """Replace the addresses of all live brokers in a Metadata response, and mark the coordinator's own
    topics.
    """
    brokers = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
    if brokers:
        context.services.cluster.update_brokers(brokers, all_of_them=True)
    await _rewrite(context, ((broker.node_id, broker) for broker in response.brokers))
    mark(context, response.topics)


async def rewrite_cluster(context: RequestContext, response: Any) -> None:
    """Replace the addresses of brokers in a DescribeCluster response, which may also name fenced brokers."""
    context.services.cluster.update_brokers({b.broker_id: Address(b.host, b.port) for b in response.brokers})
    await _rewrite(context, ((broker.broker_id, broker) for broker in response.brokers))


async def rewrite_endpoints(context: RequestContext, response: Any) -> None:
    """Replace the addresses of current leaders, which a response has if the client queried another broker."""
    endpoints = response.node_endpoints or []
    context.services.cluster.update_brokers({e.node_id: Address(e.host, e.port) for e in endpoints})
    await _rewrite(context, ((endpoint.node_id, endpoint) for endpoint in endpoints))


async def rewrite_quorum(context: RequestContext, response: Any) -> None:
    """Remove the addresses of controllers from a DescribeQuorum response. The gateway has no listener for
    them.
    """
    for node in response.nodes:
        node.listeners = []


def names_controllers(version: int, response: bytes) -> bool:
    """Return True if a DescribeQuorum response of this version has the controllers' addresses (KIP-853)."""
    return version >= _FIRST_QUORUM_WITH_NODES


def carries_endpoints(key: ApiKey, first_version: int) -> Callable[[int, bytes], bool]:
    """Return a function that returns True if a response has addresses.

    Only versions from `first_version` on may have them. A response without addresses passes unchanged.
    """

    def carries(version: int, response: bytes) -> bool:
        return version >= first_version and bool(codec.decode_frequent(key, version, response).node_endpoints)

    return carries


async def _rewrite(context: RequestContext, named: Iterable[tuple[int, Any]]) -> None:
    for node_id, message in named:
        at = await context.listener(node_id)
        message.host, message.port = at.host, at.port


GROUP, TRANSACTION = 0, 1  # FindCoordinatorRequest.CoordinatorType
_FIRST_VERSION_WITH_KEYS = 4
NOWHERE = -1


def is_for_broker(request: Any) -> bool:
    """Return True if a broker has to answer: only brokers know the coordinators of transactions."""
    return bool(request.key_type == TRANSACTION)


async def serve_find_coordinator(context: RequestContext, request: Any) -> Fields:
    """Return this gateway's address as that of the coordinator of groups.

    A key of another type is refused: only brokers look for the coordinators of share partitions (KIP-932).
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
        await slices.pause()
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


async def rewrite_coordinators(context: RequestContext, response: Any) -> None:
    """Replace the brokers' addresses with the gateway's listeners in a broker's response about
    transactions.
    """
    for found in response.coordinators if context.version >= _FIRST_VERSION_WITH_KEYS else [response]:
        if found.node_id == NOWHERE:
            continue
        context.services.cluster.update_brokers({found.node_id: Address(found.host, found.port)})
        await _rewrite(context, [(found.node_id, found)])


# The gateway answers for groups without the coordinator. A broker answers for transactions.
FIND_COORDINATOR = Api(
    key=ApiKey.FindCoordinator,
    serve=serve_find_coordinator,
    decode=codec.decode_passed,
    asks_coordinator=False,
    is_metered=False,
    is_for_broker=is_for_broker,
)
