"""Reading of a client's bytes: the requests in them, and the reasons to pause."""

from asyncio import Transport
from collections import deque
from enum import Enum

from gateway.wire.framing import FrameBuffer


class PauseReason(Enum):
    """A reason not to read from a client."""

    FULL = "the connection has as many requests or bytes under way as it may have"
    WAITING = "a request waits for capacity at the coordinator, or the connection for its beginning"
    HELD = "all clients together have sent too much, or others have their turn"
    MUTED = "the client is throttled: no more of its requests are dispatched"

    # The hash of an enum is a function of Python, and `reasons` is read for each request.
    __hash__ = object.__hash__


FULL, WAITING, HELD, MUTED = PauseReason


class RequestReader:
    """The reader of one client's requests. With any `reasons` the transport is paused.

    The transport is set when the client is connected. `requests` wait to be dispatched, and have `bytes`
    bytes. `buffer` has the bytes of an incomplete request.
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

    def set(self, reason: PauseReason, *, holds: bool) -> None:
        """Add a reason to pause if it holds, else remove it."""
        if holds is not (reason in self.reasons):
            self._replace(self.reasons | {reason} if holds else self.reasons - {reason})

    def forget_reasons(self) -> None:
        """Remove all reasons to pause, and resume reading."""
        self._replace(frozenset())

    def _replace(self, reasons: frozenset[PauseReason]) -> None:
        before, self.reasons = self.reasons, reasons
        if bool(before) is bool(reasons) or self.transport.is_closing():
            return
        if reasons:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
