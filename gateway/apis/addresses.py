"""The addresses of brokers in responses. The gateway replaces each address by that of its listener for the
broker, so clients never learn a broker's address. Metadata (key 3) and DescribeCluster (60) carry addresses,
and so do Produce (0), Fetch (1), ShareFetch (78) and ShareAcknowledge (79) if a leader has moved (KIP-951,
KIP-932). DescribeQuorum (55) has the addresses of controllers. FindCoordinator (10) is answered by the
gateway for groups, by a broker for transactions.
"""

from collections.abc import Sequence
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.api import Api, may_describe_group
from gateway.apis.context import RequestContext
from gateway.apis.internal_topics import mark_internal
from gateway.upstream.connections import Address
from gateway.wire import codec
from gateway.wire.codec import Fields, GatewayError
from kafka_why.contract.messages import ErrorCode

_FIRST_QUORUM_WITH_NODES = 2


async def rewrite_metadata(context: RequestContext, response: Any) -> None:
    """Replace the addresses of all live brokers in a Metadata response, and mark the coordinator's own
    topics.
    """
    brokers = [(broker.node_id, broker) for broker in response.brokers]
    # A response without brokers does not mean that none is alive.
    await _rewrite(context, brokers, all_of_them=bool(brokers))
    mark_internal(context, response.topics)


async def rewrite_cluster(context: RequestContext, response: Any) -> None:
    """Replace the addresses of brokers in a DescribeCluster response, which may also name fenced brokers."""
    await _rewrite(context, [(broker.broker_id, broker) for broker in response.brokers])


async def rewrite_endpoints(context: RequestContext, response: Any) -> None:
    """Replace the addresses of current leaders. A response has them if its broker is no longer the leader."""
    await _rewrite(context, [(endpoint.node_id, endpoint) for endpoint in response.node_endpoints or ()])


async def rewrite_quorum(context: RequestContext, response: Any) -> None:
    """Remove the addresses of controllers from a DescribeQuorum response. The gateway has no listener for
    them.
    """
    for node in response.nodes:
        node.listeners = []


def names_controllers(version: int, response: bytes) -> bool:
    """Return True if a DescribeQuorum response of this version has the controllers' addresses (KIP-853)."""
    return version >= _FIRST_QUORUM_WITH_NODES


def carries_endpoints(key: ApiKey, first_version: int, version: int, response: bytes) -> bool:
    """Return True if a response to this API has addresses.

    Only versions from `first_version` on may have them. A response without addresses passes unchanged.
    """
    return version >= first_version and bool(codec.decode_frequent(key, version, response).node_endpoints)


async def _rewrite(
    context: RequestContext, entries: Sequence[tuple[int, Any]], *, all_of_them: bool = False
) -> None:
    """Replace the brokers' addresses in the entries of a response by those of their listeners.

    `entries` has the node id and the entry of each broker. The cluster stores the brokers' own addresses.
    `all_of_them` means that the response lists all live brokers.
    """
    addresses = {node_id: Address(entry.host, entry.port) for node_id, entry in entries}
    context.services.cluster.update_brokers(addresses, all_of_them=all_of_them)
    for node_id, entry in entries:
        listener = await context.listener(node_id)
        entry.host, entry.port = listener.host, listener.port


GROUP, TRANSACTION = 0, 1  # FindCoordinatorRequest.CoordinatorType
_FIRST_VERSION_WITH_KEYS = 4
NOWHERE = -1  # Kafka's node id and port if there is no coordinator


def is_for_broker(request: Any) -> bool:
    """Return True if a broker has to answer: only brokers know the coordinators of transactions."""
    return bool(request.key_type == TRANSACTION)


async def serve_find_coordinator(context: RequestContext, request: Any) -> Fields:
    """Return a listener's address as that of each group's coordinator (`RequestContext.coordinator_of`).

    A key of another type is refused: only brokers look for the coordinators of share partitions (KIP-932).
    """
    has_keys = context.version >= _FIRST_VERSION_WITH_KEYS
    keys = request.coordinator_keys if has_keys else [request.key]
    max_keys, slices = context.services.cluster.limits.groups_per_request, context.slices()
    coordinators = []
    for index, key in enumerate(keys):
        coordinator = (
            await _coordinator_fields(context, request.key_type, key)
            if index < max_keys
            else _refused_coordinator(key, ErrorCode.INVALID_REQUEST)
        )
        coordinators.append(coordinator)
        await slices.pause()
    if has_keys:
        return {"coordinators": coordinators}
    (coordinator,) = coordinators
    return {
        **{name: coordinator[name] for name in ("node_id", "host", "port", "error_code")},
        "error_message": coordinator["error_code"].name,
    }


async def _coordinator_fields(context: RequestContext, key_type: int, key: str) -> dict[str, Any]:
    """Return the response's entry for a key: the listener of its coordinator, or an error."""
    if key_type != GROUP:
        return _refused_coordinator(key, ErrorCode.INVALID_REQUEST)
    if not may_describe_group(context, key):
        return _refused_coordinator(key, GatewayError.GROUP_AUTHORIZATION_FAILED)
    context.services.share_groups.refresh_leaders(key)
    node_id = context.coordinator_of(key)
    if node_id is None:
        return _refused_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    listener = await context.listener(node_id)
    return {
        "key": key,
        "node_id": node_id,
        "host": listener.host,
        "port": listener.port,
        "error_code": ErrorCode.NONE,
        "error_message": "",
    }


def _refused_coordinator(key: str, error: ErrorCode | GatewayError) -> dict[str, Any]:
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
    coordinators = response.coordinators if context.version >= _FIRST_VERSION_WITH_KEYS else [response]
    await _rewrite(context, [(entry.node_id, entry) for entry in coordinators if entry.node_id != NOWHERE])


# The gateway answers for groups without the coordinator. A broker answers for transactions.
FIND_COORDINATOR = Api(
    key=ApiKey.FindCoordinator,
    serve=serve_find_coordinator,
    decode=codec.decode_passed,
    asks_coordinator=False,
    is_metered=False,
    is_for_broker=is_for_broker,
)
