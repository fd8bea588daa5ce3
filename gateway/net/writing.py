"""The requests and responses of one client's connection: reading and dispatch of requests, and writing of
responses in the order of the requests.
"""

import time
from asyncio import AbstractEventLoop, Future, Transport
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

from gateway.apis.slices import Slices
from gateway.limits import Limits, TokenBucket
from gateway.metrics.numbers import GatewayCounts
from gateway.net.lifecycle import Lifecycle
from gateway.net.limits.buffers import WriteBufferLimit
from gateway.wire.framing import FrameBuffer


class ResponseSlot:
    """The slot of one request in the order of responses.

    `response_bytes` is the number of the response's bytes that are counted as unread
    (`gateway.net.limits.buffers`). `sent_bytes` is the number of the request's bytes that go to the
    coordinator: those from the client, plus metadata that the gateway adds, or 0 if it refuses the request.
    """

    __slots__ = (
        "api_key",
        "began_s",
        "frame",
        "has_capacity",
        "quota",
        "request_bytes",
        "response_bytes",
        "sent_bytes",
        "waits_for",
    )

    def __init__(self, request_bytes: int) -> None:
        self.request_bytes = self.sent_bytes = request_bytes
        self.api_key = -1  # until the header is decoded
        self.began_s = time.monotonic()
        self.quota: TokenBucket | None = None  # the quota that the request exceeds
        # The parts of the response, or None until it is ready. A request without a response has no parts.
        self.frame: tuple[bytes, ...] | None = None
        self.waits_for: Future[Any] | None = None  # what the response needs; cancelled if the connection ends
        self.has_capacity = False  # holds capacity of the coordinator's limiter
        self.response_bytes = 0


# Smaller responses are not counted as unread, because a connection has few of them
# (`in_flight_per_connection`).
_SMALL_BYTES = 4096


class ResponseWriter:
    """The slots of the unanswered requests, in order. A slot is freed when the kernel has its response."""

    __slots__ = (
        "_counts",
        "_life",
        "_unsent_slots",
        "_write_buffers",
        "dispatched_bytes",
        "is_flush_scheduled",
        "slots",
        "transport",
        "unsent",
    )  # fmt: skip

    transport: Transport  # set when the client is connected

    def __init__(self, life: Lifecycle, counts: GatewayCounts, write_buffers: WriteBufferLimit) -> None:
        self._life = life
        self._counts = counts
        self._write_buffers = write_buffers
        self.slots: deque[ResponseSlot] = deque()
        self.dispatched_bytes = 0  # the bytes of the requests that have slots
        self._unsent_slots = 0
        """The number of slots, from the first on, whose responses are written but not yet in the kernel."""
        self.is_flush_scheduled = False
        # Set while the kernel does not have all written bytes, and done when it has them.
        self.unsent: Future[None] | None = None

    def open_slot(self, request_bytes: int) -> ResponseSlot:
        """Append and return the slot of a request that is dispatched."""
        slot = ResponseSlot(request_bytes)
        self.dispatched_bytes += request_bytes
        self.slots.append(slot)
        return slot

    def put(self, slot: ResponseSlot, frame: tuple[bytes, ...]) -> None:
        """Put a response into its slot. `flush` writes it in its turn."""
        slot.frame, slot.waits_for = frame, None
        frame_bytes = sum(map(len, frame))
        if frame_bytes > _SMALL_BYTES and self._may_write():
            slot.response_bytes = frame_bytes
            self._write_buffers.add(self._life.end, frame_bytes)
        self._counts.answered[slot.api_key].add(time.monotonic() - slot.began_s)

    def flush(self) -> bool:
        """Write the responses that are ready, up to the first that is not. Return True if the kernel has
        them.
        """
        self.is_flush_scheduled = False
        if self._unsent_slots or not self._may_write():
            return False
        parts: list[bytes] = []
        for slot in self.slots:
            if slot.frame is None:
                break
            parts += slot.frame
            self._unsent_slots += 1
        if len(parts) == 1:
            self._counts.sent_bytes += len(parts[0])
            self.transport.write(parts[0])
        elif parts:
            self._counts.sent_bytes += sum(map(len, parts))
            self.transport.writelines(parts)
        # The write has set `unsent`, by `pause_writing`, if the kernel has not taken all bytes.
        if self.unsent is not None:
            return False
        self._free_sent()
        return True

    def write_part(self, slot: ResponseSlot, part: bytes) -> int:
        """Write a part of the first response. Return the number of bytes that the kernel does not have, for
        `finish_part`.
        """
        if not self._may_write():
            return 0
        assert self.slots[0] is slot, "its turn has come"
        self._counts.sent_bytes += len(part)
        self.transport.write(part)
        if self.unsent is None:
            return 0
        self._write_buffers.add(self._life.end, len(part))
        return len(part)

    def finish_part(self, number: int) -> None:
        """Stop counting the bytes of a part, because the kernel has them."""
        self._write_buffers.remove(self._life.end, number)

    def on_all_sent(self) -> None:
        """Free the slots of written responses, because the kernel has all written bytes."""
        if self.unsent is not None:
            self.unsent.set_result(None)
            self.unsent = None
        self._free_sent()

    def cancel(self) -> None:
        """Cancel the pending responses, because the client has gone."""
        for slot in self.slots:
            if slot.waits_for is not None:
                slot.waits_for.cancel()

    def forget(self) -> None:
        """Stop counting unread bytes, because the client has gone."""
        self._write_buffers.forget(self._life.end)

    def _may_write(self) -> bool:
        return self._life.state.writes and not self.transport.is_closing()

    def _free_sent(self) -> None:
        """Free the slots of the responses that were written, because the kernel has them."""
        for _ in range(self._unsent_slots):
            slot = self.slots.popleft()
            if slot.response_bytes:
                self._write_buffers.remove(self._life.end, slot.response_bytes)
            self.dispatched_bytes -= slot.request_bytes
        self._unsent_slots = 0


# Reading and dispatch of a client's requests, in order.


class PauseReason(Enum):
    """A reason not to read from a client."""

    FULL = "the connection has as many requests or bytes under way as it may have"
    WAITING = "a request waits for capacity at the coordinator, or the connection is not yet admitted"
    HELD = "all clients together have sent too much, or this client skips a turn after a large read"
    MUTED = "the client is throttled: no more of its requests are dispatched"

    # An enum's own hash is a Python function, which is slow, and `reasons` is read for each request.
    __hash__ = object.__hash__


FULL, WAITING, HELD, MUTED = PauseReason


class RequestReader:
    """The reader of one client's requests. While there are `reasons` to pause, the transport is paused.

    `requests` wait to be dispatched, and `bytes` is their total size. `buffer` has the bytes of an incomplete
    request.
    """

    __slots__ = ("buffer", "bytes", "reasons", "requests", "transport")

    transport: Transport

    def __init__(self, frame_max_bytes: int) -> None:
        self.buffer = FrameBuffer(frame_max_bytes)
        self.requests: deque[bytes] = deque()
        self.bytes = 0
        self.reasons: frozenset[PauseReason] = frozenset()

    def feed(self, data: bytes) -> None:
        """Add received bytes. Raises ProtocolError for a frame that is too large."""
        requests = self.buffer.feed(data)
        self.requests += requests
        self.bytes += sum(map(len, requests))

    def next(self) -> bytes:
        """Remove and return the first waiting request."""
        request = self.requests.popleft()
        self.bytes -= len(request)
        return request

    def set_paused(self, reason: PauseReason, *, paused: bool) -> None:
        """Add or remove a reason to pause."""
        is_paused_for_reason = reason in self.reasons
        if paused is not is_paused_for_reason:
            self._replace(self.reasons | {reason} if paused else self.reasons - {reason})

    def clear_pauses(self) -> None:
        """Remove all reasons to pause, and resume reading."""
        self._replace(frozenset())

    def _replace(self, reasons: frozenset[PauseReason]) -> None:
        """Replace the reasons. Pause reading with the first reason, resume it without any."""
        was_paused, is_paused = bool(self.reasons), bool(reasons)
        self.reasons = reasons
        if was_paused is is_paused or self.transport.is_closing():
            return
        if is_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


StartAtOnce = Callable[[bytes, ResponseSlot], bool]


class DispatchPhase(Enum):
    """The state of the task of the connection that calls `Dispatcher.take` for its next request."""

    AWAY = "it handles a request, or waits for the answers to earlier ones"
    STARTING = "`_start_all` starts requests, and `resume` does nothing"
    WAITING = "it waits for a request"
    GIVEN = "there is a request for it"


# Looked up once: an attribute of an enum takes 0.15 us.
_AWAY, _STARTING, _WAITING, _GIVEN = DispatchPhase


def _never(_: bytes, __: ResponseSlot) -> bool:
    return False


class Dispatcher:
    """The dispatcher of one connection, with at most `in_flight_max` requests under way.

    `start_at_once` gets each request first, with the slot of its response. If it returns False, `take`
    returns the request, and no other request is dispatched until `take` is called again. Many small requests
    take as long as a large one, so `take` pauses between `slices` while requests wait.
    """

    __slots__ = (
        "_bytes_max", "_given_request", "_life", "_loop", "_phase", "_reading", "_slices", "_wakeup",
        "_writing", "in_flight_max", "start_at_once",
    )  # fmt: skip

    def __init__(
        self,
        limits: Limits,
        life: Lifecycle,
        reading: RequestReader,
        writing: ResponseWriter,
        loop: AbstractEventLoop,
        slices: Slices,
    ) -> None:
        self._bytes_max = limits.in_flight_bytes_per_connection
        self._life = life
        self._reading = reading
        self._writing = writing
        self._loop = loop
        self._slices = slices
        self._phase = _AWAY
        self._given_request: tuple[bytes, ResponseSlot] | None = None
        """The request that `take` returns next, set in the phase GIVEN."""
        self._wakeup: Future[None] | None = None
        """The future on which the task waits for a request, or for earlier responses."""
        self.in_flight_max = 1
        self.start_at_once: StartAtOnce = _never

    def is_full(self, number: int, number_bytes: int) -> bool:
        """Return True if the connection has reached its limit of requests or of bytes."""
        return number >= self.in_flight_max or number_bytes >= self._bytes_max

    async def take(self) -> tuple[bytes, ResponseSlot]:
        """Wait for the next request that cannot start at once. Return it with the slot of its response."""
        if self._reading.requests:
            await self._slices.pause()
        self._start_all()
        while (given_request := self._given_request) is None:
            await self._wait()
        self._given_request, self._phase = None, _AWAY
        return given_request

    async def wait_for_earlier(self, slot: ResponseSlot) -> None:
        """Wait until all requests before `slot` are answered."""
        slots = self._writing.slots
        while slots and slots[0] is not slot:
            await self._wait()

    async def wait_for_all(self) -> None:
        """Wait until all dispatched requests are answered."""
        while self._writing.slots:
            await self._wait()

    def resume(self) -> None:
        """Start requests or wake the task, because there may be a request or capacity for one."""
        if self._phase is _WAITING and self._reading.requests:
            self._start_all()
        # In AWAY, the task may wait for the answers to earlier requests.
        can_continue = self._phase is _AWAY or self._phase is _GIVEN
        if can_continue and self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def end(self) -> None:
        """Start no more requests. This releases `start_at_once`, which refers to the connection."""
        self.start_at_once = _never

    def _start_all(self) -> None:
        """Start requests until one of them cannot start at once."""
        self._phase = _STARTING
        while self._may_dispatch():
            request = self._reading.next()
            slot = self._writing.open_slot(len(request))
            if not self.start_at_once(request, slot):
                self._given_request, self._phase = (request, slot), _GIVEN
                return
        self._phase = _WAITING

    def _may_dispatch(self) -> bool:
        """Return True if a request waits, and the limits and the connection's state allow its dispatch."""
        slots = self._writing.slots
        if not self._reading.requests or len(slots) >= self.in_flight_max:
            return False
        is_unread = self._writing.unsent is not None  # a client that does not read gets no more responses
        if is_unread or MUTED in self._reading.reasons:
            return False
        if not self._life.state.reads:
            return False
        # One request may exceed the limit of bytes alone.
        return not slots or self._writing.dispatched_bytes < self._bytes_max

    async def _wait(self) -> None:
        """Wait until `resume` wakes the task."""
        self._wakeup = self._loop.create_future()
        await self._wakeup


class RequestOrdering(Enum):
    """The order of a request relative to others.

    A request waits for all earlier requests of another ordering. An EXCLUSIVE request waits for all earlier
    requests, and all later requests wait for it.
    """

    COORDINATOR = "answered by the gateway, which asks the coordinator for most answers"
    BROKERS = "forwarded"
    EXCLUSIVE = "alone"
