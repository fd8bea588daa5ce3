"""The deadlines of one client's connection."""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from gateway.limits import Limits
from gateway.net.ends import Drained, Idle, SlowReader
from gateway.wire.framing import ProtocolError

# The time in which a client has to close its side after the gateway has closed its own.
LINGER_S = 1.0


class Deadline(Enum):
    """What a connection may wait for. There is one of each at most."""

    AUTHENTICATION = "the client authenticates"
    IDLE = "the client sends something, or waits for a response"
    WRITE = "the client reads some of its responses"
    MUTE = "the throttle time is over"
    LINGER = "the client closes its side"


class Watched(Protocol):
    """The connection that a deadline may end."""

    @property
    def is_busy(self) -> bool:
        """Whether requests wait or are under way."""
        ...

    @property
    def held_bytes(self) -> int:
        """The bytes of responses that the kernel does not have yet."""
        ...

    def end(self, why: Exception) -> None: ...


class Timers:
    """Sets, moves and cancels all timers of one connection. After `stop` there are none, and none is set.

    The timers hold the connection, and this object does not: a connection that has ended is let go of.
    """

    __slots__ = ("_handles", "_limits", "_loop", "heard_at_s")

    def __init__(self, limits: Limits, loop: AbstractEventLoop) -> None:
        self._limits = limits
        self._loop = loop
        self._handles: dict[Deadline, TimerHandle] | None = {}
        self.heard_at_s = loop.time()
        """When the client sent something, the last time."""

    @property
    def running(self) -> frozenset[Deadline]:
        """The deadlines that are set."""
        return frozenset(self._handles or ())

    def watch_authentication(self, client: Watched) -> None:
        """End a client that does not authenticate in time."""
        self._set(Deadline.AUTHENTICATION, self._limits.authentication_timeout_s, self._end_stranger, client)

    def watch_silence(self, client: Watched) -> None:
        """End a client that sends nothing for too long, unless it waits for responses."""
        self._set(Deadline.IDLE, self._limits.idle_timeout_s, self._end_if_idle, client)

    def watch_writing(self, client: Watched) -> None:
        """End a client that reads nothing of its responses for too long. Moved while it reads some."""
        self._set(
            Deadline.WRITE, self._limits.write_timeout_s, self._end_if_unread, client, client.held_bytes
        )

    def watch_linger(self, client: Watched) -> None:
        """End a client that does not close its side after the gateway has closed its own."""
        self._set(Deadline.LINGER, LINGER_S, client.end, Drained("drained"))

    def unmute_after(self, seconds: float, unmute: Callable[[], None]) -> None:
        """Take requests of a throttled client up again after this time."""
        self._set(Deadline.MUTE, seconds, unmute)

    def cancel(self, deadline: Deadline) -> None:
        """What was waited for has come."""
        if self._handles and (handle := self._handles.pop(deadline, None)) is not None:
            handle.cancel()

    def stop(self) -> None:
        """The connection has ended."""
        for deadline in self.running:
            self.cancel(deadline)
        self._handles = None

    def _set(self, deadline: Deadline, seconds: float, act: Callable[..., None], *args: Any) -> None:
        if self._handles is not None:
            self.cancel(deadline)
            self._handles[deadline] = self._loop.call_later(seconds, self._fire, deadline, act, *args)

    def _fire(self, deadline: Deadline, act: Callable[..., None], *args: Any) -> None:
        assert self._handles is not None
        del self._handles[deadline]
        act(*args)

    def _end_stranger(self, client: Watched) -> None:
        client.end(ProtocolError(f"no authentication within {self._limits.authentication_timeout_s:g} s"))

    def _end_if_idle(self, client: Watched) -> None:
        left_s = self.heard_at_s + self._limits.idle_timeout_s - self._loop.time()
        if client.is_busy:
            left_s = self._limits.idle_timeout_s
        if left_s <= 0:
            client.end(Idle("the client sent no request for too long"))
        else:
            self._set(Deadline.IDLE, left_s, self._end_if_idle, client)

    def _end_if_unread(self, client: Watched, before: int) -> None:
        left = client.held_bytes
        if left >= before:
            client.end(SlowReader(f"it took none of {left} bytes for {self._limits.write_timeout_s:.0f} s"))
        else:
            self.watch_writing(client)
