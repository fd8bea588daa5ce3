"""The gateway's own requests to chosen brokers, over connections that are kept."""

from contextlib import suppress
from itertools import count
from typing import Any

from gateway.fairness import Room
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import CLIENT_ID, Address, Upstream, UpstreamLost
from gateway.wire import codec

# A broker handles the requests of one connection one after the other.
CONNECTIONS_PER_BROKER = 8


class OwnRequests:
    """Sends requests to brokers by their node ids. A broker has at most CONNECTIONS_PER_BROKER of these
    connections at a time, each with one request under way. A connection without a request is kept.

    Only for requests that may be sent twice, because a kept connection may have ended unseen.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = count(1)
        self._kept: dict[Address, list[Upstream]] = {}
        self._room: dict[Address, Room] = {}

    async def ask(self, node_id: int | None, api_key: int, version: int, body: codec.Fields) -> Any:
        """Return the response of this broker, or with None of any. Raises UpstreamLost."""
        if node_id is not None:
            return await self._ask(await self._address(node_id), api_key, version, body)
        for live in self._cluster.live:
            with suppress(UpstreamLost):
                return await self._ask(self._cluster.nodes[live], api_key, version, body)
        return await self._cluster.ask(api_key, version, body)

    async def _ask(self, address: Address, api_key: int, version: int, body: codec.Fields) -> Any:
        async with self._room.setdefault(address, Room(CONNECTIONS_PER_BROKER)):
            kept = self._kept.setdefault(address, [])
            while kept:
                with suppress(UpstreamLost):
                    return await self._ask_on(kept.pop(), kept, api_key, version, body)
            upstream = await self._cluster.connect(address)
            return await self._ask_on(upstream, kept, api_key, version, body)

    def close(self) -> None:
        """Close the kept connections. The others end with their requests."""
        for kept in self._kept.values():
            for upstream in kept:
                upstream.close()
            kept.clear()

    async def _address(self, node_id: int) -> Address:
        if node_id not in self._cluster.nodes:
            await self._cluster.refresh()
        if node_id not in self._cluster.nodes:
            raise UpstreamLost(f"no broker has the node id {node_id}")
        return self._cluster.nodes[node_id]

    async def _ask_on(
        self, upstream: Upstream, kept: list[Upstream], api_key: int, version: int, body: codec.Fields
    ) -> Any:
        request = codec.encode_request(api_key, version, next(self._numbers), CLIENT_ID, body)
        answer = await upstream.request(request)
        kept.append(upstream)
        return codec.decode_response(api_key, version, answer)
