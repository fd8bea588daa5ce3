"""A client's connection to one server."""

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from itertools import count

from gateway.wire import codec
from gateway.wire.framing import framed

_HANDSHAKE, _AUTHENTICATE = (17, 1), (36, 1)


class WrongOrder(AssertionError):
    """A server did not answer the requests of a connection in their order."""


class Connection:
    """A connection. Several requests may be in flight; the answers have to come in the requests' order."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = count(1)
        self._reading = asyncio.Lock()  # fair: the tasks that wait for it get it in order

    async def ask(self, api_key: int, version: int, client_id: str, fields: codec.Fields) -> bytes | None:
        """Send a request and return the answer's bytes, or None if the server closes the connection. Raises
        WrongOrder.
        """
        number = next(self._numbers)
        self._writer.write(framed(codec.encode_request(api_key, version, number, client_id, fields)))
        async with self._reading:
            try:
                await self._writer.drain()
                size = int.from_bytes(await self._reader.readexactly(4))
                answer = await self._reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
        if int.from_bytes(answer[:4]) != number:
            raise WrongOrder(
                f"the answer to request {int.from_bytes(answer[:4])} came before that to {number}"
            )
        return answer

    async def authenticate(self, name: str, password: str) -> None:
        """Authenticate by SASL/PLAIN. Raises AssertionError if the server refuses."""
        for (api_key, version), fields in (
            (_HANDSHAKE, {"mechanism": "PLAIN"}),
            (_AUTHENTICATE, {"auth_bytes": f"\0{name}\0{password}".encode()}),
        ):
            answer = await self.ask(api_key, version, "login", fields)
            assert answer is not None, "the server closed the connection"
            assert codec.decode_response(api_key, version, answer).error_code == 0

    async def close(self) -> None:
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
