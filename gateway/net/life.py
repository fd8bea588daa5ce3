"""The life of one client's connection: its states, and the table of what leads from one to another."""

from asyncio import Future
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from gateway.net.timers import Timers


class State(Enum):
    """`takes`: the client's bytes are kept, and its requests taken up. `gives`: responses are written."""

    NEW = ("the client is not there yet", False, False)
    STRANGER = ("the client has not authenticated: tight bounds hold for it", True, True)
    OPEN = ("requests are taken up and answered", True, True)
    FINISHING = ("no more requests are taken up; those under way are answered", False, True)
    LINGERING = ("all are answered; the client knows of the end, and has time to read", False, False)
    ENDED = ("there is a reason to close the connection, or it is being closed", False, False)
    CLOSED = ("the socket is gone", False, False)

    def __init__(self, meaning: str, takes: bool, gives: bool) -> None:
        self.meaning = meaning
        self.takes = takes
        self.gives = gives


class Event(Enum):
    """What happens to a connection."""

    CONNECTED = "the client is there"
    AUTHENTICATED = "the client has authenticated, or does not have to, or has again"
    FINISH = "the gateway is about to end"
    ANSWERED = "the kernel has the responses to all requests that were taken up"
    END = "there is a reason for the end, or the connection's owner has closed it"
    LOST = "the socket is closed, by whichever side"


TABLE: Mapping[tuple[State, Event], State] = MappingProxyType(
    {
        (State.NEW, Event.CONNECTED): State.STRANGER,
        (State.STRANGER, Event.AUTHENTICATED): State.OPEN,
        (State.STRANGER, Event.FINISH): State.FINISHING,
        (State.STRANGER, Event.END): State.ENDED,
        (State.STRANGER, Event.LOST): State.CLOSED,
        (State.OPEN, Event.AUTHENTICATED): State.OPEN,
        (State.OPEN, Event.FINISH): State.FINISHING,
        (State.OPEN, Event.END): State.ENDED,
        (State.OPEN, Event.LOST): State.CLOSED,
        # The answer that is under way may be that to an authentication.
        (State.FINISHING, Event.AUTHENTICATED): State.FINISHING,
        (State.FINISHING, Event.FINISH): State.FINISHING,
        (State.FINISHING, Event.ANSWERED): State.LINGERING,
        (State.FINISHING, Event.END): State.ENDED,
        (State.FINISHING, Event.LOST): State.CLOSED,
        (State.LINGERING, Event.FINISH): State.LINGERING,
        (State.LINGERING, Event.END): State.ENDED,
        (State.LINGERING, Event.LOST): State.CLOSED,
        # The connection's tasks learn of its end in a later turn of the event loop.
        (State.ENDED, Event.AUTHENTICATED): State.ENDED,
        (State.ENDED, Event.FINISH): State.ENDED,
        (State.ENDED, Event.END): State.ENDED,
        (State.ENDED, Event.LOST): State.CLOSED,
        (State.CLOSED, Event.AUTHENTICATED): State.CLOSED,
        (State.CLOSED, Event.FINISH): State.CLOSED,
        (State.CLOSED, Event.END): State.CLOSED,
    }
)
"""An event that a state does not have here is a mistake in this program, whatever a client does."""


class Impossible(AssertionError):
    """An event that cannot happen in this state."""


class Life:
    """The state of one connection. `ended` is the reason why no more requests come. A connection that has
    ended has no deadlines.
    """

    __slots__ = ("_timers", "ended", "state")

    def __init__(self, timers: Timers, ended: Future[Exception]) -> None:
        self._timers = timers
        self.ended = ended
        self.state = State.NEW

    def on(self, event: Event) -> State:
        """Something happens. Returns the state after it. Raises Impossible."""
        after = TABLE.get((self.state, event))
        if after is None:
            raise Impossible(f"{event.name} in the state {self.state.name}")
        self.state = after
        if after is State.ENDED or after is State.CLOSED:
            self._timers.stop()
        return after

    def end(self, why: Exception) -> None:
        """Take no more requests, and write no more responses. The first reason holds."""
        self.on(Event.END)
        self._give(why)

    def lost(self, why: Exception) -> None:
        """The socket is closed. `why` holds where nothing had ended the connection before."""
        self.on(Event.LOST)
        self._give(why)

    def _give(self, why: Exception) -> None:
        if not self.ended.done():
            self.ended.set_result(why)
