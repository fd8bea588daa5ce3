"""A client of Kafka's wire protocol that does not decide, retry or hide anything."""

import asyncio
from asyncio import Future, Transport
from collections.abc import Callable
from itertools import count
from typing import Any, Self

from gateway.upstream.connections import Address
from gateway.wire import codec
from gateway.wire.framing import FrameBuffer, framed

CLIENT_ID = "bench"
JOIN, HEARTBEAT, LEAVE, SYNC = (11, 9), (12, 4), (13, 5), (14, 5)
"""By api: its key and the newest version that both sides support."""

REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 27, 79

_ANSWER_MAX_BYTES = 2**31 - 1


class WrongAnswer(RuntimeError):
    """A response is not the one being measured, so the figures would be meaningless."""


class Connection(asyncio.Protocol):
    """One connection with one request in flight at a time, like a consumer's.

    Each response, without the frame's size, goes to `heard`. `lost` is called if the connection ends first.
    """

    def __init__(self) -> None:
        self.heard: Callable[[bytes], None] = self._unexpected
        self.lost: Callable[[], None] = lambda: None
        self._buffer = FrameBuffer(_ANSWER_MAX_BYTES)
        self._numbers = count(1)
        self._transport: Transport | None = None

    @classmethod
    async def open(cls, address: Address) -> Self:
        """Connect. Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, address.host, address.port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        for answer in self._buffer.feed(data):
            self.heard(answer)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.lost()

    def send(self, frame: bytes | bytearray) -> None:
        """Send a request, including its size field."""
        assert self._transport is not None
        self._transport.write(frame)

    def close(self) -> None:
        """Close the connection immediately."""
        assert self._transport is not None
        self._transport.abort()

    async def ask(self, api: tuple[int, int], **fields: Any) -> Any:
        """Send one request and return its decoded response. Raises WrongAnswer if the connection ends before.

        After a cancellation the response is dropped when it arrives, and the connection cannot be used again.
        """
        answered: Future[bytes] = asyncio.get_running_loop().create_future()
        self.heard = lambda answer: None if answered.done() else answered.set_result(answer)
        self.lost = lambda: None if answered.done() else answered.set_exception(_lost())
        number = next(self._numbers)
        self.send(framed(codec.encode_request(*api, number, CLIENT_ID, fields)))
        answer = await answered
        self.heard = self._unexpected
        if int.from_bytes(answer[:4]) != number:
            raise WrongAnswer(f"not the response to request {number}: {answer!r}")
        return codec.decode_response(*api, answer)

    def _unexpected(self, answer: bytes) -> None:
        raise WrongAnswer(f"a response without a request: {answer!r}")


def expect_no_error(answer: Any) -> Any:
    """Return the response. Raises WrongAnswer unless its error code is 0."""
    if answer.error_code != 0:
        raise WrongAnswer(f"unexpected error: {answer}")
    return answer


def _lost() -> WrongAnswer:
    return WrongAnswer("the connection ended with a request in flight")
