"""A plain client of Kafka's wire protocol: it neither retries nor hides errors."""

import asyncio
from asyncio import Future, Transport
from collections.abc import Callable
from itertools import count
from typing import Any, Self

from bench.load import frames
from bench.load.frames import SIZE, Api
from bench.load.load_result import WrongAnswer
from kafka_why.connections.address import Address

REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 27, 79


class Connection(asyncio.Protocol):
    """A connection with one request in flight at a time, like a consumer's."""

    def __init__(self) -> None:
        self.on_answer: Callable[[bytes], None] = self._unexpected  # gets a response without its size
        self.on_lost: Callable[[], None] = lambda: None
        self._buffer = bytearray()
        self._correlation_ids = count(1)
        self._transport: Transport | None = None

    @classmethod
    async def open(cls, address: Address) -> Self:
        """Connect. Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, address.host, address.port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= SIZE.size:
            end = SIZE.size + SIZE.unpack_from(self._buffer)[0]
            if end > len(self._buffer):
                break
            answer = bytes(self._buffer[SIZE.size : end])
            del self._buffer[:end]
            self.on_answer(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.on_lost()

    def send(self, frame: bytes | bytearray) -> None:
        """Send a request, including its size field."""
        assert self._transport is not None
        self._transport.write(frame)

    def close(self) -> None:
        """Close the connection immediately."""
        assert self._transport is not None
        self._transport.abort()

    async def ask(self, api: Api, **fields: Any) -> Any:
        """Send one request and return its decoded response. Raises WrongAnswer if the connection ends.

        After a cancellation the response is dropped when it arrives, and the connection cannot be used again.
        """
        assert self._transport is not None
        if self._transport.is_closing():
            raise _lost()
        response: Future[bytes] = asyncio.get_running_loop().create_future()
        self.on_answer = lambda answer: None if response.done() else response.set_result(answer)
        self.on_lost = lambda: None if response.done() else response.set_exception(_lost())
        correlation_id = next(self._correlation_ids)
        self.send(frames.encode(api, correlation_id, fields))
        answer = await response
        self.on_answer = self._unexpected
        if int.from_bytes(answer[:4]) != correlation_id:
            raise WrongAnswer(f"not the response to request {correlation_id}: {answer!r}")
        return frames.decode(api, answer)

    def _unexpected(self, answer: bytes) -> None:
        raise WrongAnswer(f"a response without a request: {answer!r}")


def expect_no_error(answer: Any) -> Any:
    """Return the response. Raises WrongAnswer unless its error code is 0."""
    if answer.error_code != 0:
        raise WrongAnswer(f"unexpected error: {answer}")
    return answer


def _lost() -> WrongAnswer:
    return WrongAnswer("the connection ended before a response")
