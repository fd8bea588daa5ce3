"""The events of a group that are not deadlines, the same for every protocol.

`R_co` is the type of a protocol's requests, `D_co` the type of its deadlines.
"""

from typing import Any, Generic, TypeVar

from msgspec import Struct

R_co = TypeVar("R_co", covariant=True)
D_co = TypeVar("D_co", covariant=True)
D = TypeVar("D")


class Received(Struct, Generic[R_co], frozen=True):
    """An event: a request was read from the log.

    `late_by_ms`: the time from the request's append to the latest deadline that already fired, 0 if that was
    earlier.
    """

    request_id: str
    request: R_co
    late_by_ms: int = 0


class Failed(Struct, Generic[R_co], frozen=True):
    """An event: the handler of this request raised an exception, so the group was restored to its earlier
    state. The request is answered with an error.
    """

    request_id: str
    request: R_co


class Quarantine(Struct, Generic[D_co], frozen=True):
    """An event: the handler of a deadline raised an exception, so the group was restored to its earlier
    state. The group's deadlines are stopped.
    """

    deadline: D_co
    error: str


class Outage(Struct, frozen=True):
    """An event: no coordinator ran after `after_ms`, and a coordinator takes the group over at `until_ms`."""

    after_ms: int
    until_ms: int

    @property
    def length_ms(self) -> int:
        return self.until_ms - self.after_ms

    def __str__(self) -> str:
        return f"takeover at {self.until_ms}"


def cause_of(event: Received[Any] | Failed[Any] | Quarantine[Any] | D) -> str:
    """Return the cause of a step: the id of the request, or the deadline as text."""
    if isinstance(event, (Received, Failed)):
        return event.request_id
    return str(event.deadline if isinstance(event, Quarantine) else event)
