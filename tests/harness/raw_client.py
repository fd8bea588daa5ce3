"""A connection to a gateway or a broker that sends given bytes and reads answers one by one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from itertools import count
from typing import Any

from gateway.wire import codec
from gateway.wire.framing import framed
from kafka_why.connections.address import Address

PATIENCE_S = 30.0


class RawClient:
    """A connection that sends given bytes and reads answers one by one."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str = "me"
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._client_id = client_id
        self._sent: dict[int, tuple[int, int]] = {}
        self._numbers = count(1)

    async def send(self, api_key: int, version: int, **body: Any) -> int:
        """Send a request, and return its correlation id."""
        number = next(self._numbers)
        self._sent[number] = (api_key, version)
        await self.send_bytes(framed(codec.encode_request(api_key, version, number, self._client_id, body)))
        return number

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
        number = int.from_bytes(answer[:4], "big")
        return number, codec.decode_response(*self._sent[number], answer)

    async def ask(self, api_key: int, version: int, **body: Any) -> Any:
        """Send a request and return its answer. No other request may be pending."""
        number = await self.send(api_key, version, **body)
        answered, response = await self.receive()
        assert answered == number
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
    at = Address.parse(address) if isinstance(address, str) else address
    reader, writer = await asyncio.open_connection(at.host, at.port)
    with closing(writer):
        yield RawClient(reader, writer)
