"""Connections to the brokers behind the gateway."""

import asyncio
from typing import Self

from gateway.wire.framing import FrameBuffer, ProtocolError, size_of
from gateway.wire.limits import Limits
from records.address import Address as Address

# The gateway puts no bound on a broker's response, other than the maximum of its size field.
_RESPONSE_MAX_BYTES = 2**31 - 1
READ_BYTES = 256 * 1024


class UpstreamLost(ConnectionError):
    """A broker cannot be reached, or closed the connection."""


class Upstream:
    """One connection to a broker. Responses come in the order of the requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: Address) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address
        self._buffer = FrameBuffer(_RESPONSE_MAX_BYTES)
        self._frames: list[bytes] = []

    @classmethod
    async def open(cls, address: Address, limits: Limits) -> Self:
        """Connect. Raises UpstreamLost."""
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                reader, writer = await asyncio.open_connection(address.host, address.port, limit=READ_BYTES)
        except OSError as error:  # a TimeoutError is one
            raise UpstreamLost(f"no connection to the broker at {address}: {error!r}") from error
        return cls(reader, writer, address)

    @property
    def ended(self) -> bool:
        """Whether the broker has closed the connection and all its responses are read."""
        return self._reader.at_eof()

    async def send(self, message: bytes) -> None:
        """Send a request. Raises UpstreamLost."""
        try:
            self._writer.writelines((size_of(message), message))
            await self._writer.drain()
        except OSError as error:
            raise self._lost(repr(error)) from error

    async def receive(self) -> bytes:
        """Return the next response. Raises UpstreamLost. Cancellation loses no response."""
        while not self._frames:
            try:
                data = await self._reader.read(READ_BYTES)
                self._frames += reversed(self._buffer.feed(data))
            except (OSError, ProtocolError) as error:
                raise self._lost(repr(error)) from error
            if not data:
                raise self._lost("it closed the connection")
        return self._frames.pop()

    def close(self) -> None:
        """Close the connection. Bytes not yet sent are lost."""
        self._writer.transport.abort()

    def _lost(self, why: str) -> UpstreamLost:
        return UpstreamLost(f"the broker at {self._address} is lost: {why}")
