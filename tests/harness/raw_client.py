"""A connection to a gateway or a broker that sends given bytes and reads answers one by one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from itertools import count
from typing import Any

from gateway.wire import codec
from gateway.wire.framing import framed
from kafka_why.connections.address import Address

PATIENCE_S = 60.0


class RawClient:
    """A connection that sends given bytes and reads answers one by one."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str = "me"
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._client_id = client_id
        self._apis: dict[int, tuple[int, int]] = {}  # key and version of each request, by its correlation id
        self._correlation_ids = count(1)

    async def send(self, api_key: int, version: int, **body: Any) -> int:
        """Send a request, and return its correlation id."""
        correlation_id = next(self._correlation_ids)
        self._apis[correlation_id] = (api_key, version)
        request = codec.encode_request(api_key, version, correlation_id, self._client_id, body)
        await self.send_bytes(framed(request))
        return correlation_id

    async def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def receive_bytes(self) -> bytes:
        """Return the next answer. Raises asyncio.IncompleteReadError if the connection is closed."""
        async with asyncio.timeout(PATIENCE_S):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return await self.reader.readexactly(size)

    async def receive(self) -> tuple[int, Any]:
        """Return the next answer's correlation id and content."""
        answer = await self.receive_bytes()
        correlation_id = int.from_bytes(answer[:4], "big")
        return correlation_id, codec.decode_response(*self._apis[correlation_id], answer)

    async def ask(self, api_key: int, version: int, **body: Any) -> Any:
        """Send a request and return its answer. No other request may be pending."""
        request_id = await self.send(api_key, version, **body)
        response_id, response = await self.receive()
        assert response_id == request_id
        return response

    async def rest(self) -> bytes:
        """Return all bytes until the other side closes the connection."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    async def is_closed(self) -> bool:
        """Return True if the other side closes the connection without another answer."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def connected(address: Address | str) -> AsyncIterator[RawClient]:
    """Yield a connection to this address, until the block ends."""
    parsed = Address.parse(address) if isinstance(address, str) else address
    reader, writer = await asyncio.open_connection(parsed.host, parsed.port)
    with closing(writer):
        yield RawClient(reader, writer)
