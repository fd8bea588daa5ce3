"""A client's connection to a broker port, and a request about groups that the client waits for."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeVar

from gateway.rocketmq.addresses import BrokerAddress
from kafka_why.contract.rocketmq.responses import Response
from kafka_why.remoting.frames import Header, encode_frame, response_to
from kafka_why.remoting.strict_json import MalformedFrame

ANSWER_WAIT_S = 2.8
"""Less than the 3,000 ms that a client gives most requests (mqClientApiTimeout)."""
_NAME_MAX_LENGTH = 255

R = TypeVar("R", bound=Response)

AskBroker = Callable[[], Awaitable[tuple[Header, bytes]]]
"""Sends the client's own bytes up, and returns the broker's answer. Raises ConnectionError."""


class ConnectedClient(NamedTuple):
    """A client's connection to a broker port, by a name that no other connection has ever had. `send` writes
    a frame to the client, and `close` ends the connection for a reason.
    """

    connection: str
    broker: BrokerAddress
    address: str
    send: Callable[[bytes], None]
    close: Callable[[str], None]


class Exchange:
    """A request of the client, and the time since its arrival."""

    def __init__(self, request: Header, body: bytes, ask_broker: AskBroker) -> None:
        self.request = request
        self.body = body
        self._ask_broker = ask_broker
        self._arrived_at_s = time.monotonic()

    def field(self, field: str) -> str:
        """Return a field of the header that the request must have. Raises MalformedFrame."""
        if (value := self.request.ext_fields.get(field)) is None:
            raise MalformedFrame(f"the custom field <{field}> is null")
        if len(value) > _NAME_MAX_LENGTH:
            raise MalformedFrame(f"the custom field <{field}> has {len(value)} characters")
        return value

    async def ask_broker(self, until_s: float | None = ANSWER_WAIT_S) -> tuple[Header, bytes]:
        """Return the broker's answer. Raises ConnectionError, and TimeoutError at this time after the
        request's arrival.
        """
        async with asyncio.timeout(None if until_s is None else max(self._left_s(until_s), 0)):
            return await self._ask_broker()

    async def settled(self, asked: Iterable[asyncio.Future[R]], until_s: float = ANSWER_WAIT_S) -> bool:
        """Wait for responses until this time after the request's arrival. Return True if all have come. The
        others are not given up.
        """
        if not (futures := list(asked)):
            return True
        _, waiting = await asyncio.wait(futures, timeout=max(self._left_s(until_s), 0))
        return not waiting and all(future.result().request for future in futures)

    def _left_s(self, until_s: float) -> float:
        return self._arrived_at_s + until_s - time.monotonic()

    def answer(self, code: int = 0, remark: str | None = None, body: bytes = b"") -> bytes:
        """Return the frame of an answer."""
        return encode_frame(response_to(self.request, code, remark), body)
