"""Connections with many requests under way, whose frames are encoded beforehand.

A server answers the requests of a connection in their order, so a connection needs no table of what is under
way. No task and no future is made for a request. While a socket takes no more, requests wait in the client.
Their latency counts from when they were due.
"""

import asyncio
import socket
import time
from asyncio import Transport
from collections import deque
from collections.abc import Callable, Sequence
from itertools import cycle

from bench.load.frames import SIZE, Template
from bench.load.load_result import LoadResult, WrongAnswer
from kafka_why.connections.address import Address

LOST_AFTER_S = 300.0
_PACE_S = 0.002
_INT32_MASK = 0x7FFFFFFF
_BUFFER_BYTES = 32 * 1024


class Pipe(asyncio.Protocol):
    """A connection that sends its requests in turn, as often as they are due."""

    def __init__(self, templates: Sequence[Template]) -> None:
        self.answered: Callable[[Pipe, list[float], list[int]], None] = lambda *_: None
        self.failed: Callable[[WrongAnswer], None] = lambda _: None
        self._templates = cycle(templates)
        self._under_way: deque[tuple[float, Template, bytes]] = deque()
        self._waiting: deque[float] = deque()
        self._buffer = bytearray()
        self._number = 0
        self._transport: Transport | None = None
        self._is_full = False

    @classmethod
    async def open(cls, address: Address, templates: Sequence[Template]) -> "Pipe":
        """Connect. Raises OSError."""
        loop = asyncio.get_running_loop()
        _, pipe = await loop.create_connection(lambda: cls(templates), address.host, address.port)
        return pipe

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A small buffer, so that a server that reads no more is felt here soon.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._flush()

    def feed(self, due_s: Sequence[float]) -> None:
        """Send so many requests, which were due at these moments, or let them wait for the socket."""
        self._waiting.extend(due_s)
        self._flush()

    def _flush(self) -> None:
        pieces: list[bytes] = []
        size = 0
        while self._waiting and not self._is_full and size < _BUFFER_BYTES:
            template = next(self._templates)
            self._number = (self._number + 1) & _INT32_MASK
            number = SIZE.pack(self._number)
            self._under_way.append((self._waiting.popleft(), template, number))
            pieces += (template.head, number, template.tail)
            size += len(template.tail)
        if pieces:
            assert self._transport is not None
            self._transport.write(b"".join(pieces))
            if self._waiting and not self._is_full:
                asyncio.get_running_loop().call_soon(self._flush)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        buffer, at = bytes(self._buffer), 0
        answered: list[float] = []
        errors: list[int] = []
        while len(buffer) - at >= SIZE.size:
            end = at + SIZE.size + SIZE.unpack_from(buffer, at)[0]
            if end > len(buffer):
                break
            if not self._under_way:
                return self.failed(WrongAnswer("a response without a request"))
            due_s, template, number = self._under_way.popleft()
            if buffer[at + 4 : at + 8] != number:
                return self.failed(WrongAnswer(f"not the response to the oldest request: {buffer[at:end]!r}"))
            if buffer[at + 8 : end] != template.no_error:
                errors.append(template.error(buffer[at + 4 : end]))
            answered.append(due_s)
            at = end
        del self._buffer[:at]
        if answered:
            self.answered(self, answered, errors)
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if self._under_way or self._waiting:
            self.failed(WrongAnswer(f"a connection ended with {len(self._under_way)} requests under way"))

    def close(self) -> None:
        """Close the connection at once."""
        self._under_way.clear()
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()


class _Counting:
    """Counts the responses of one load in its outcome."""

    def __init__(self, pipes: Sequence[Pipe]) -> None:
        self.outcome = LoadResult()
        self.under_way = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.began_s = self.last_s = time.perf_counter()
        self._cpu_s = time.process_time()
        for pipe in pipes:
            pipe.answered, pipe.failed = self.count, self.fail

    def count(self, pipe: Pipe, due_s: list[float], errors: list[int]) -> None:
        self.last_s = time.perf_counter()
        self.outcome.errors.update(errors)
        self.outcome.due_s += [due - self.began_s for due in due_s]
        self.outcome.latency_s += [self.last_s - due for due in due_s]
        self.under_way -= len(due_s)

    def fail(self, error: WrongAnswer) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def result(self) -> LoadResult:
        self.outcome.took_s = self.last_s - self.began_s
        self.outcome.client_cores = (time.process_time() - self._cpu_s) / self.outcome.took_s
        return self.outcome


class _Closed(_Counting):
    """Sends another request for each response until the end."""

    def __init__(self, pipes: Sequence[Pipe], depth: int, seconds: float) -> None:
        super().__init__(pipes)
        self._end_s = self.began_s + seconds
        self.under_way = depth * len(pipes)

    def count(self, pipe: Pipe, due_s: list[float], errors: list[int]) -> None:
        super().count(pipe, due_s, errors)
        if self.last_s < self._end_s:
            self.under_way += len(due_s)
            pipe.feed([self.last_s] * len(due_s))
        elif not self.under_way:
            self.finish()


class _Open(_Counting):
    """A load that ends when all requests were due and are answered."""

    is_all_due = False

    def count(self, pipe: Pipe, due_s: list[float], errors: list[int]) -> None:
        super().count(pipe, due_s, errors)
        self.finish_if_over()

    def finish_if_over(self) -> None:
        if self.is_all_due and not self.under_way:
            self.finish()


async def closed(pipes: Sequence[Pipe], depth: int, seconds: float) -> LoadResult:
    """Keep `depth` requests under way on each connection, then wait for the last responses.

    Raises WrongAnswer, and TimeoutError if responses are missing.
    """
    counting = _Closed(pipes, depth, seconds)
    for pipe in pipes:
        pipe.feed([time.perf_counter()] * depth)
    async with asyncio.timeout(seconds + LOST_AFTER_S):
        await counting.done
    return counting.result()


async def at_rates(pipes: Sequence[Pipe], phases: Sequence[tuple[float, float]]) -> LoadResult:
    """Send at fixed rates, whatever is answered: phases of (requests a second, seconds), one after another.

    Raises WrongAnswer, and TimeoutError if responses are missing.
    """
    counting = _Open(pipes)
    sent, began_s = 0, counting.began_s
    for rate, seconds in phases:
        end_s, due_s = began_s + seconds, began_s
        while due_s < end_s and not counting.done.done():
            now_s = min(time.perf_counter(), end_s)
            due: dict[int, list[float]] = {}
            while due_s <= now_s and due_s < end_s:
                due.setdefault(sent % len(pipes), []).append(due_s)
                sent += 1
                counting.under_way += 1
                due_s += 1 / rate
            for place, moments in due.items():
                pipes[place].feed(moments)
            await asyncio.sleep(_PACE_S)
        began_s = end_s
    counting.is_all_due = True
    counting.finish_if_over()
    async with asyncio.timeout(LOST_AFTER_S):
        await counting.done
    return counting.result()
