"""The queries that all stored state of a group id answers, the events of a group, and the context of a step.

`state.dispatch` has all of them, by the type of the group.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from kafka_why.contract.messages import ErrorCode, ErrorResponse, GroupType
from state.config import CoordinatorConfig

G = TypeVar("G")
C = TypeVar("C")


class BaseContext(Struct, Generic[G, C], eq=False):
    """The group, the time, the cause and the configuration of one step, and the deadlines that the step arms.

    `cause` is the id of the request or the deadline that is handled. `now_ms` is the group's time in ms. It
    is a Struct because each step creates one, and a class with an `__init__` takes twice the time.
    """

    group_or_none: G | None
    group_id: str
    cause: str
    now_ms: int
    config: C
    _earliest_armed_ms: int | None = None

    @property
    def group(self) -> G:
        assert self.group_or_none is not None, "this step needs a group"
        return self.group_or_none

    @property
    def has_group(self) -> bool:
        return self.group_or_none is not None

    def deadline_at(self, deadline_ms: int) -> int:
        """Return `deadline_ms`, and store it if it is the earliest deadline that this step arms."""
        if self._earliest_armed_ms is None or deadline_ms < self._earliest_armed_ms:
            self._earliest_armed_ms = deadline_ms
        return deadline_ms


D = TypeVar("D")


Handler = Callable[..., None]
"""It takes the context and the request, and in Kafka's protocols the address of the answer. It changes the
group, and answers now or later.
"""

Handlers = Mapping[type, Handler]
"""By the type of the request."""

RequestRefusal = tuple[str, ErrorCode, str]
"""The row that decided the refusal, the error, and its message."""


WhyRefused = Callable[[str, Any, str, CoordinatorConfig], RequestRefusal]
"""It takes the group id, the request, the request's id and the configuration."""


class StoredKind(ABC, Generic[G, D]):
    """The queries of the timeline and of readers about the stored state of a group id. `G` is its type, `D`
    the type of its deadlines.
    """

    group_type: ClassVar[GroupType]
    group_class: ClassVar[type]
    refusals: ClassVar[Mapping[type, WhyRefused]] = {}
    """By request type: the refusal by a group of another `group_type`, unless it is row X3."""

    @abstractmethod
    def next_deadline_ms(self, group: G, config: CoordinatorConfig) -> int | None:
        """Return the time of the group's earliest deadline in ms, None if no deadline is armed."""

    @abstractmethod
    def due_deadlines(self, group: G, until_ms: int, config: CoordinatorConfig) -> Sequence[D]:
        """Return the group's deadlines up to `until_ms` in the order in which they fire."""

    @abstractmethod
    def is_armed(self, group: G, deadline: D, config: CoordinatorConfig) -> bool:
        """Return True if a due deadline is still armed after other deadlines fired."""

    @abstractmethod
    def view(self, group: G) -> Any:
        """Return the group as it is shown on the groups topic."""

    @abstractmethod
    def refused(self, group: G, answers: Sequence[tuple[int, ErrorResponse]]) -> Any:
        """Return the effects of a step that changes nothing of the group and gives these answers, each with
        its partition of the responses topic.
        """


# The events of a group that are not deadlines, the same for every protocol.
#
# `R_co` is the type of a protocol's requests, `D_co` the type of its deadlines.


R_co = TypeVar("R_co", covariant=True)
D_co = TypeVar("D_co", covariant=True)


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
