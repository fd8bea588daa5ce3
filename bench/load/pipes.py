"""Connections with many requests in flight, whose frames are encoded beforehand.

A server answers the requests of a connection in order, so a queue of the requests in flight is enough,
without a task or future for each. While the socket's buffer is full, requests wait in the client. Their
latency counts from the time at which they were due.
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
_PACE_S = 0.002  # the pause of an open loop between two looks at what is due
_INT32_MASK = 0x7FFFFFFF
_BUFFER_BYTES = 32 * 1024


class Pipe(asyncio.Protocol):
    """A connection that sends its templates in rotation, one for each request that is due."""

    def __init__(self, templates: Sequence[Template]) -> None:
        # Gets the due times of the answered requests, and the error codes of those that failed.
        self.on_answers: Callable[[Pipe, list[float], list[int]], None] = lambda *_: None
        self.on_failure: Callable[[WrongAnswer], None] = lambda _: None
        self._templates = cycle(templates)
        self._in_flight: deque[tuple[float, Template, bytes]] = deque()  # due time, request, correlation id
        self._unsent_due_s: deque[float] = deque()
        self._buffer = bytearray()
        self._last_correlation_id = 0
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
        # A small buffer, so that the backpressure of a server reaches this client soon.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._flush()

    def feed(self, due_s: Sequence[float]) -> None:
        """Send a request for each of these due times, or queue it until the socket can write."""
        self._unsent_due_s.extend(due_s)
        self._flush()

    def _flush(self) -> None:
        """Write requests that are due, one buffer at a time, so that the event loop can read too."""
        pieces: list[bytes] = []
        size = 0
        while self._unsent_due_s and not self._is_full and size < _BUFFER_BYTES:
            template = next(self._templates)
            self._last_correlation_id = (self._last_correlation_id + 1) & _INT32_MASK
            correlation_id = SIZE.pack(self._last_correlation_id)
            self._in_flight.append((self._unsent_due_s.popleft(), template, correlation_id))
            pieces += (template.head, correlation_id, template.tail)
            size += len(template.tail)
        if pieces:
            assert self._transport is not None
            self._transport.write(b"".join(pieces))
            if self._unsent_due_s and not self._is_full:
                asyncio.get_running_loop().call_soon(self._flush)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        buffer, at = bytes(self._buffer), 0
        answered_due_s: list[float] = []
        errors: list[int] = []
        while len(buffer) - at >= SIZE.size:
            end = at + SIZE.size + SIZE.unpack_from(buffer, at)[0]
            if end > len(buffer):
                break
            if not self._in_flight:
                return self.on_failure(WrongAnswer("a response without a request"))
            due_s, template, correlation_id = self._in_flight.popleft()
            if buffer[at + 4 : at + 8] != correlation_id:  # after the size of 4 bytes
                return self.on_failure(
                    WrongAnswer(f"not the response to the oldest request: {buffer[at:end]!r}")
                )
            if buffer[at + 8 : end] != template.no_error:
                errors.append(template.error(buffer[at + 4 : end]))
            answered_due_s.append(due_s)
            at = end
        del self._buffer[:at]
        if answered_due_s:
            self.on_answers(self, answered_due_s, errors)
        return None

    def connection_lost(self, error: Exception | None) -> None:
        if self._in_flight or self._unsent_due_s:
            self.on_failure(WrongAnswer(f"a connection ended with {len(self._in_flight)} requests under way"))

    def close(self) -> None:
        """Close the connection at once."""
        self._in_flight.clear()
        self._unsent_due_s.clear()
        if self._transport is not None:
            self._transport.abort()


class _PipeCounter:
    """Counts the responses of one load on all its pipes. `done` is set at the end or at the first error."""

    def __init__(self, pipes: Sequence[Pipe]) -> None:
        self.outcome = LoadResult()
        self.in_flight = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.began_s = self.last_s = time.perf_counter()  # of the load, and of the last response
        self._cpu_s = time.process_time()
        for pipe in pipes:
            pipe.on_answers, pipe.on_failure = self.count, self.fail

    def count(self, pipe: Pipe, due_s: list[float], errors: list[int]) -> None:
        self.last_s = time.perf_counter()
        self.outcome.errors.update(errors)
        self.outcome.due_s += [due - self.began_s for due in due_s]
        self.outcome.latency_s += [self.last_s - due for due in due_s]
        self.in_flight -= len(due_s)

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


class _ClosedLoop(_PipeCounter):
    """Sends another request for each response until the end."""

    def __init__(self, pipes: Sequence[Pipe], depth: int, seconds: float) -> None:
        super().__init__(pipes)
        self._end_s = self.began_s + seconds
        self.in_flight = depth * len(pipes)

    def count(self, pipe: Pipe, due_s: list[float], errors: list[int]) -> None:
        super().count(pipe, due_s, errors)
        if self.last_s < self._end_s:
            self.in_flight += len(due_s)
            pipe.feed([self.last_s] * len(due_s))
        elif not self.in_flight:
            self.finish()


class _OpenLoop(_PipeCounter):
    """A load that ends when all requests were due and are answered."""

    is_all_due = False

    def count(self, pipe: Pipe, due_s: list[float], errors: list[int]) -> None:
        super().count(pipe, due_s, errors)
        self.finish_if_over()

    def finish_if_over(self) -> None:
        if self.is_all_due and not self.in_flight:
            self.finish()


async def run_closed_loop(pipes: Sequence[Pipe], depth: int, seconds: float) -> LoadResult:
    """Keep `depth` requests in flight on each connection, then wait for the last responses.

    Raises WrongAnswer, and TimeoutError if responses are missing.
    """
    counter = _ClosedLoop(pipes, depth, seconds)
    for pipe in pipes:
        pipe.feed([time.perf_counter()] * depth)
    async with asyncio.timeout(seconds + LOST_AFTER_S):
        await counter.done
    return counter.result()


async def run_at_rates(pipes: Sequence[Pipe], phases: Sequence[tuple[float, float]]) -> LoadResult:
    """Send at fixed rates, independent of the responses. `phases` are pairs (requests a second, seconds).

    Raises WrongAnswer, and TimeoutError if responses are missing.
    """
    counter = _OpenLoop(pipes)
    sent, began_s = 0, counter.began_s
    for rate, seconds in phases:
        end_s, due_s = began_s + seconds, began_s
        while due_s < end_s and not counter.done.done():
            now_s = min(time.perf_counter(), end_s)
            due_by_pipe: dict[int, list[float]] = {}  # the pipes take turns
            while due_s <= now_s and due_s < end_s:
                due_by_pipe.setdefault(sent % len(pipes), []).append(due_s)
                sent += 1
                counter.in_flight += 1
                due_s += 1 / rate
            for index, times_s in due_by_pipe.items():
                pipes[index].feed(times_s)
            await asyncio.sleep(_PACE_S)
        began_s = end_s
    counter.is_all_due = True
    counter.finish_if_over()
    async with asyncio.timeout(LOST_AFTER_S):
        await counter.done
    return counter.result()
