"""The brokers' ApiVersions for clients that have not authenticated, cached so that they cost no
connection.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from time import monotonic

from kafka.protocol.api_key import ApiKey

from gateway.upstream.cluster import Cluster, at_any
from gateway.upstream.connections import CLIENT_ID, SOFTWARE, Address, UpstreamLost
from gateway.wire import codec
from gateway.wire.framing import RequestHeader

# A broker's new version is noticed within this time.
AGE_MAX_S = 30.0
_FIRST_WITH_SOFTWARE = 3
_CORRELATION_ID_BYTES = 4

Rewrite = Callable[[RequestHeader, bytes], Awaitable[bytes]]
"""A function that changes a broker's response for clients."""


class CachedApiVersions:
    """A cache of ApiVersions responses.

    For each version a response is requested at most every AGE_MAX_S, from any broker, as the gateway's own
    principal.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._cached: dict[int, tuple[bytes, float]] = {}
        """The response without its correlation id, and the time of the request, by version."""
        self._requesting = asyncio.Lock()

    async def response(self, header: RequestHeader, rewrite: Rewrite) -> bytes:
        """Return a broker's response, changed by `rewrite`, to a request. Raises UpstreamLost."""
        cached = self._cached.get(header.api_version)
        # While another caller requests a response, an old one is good enough.
        if cached is None or (_is_old(cached) and not self._requesting.locked()):
            async with self._requesting:
                cached = self._cached.get(header.api_version)
                if cached is None or _is_old(cached):  # no other caller has requested it meanwhile
                    cached = await self._ask(header, rewrite, cached), monotonic()
                    self._cached[header.api_version] = cached
        body, _ = cached
        return header.correlation_id.to_bytes(_CORRELATION_ID_BYTES, "big", signed=True) + body

    async def _ask(
        self, header: RequestHeader, rewrite: Rewrite, cached: tuple[bytes, float] | None
    ) -> bytes:
        """Return a broker's response without its correlation id, or the cached one if no broker answers.

        Raises UpstreamLost if there is no cached response.
        """
        body = SOFTWARE if header.api_version >= _FIRST_WITH_SOFTWARE else {}
        request = codec.encode_request(
            ApiKey.ApiVersions, header.api_version, header.correlation_id, CLIENT_ID, body
        )

        async def ask(address: Address) -> bytes:
            with closing(await self._cluster.connect(address)) as upstream:
                return await upstream.request(request)

        try:
            response = await at_any(self._cluster.addresses(), ask)
        except UpstreamLost:
            if cached is None:
                raise
            return cached[0]
        return (await rewrite(header, response))[_CORRELATION_ID_BYTES:]


def _is_old(cached: tuple[bytes, float]) -> bool:
    return monotonic() - cached[1] > AGE_MAX_S
