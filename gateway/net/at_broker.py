"""The requests of one client's connection at its broker, in the order of the responses: the client's, and
those that the gateway sends there as the client.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.apis.api import Screened
from gateway.net.writing import ResponseSlot
from gateway.upstream.connections import CLIENT_ID, Upstream, UpstreamLost
from gateway.upstream.passthrough import PassedSasl, SaslReply
from gateway.wire import codec, offload
from gateway.wire.framing import RequestHeader

CLOSED = "the broker closed the connection on which it had authenticated the client"

ClientsRequest = tuple[RequestHeader, ResponseSlot, Screened | None]


class AtBroker:
    """The requests at the broker that have no response yet, and the client's authentication there.

    A request of the gateway delays an authentication by at most `timeout_s`. `end` ends the client's
    connection.
    """

    def __init__(self, end: Callable[[Exception], None], timeout_s: float) -> None:
        self._end = end
        self._timeout_s = timeout_s
        self._requests: asyncio.Queue[ClientsRequest | asyncio.Future[bytes]] = asyncio.Queue()
        self._upstream: Upstream | None = None
        self._sasl = PassedSasl()
        self._own: asyncio.Future[bytes] | None = None

    def put(self, header: RequestHeader, slot: ResponseSlot, screened: Screened | None) -> None:
        """Add a request of the client, which is sent at once."""
        self._requests.put_nowait((header, slot, screened))

    async def next(self, upstream: Upstream) -> ClientsRequest:
        """Return the client's request whose response comes next on this connection. Raises UpstreamLost."""
        self._upstream = upstream
        while isinstance(request := await self._requests.get(), asyncio.Future):
            request.set_result(await upstream.receive())
            self._own = None
        return request

    def close(self) -> None:
        """End the gateway's request, if any, because the connection has ended."""
        self._upstream = None
        if self._own is not None and not self._own.done():
            self._own.set_exception(UpstreamLost("the client's connection has ended"))
            self._own.exception()  # perhaps nobody waits for it any more

    async def relay_sasl(self, header: RequestHeader, message: bytes, upstream: Upstream) -> SaslReply:
        """Relay a SASL request of the client when no other request is pending. Raises ProtocolError,
        UpstreamLost.
        """
        if self._own is not None:
            await asyncio.wait([self._own], timeout=self._timeout_s)
            if self._own is not None:
                raise UpstreamLost("the broker does not answer a request of the gateway")
        return await self._sasl.relay(header, message, upstream)

    async def ask(self, api_key: int, version: int, body: codec.Fields) -> Any:
        """Send a request of the gateway as the client, one at a time, and return the response.

        Raises UpstreamLost, also while the client authenticates.
        """
        request = await offload.encode_request(api_key, version, 0, CLIENT_ID, body)
        upstream = self._upstream
        if upstream is not None and upstream.ended:
            lost = UpstreamLost(CLOSED)
            # The client then authenticates again.
            self._end(lost)
            raise lost
        if upstream is None or self._sasl.is_running or self._own is not None:
            raise UpstreamLost("the client's connection to the broker cannot be used now")
        self._own = own = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(own)
        await upstream.send(request)
        return await offload.decode_response(api_key, version, await asyncio.shield(own))
