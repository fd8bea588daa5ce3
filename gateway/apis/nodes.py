"""The addresses of brokers in responses. The gateway replaces each by its listener for that broker, so
clients never learn a broker's address. Metadata (key 3) and DescribeCluster (60) carry addresses, and so do
Produce (0), Fetch (1), ShareFetch (78) and ShareAcknowledge (79) if a leader has moved (KIP-951, KIP-932).
DescribeQuorum (55) has those of controllers.
"""

from collections.abc import Callable, Iterable
from typing import Any

from kafka.protocol.api_key import ApiKey

from gateway.apis.context import RequestContext
from gateway.apis.internal_topics import mark
from gateway.upstream.connections import Address
from gateway.wire import codec

_FIRST_QUORUM_WITH_NODES = 2


async def rewrite_metadata(context: RequestContext, response: Any) -> None:
    """Metadata: replace the addresses of all live brokers, and mark the coordinator's own topics."""
    brokers = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
    if brokers:
        context.services.cluster.update_brokers(brokers, all_of_them=True)
    await _rewrite(context, ((broker.node_id, broker) for broker in response.brokers))
    mark(context, response.topics)


async def rewrite_cluster(context: RequestContext, response: Any) -> None:
    """DescribeCluster, which may also name fenced brokers."""
    context.services.cluster.update_brokers({b.broker_id: Address(b.host, b.port) for b in response.brokers})
    await _rewrite(context, ((broker.broker_id, broker) for broker in response.brokers))


async def rewrite_endpoints(context: RequestContext, response: Any) -> None:
    """Records: the current leaders of partitions whose leader is not the one the client assumed."""
    endpoints = response.node_endpoints or []
    context.services.cluster.update_brokers({e.node_id: Address(e.host, e.port) for e in endpoints})
    await _rewrite(context, ((endpoint.node_id, endpoint) for endpoint in endpoints))


async def rewrite_quorum(context: RequestContext, response: Any) -> None:
    """DescribeQuorum: the controllers lose their addresses. They have no listener of the gateway."""
    for node in response.nodes:
        node.listeners = []


def names_controllers(version: int, response: bytes) -> bool:
    """Whether a response of this version of DescribeQuorum has the controllers' addresses (KIP-853)."""
    return version >= _FIRST_QUORUM_WITH_NODES


def carries_endpoints(key: ApiKey, first_version: int) -> Callable[[int, bytes], bool]:
    """Return whether a response has addresses, which it may have from this version on. A response without
    addresses passes as it is.
    """

    def carries(version: int, response: bytes) -> bool:
        return version >= first_version and bool(codec.decode_frequent(key, version, response).node_endpoints)

    return carries


async def _rewrite(context: RequestContext, named: Iterable[tuple[int, Any]]) -> None:
    for node_id, message in named:
        at = await context.listener(node_id)
        message.host, message.port = at.host, at.port
