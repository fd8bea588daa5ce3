"""A load balancer of TCP connections: one address for several gateways."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle

from kafka_why.connections.address import Address
from kafka_why.lifetimes import Closeable

_CHUNK_BYTES = 64 * 1024
_POLL_S = 0.05


class Balancer(Closeable):
    """Listens on `address` and passes each connection to one of `servers`, in turn: to the next one that
    accepts it. While none does, it refuses connections, as a balancer that only forwards packets would.
    """

    def __init__(self, address: Address, servers: Sequence[Address]) -> None:
        self._address, self._servers = address, servers
        self._turns = cycle(range(len(servers)))
        self._runner = asyncio.Runner()
        self._runner.run(self._listen())
        self._thread = threading.Thread(target=self._runner.get_loop().run_forever, name="balancer")
        self._thread.start()

    def close(self) -> None:
        """Disconnect all clients."""
        loop = self._runner.get_loop()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        self._runner.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, self._address.host, self._address.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (joined := await self._connect()) is not None:
            answers, requests = joined
            await asyncio.gather(_pass(reader, requests), _pass(answers, writer))
            return
        writer.transport.abort()
        if self._server.is_serving():
            self._server.close()
            while (joined := await self._connect()) is None:
                await asyncio.sleep(_POLL_S)
            joined[1].transport.abort()
            await self._listen()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to the next server that accepts, if one does."""
        first = next(self._turns)
        for server in (*self._servers[first:], *self._servers[:first]):
            with suppress(ConnectionError):
                return await asyncio.open_connection(server.host, server.port)
        return None


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until either end is gone, and then close the other one."""
    with suppress(ConnectionError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
