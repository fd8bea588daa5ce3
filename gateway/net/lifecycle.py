"""The lifecycle of a client's connection: its states, the table of transitions, and its deadlines."""

from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from traceback import clear_frames
from types import MappingProxyType
from typing import Any, Protocol

from gateway.limits import Limits
from gateway.wire.framing import ProtocolError


class ClientGone(ConnectionError):
    """The client closed the connection. This error and its subclasses are not logged. `reason` is for
    metrics.
    """

    reason = "client"


class ClientIdle(ClientGone):
    """The client was idle for too long."""

    reason = "idle"


class Drained(ClientGone):
    """The gateway is about to stop, and has answered all running requests."""

    reason = "drained"


class SlowReader(ConnectionError):
    """The client does not read its responses."""


class SlowSender(ConnectionError):
    """The client does not send the rest of its request."""


def forget_frames(error: BaseException) -> None:
    """Release the local variables in an error's frames, because one of them may be a large message.

    The error of a task group and the frame that raised it refer to each other, so only Python's collector
    would free them. It counts objects, not bytes: 870 refused messages of 2 MiB took 1.2 GiB. A log line can
    still show the traceback.
    """
    clear_frames(error.__traceback__)
    grouped = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for related in (*grouped, error.__cause__, error.__context__):
        if related is not None:
            forget_frames(related)


# The time for a client to close its side after the gateway has closed its own.
LINGER_S = 1.0


class Deadline(Enum):
    """A deadline of a connection. The value describes the event that is expected before the deadline: it
    cancels or moves the deadline. MUTE is a plain timer, whose value describes its end.

    A connection has at most one deadline of each kind.
    """

    AUTHENTICATION = "the client authenticates"
    IDLE = "the client sends something, or waits for a response"
    WRITE = "the client reads some of its responses"
    MUTE = "the throttle time is over"
    LINGER = "the client closes its side"


class ServedClient(Protocol):
    """The attributes of a client's connection that limits and timers use."""

    @property
    def peer(self) -> str:
        """The client's IP address."""

    @property
    def ended(self) -> "Future[Exception]":
        """A future that is done when the connection ends. Its result is the reason."""

    @property
    def is_busy(self) -> bool:
        """True if requests of the client are running, or wait to be dispatched."""

    @property
    def held_bytes(self) -> int:
        """The bytes of responses that are not passed to the kernel yet, because the client reads slowly."""

    @property
    def has_incomplete_frame(self) -> bool:
        """True if a part of the client's last frame has not arrived."""

    def set_waiting(self, *, waiting: bool) -> None:
        """Stop reading from the client if `waiting` for its admission or for capacity, else resume."""

    def set_held(self, *, held: bool) -> None:
        """Stop reading from the client if `held` back by the limit on receive buffers, else resume. This has
        nothing to do with `held_bytes`.
        """

    def end(self, why: Exception) -> None:
        """End the connection for this reason."""

    def abort(self) -> None:
        """Close the connection at once."""


class Timers:
    """The timers of one connection. After `stop` no timer runs, and none can be set.

    Only running timers refer to the connection, so a connection that has ended is freed.
    """

    __slots__ = ("_handles", "_limits", "_loop", "heard_at_s")

    def __init__(self, limits: Limits, loop: AbstractEventLoop) -> None:
        self._limits = limits
        self._loop = loop
        self._handles: dict[Deadline, TimerHandle] | None = {}
        self.heard_at_s = loop.time()
        """The time at which the client last sent something."""

    @property
    def running(self) -> frozenset[Deadline]:
        """The deadlines that are set."""
        return frozenset(self._handles or ())

    def watch_authentication(self, client: ServedClient) -> None:
        """End the client if it does not authenticate in time."""
        self._set(
            Deadline.AUTHENTICATION, self._limits.authentication_timeout_s, self._end_unauthenticated, client
        )

    def watch_silence(self, client: ServedClient) -> None:
        """End the client if it sends nothing for too long, unless it waits for responses."""
        self._set(Deadline.IDLE, self._limits.idle_timeout_s, self._end_if_idle, client)

    def watch_writing(self, client: ServedClient) -> None:
        """End the client if it does not read its responses for too long. The deadline moves while the client
        reads.
        """
        self._set(
            Deadline.WRITE, self._limits.write_timeout_s, self._end_if_unread, client, client.held_bytes
        )

    def watch_linger(self, client: ServedClient) -> None:
        """End the client if it does not close its side after the gateway has closed its own."""
        self._set(Deadline.LINGER, LINGER_S, client.end, Drained("drained"))

    def unmute_after(self, seconds: float, unmute: Callable[[], None]) -> None:
        """Call `unmute` after this time, to serve a throttled client again."""
        self._set(Deadline.MUTE, seconds, unmute)

    def cancel(self, deadline: Deadline) -> None:
        """Cancel a deadline, because its event has happened."""
        if self._handles and (handle := self._handles.pop(deadline, None)) is not None:
            handle.cancel()

    def stop(self) -> None:
        """Cancel all deadlines, and allow no more, because the connection has ended."""
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

    def _end_unauthenticated(self, client: ServedClient) -> None:
        client.end(ProtocolError(f"no authentication within {self._limits.authentication_timeout_s:g} s"))

    def _end_if_idle(self, client: ServedClient) -> None:
        """End the client if it was silent for too long, or set the deadline again."""
        left_s = self.heard_at_s + self._limits.idle_timeout_s - self._loop.time()
        if client.is_busy:  # it waits for responses, so its silence does not count
            left_s = self._limits.idle_timeout_s
        if left_s <= 0:
            client.end(ClientIdle("the client sent no request for too long"))
        else:
            self._set(Deadline.IDLE, left_s, self._end_if_idle, client)

    def _end_if_unread(self, client: ServedClient, held_bytes_before: int) -> None:
        """End the client if it has read nothing since the deadline was set, or set the deadline again."""
        held_bytes = client.held_bytes
        if held_bytes >= held_bytes_before:
            timeout_s = self._limits.write_timeout_s
            client.end(SlowReader(f"it took none of {held_bytes} bytes for {timeout_s:.0f} s"))
        else:
            self.watch_writing(client)


class ConnectionState(Enum):
    """A state of a connection: its meaning, `reads` and `writes`. If `reads`, the client's bytes are read,
    and its requests are dispatched. If `writes`, responses are written.
    """

    NEW = ("the client is not connected yet", False, False)
    UNAUTHENTICATED = ("the client has not authenticated, so tighter limits apply", True, True)
    OPEN = ("requests are dispatched and answered", True, True)
    FINISHING = ("no more requests are dispatched; those under way are answered", False, True)
    LINGERING = ("all requests are answered, and the client has time to read the responses", False, False)
    ENDED = ("there is a reason to close the connection, or it is being closed", False, False)
    CLOSED = ("the socket is closed", False, False)

    def __init__(self, _meaning: str, reads: bool, writes: bool) -> None:
        self.reads = reads
        self.writes = writes


class ConnectionEvent(Enum):
    """An event that changes the state of a connection."""

    CONNECTED = "the client is connected"
    AUTHENTICATED = "the client has authenticated, perhaps again, or does not have to"
    FINISH = "the gateway is about to end"
    ANSWERED = "the kernel has the responses to all dispatched requests"
    END = "there is a reason for the end, or the connection's owner has closed it"
    LOST = "the socket is closed, by whichever side"


TRANSITIONS: Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState] = MappingProxyType(
    {
        (ConnectionState.NEW, ConnectionEvent.CONNECTED): ConnectionState.UNAUTHENTICATED,
        (ConnectionState.UNAUTHENTICATED, ConnectionEvent.AUTHENTICATED): ConnectionState.OPEN,
        (ConnectionState.UNAUTHENTICATED, ConnectionEvent.FINISH): ConnectionState.FINISHING,
        (ConnectionState.UNAUTHENTICATED, ConnectionEvent.END): ConnectionState.ENDED,
        (ConnectionState.UNAUTHENTICATED, ConnectionEvent.LOST): ConnectionState.CLOSED,
        (ConnectionState.OPEN, ConnectionEvent.AUTHENTICATED): ConnectionState.OPEN,
        (ConnectionState.OPEN, ConnectionEvent.FINISH): ConnectionState.FINISHING,
        (ConnectionState.OPEN, ConnectionEvent.END): ConnectionState.ENDED,
        (ConnectionState.OPEN, ConnectionEvent.LOST): ConnectionState.CLOSED,
        # The pending answer may be that to an authentication.
        (ConnectionState.FINISHING, ConnectionEvent.AUTHENTICATED): ConnectionState.FINISHING,
        (ConnectionState.FINISHING, ConnectionEvent.FINISH): ConnectionState.FINISHING,
        (ConnectionState.FINISHING, ConnectionEvent.ANSWERED): ConnectionState.LINGERING,
        (ConnectionState.FINISHING, ConnectionEvent.END): ConnectionState.ENDED,
        (ConnectionState.FINISHING, ConnectionEvent.LOST): ConnectionState.CLOSED,
        (ConnectionState.LINGERING, ConnectionEvent.FINISH): ConnectionState.LINGERING,
        (ConnectionState.LINGERING, ConnectionEvent.END): ConnectionState.ENDED,
        (ConnectionState.LINGERING, ConnectionEvent.LOST): ConnectionState.CLOSED,
        # The connection's tasks notice its end in a later turn of the event loop.
        (ConnectionState.ENDED, ConnectionEvent.AUTHENTICATED): ConnectionState.ENDED,
        (ConnectionState.ENDED, ConnectionEvent.FINISH): ConnectionState.ENDED,
        (ConnectionState.ENDED, ConnectionEvent.END): ConnectionState.ENDED,
        (ConnectionState.ENDED, ConnectionEvent.LOST): ConnectionState.CLOSED,
        (ConnectionState.CLOSED, ConnectionEvent.AUTHENTICATED): ConnectionState.CLOSED,
        (ConnectionState.CLOSED, ConnectionEvent.FINISH): ConnectionState.CLOSED,
        (ConnectionState.CLOSED, ConnectionEvent.END): ConnectionState.CLOSED,
    }
)
"""The state after each event. An event that is missing for a state is a bug of the gateway, because no client
can cause it.
"""


@dataclass(slots=True, eq=False)
class Lifecycle:
    """The state of one connection. A connection that has ended has no deadlines.

    `ended` is done when the connection ends. Its result is the reason.
    """

    _timers: Timers
    ended: Future[Exception]
    state: ConnectionState = ConnectionState.NEW

    def on(self, event: ConnectionEvent) -> ConnectionState:
        """Apply an event, and return the state after it. Raises AssertionError for an impossible event."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise AssertionError(f"{event.name} in the state {self.state.name}")
        self.state = after
        if after is ConnectionState.ENDED or after is ConnectionState.CLOSED:
            self._timers.stop()
        return after

    def end(self, why: Exception, event: ConnectionEvent = ConnectionEvent.END) -> None:
        """End the connection: dispatch no more requests, and write no more responses. The first reason is
        kept.
        """
        self.on(event)
        if not self.ended.done():
            self.ended.set_result(why)
