"""The queries on the stored state of a group id, the events of a group, and the context of a step, which
applies one event to one group.

`state.dispatch` finds the queries and the step function by the type of the group.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from kafka_why.contract.history_reader import StoredView
from kafka_why.contract.messages import ErrorCode, ErrorResponse, GroupType
from state.config import CoordinatorConfig

G = TypeVar("G")  # the stored state of a group id
C = TypeVar("C")  # the type of the configuration


class BaseContext(Struct, Generic[G, C], eq=False):
    """The group, the time, the cause and the configuration of one step, and the deadlines that the step arms.

    `cause` is the id of the request that is handled, or the text of the deadline. `now_ms` is the group's
    time in ms.

    This class is a Struct because each step creates a context, and a class with an `__init__` takes twice the
    time.
    """

    group_or_none: G | None
    group_id: str
    cause: str
    now_ms: int
    config: C
    _earliest_armed_ms: int | None = None

    @property
    def group(self) -> G:
        """The group, which must exist in this step."""
        assert self.group_or_none is not None, "this step needs a group"
        return self.group_or_none

    @property
    def has_group(self) -> bool:
        return self.group_or_none is not None

    def deadline_at(self, deadline_ms: int) -> int:
        """Return `deadline_ms`, which the caller stores in the group to arm this deadline. Here only the
        earliest deadline of the step is remembered.
        """
        if self._earliest_armed_ms is None or deadline_ms < self._earliest_armed_ms:
            self._earliest_armed_ms = deadline_ms
        return deadline_ms


# Later than any timestamp that a record may have, in ms since 1970.
NEVER_MS = 2**63 - 1


class DeadlineEvent(Struct, frozen=True):
    """An event: a deadline of a group is due. `deadline_ms` is the time of the deadline, which may be before
    the time at which it fires.
    """

    deadline_ms: int


D = TypeVar("D", bound=DeadlineEvent)


Handler = Callable[..., None]
"""A function that handles requests of one type. It takes the context and the request, and in Kafka's
protocols the address of the answer. It changes the group, and answers in this step or a later one.
"""

Handlers = Mapping[type, Handler]
"""Handlers by the type of the request."""

RequestRefusal = tuple[str, ErrorCode, str]
"""The row that decided the refusal, the error, and its message."""


WhyRefused = Callable[[str, Any, str, CoordinatorConfig], RequestRefusal]
"""A function that decides how a request is refused. It takes the group id, the request, the request's id and
the configuration.
"""


class StoredKind(ABC, Generic[G, D]):
    """The queries on one type of stored state, `G`, for the timeline and for readers. `D` is the type of its
    deadlines.
    """

    group_type: ClassVar[GroupType]
    group_class: ClassVar[type]
    refusals: ClassVar[Mapping[type, WhyRefused]] = {}
    """By request type: the function that decides the refusal by a group of another `group_type`. A request
    without an entry is refused by row X3, with INCONSISTENT_GROUP_PROTOCOL.
    """

    @abstractmethod
    def due_deadlines(self, group: G, until_ms: int, config: CoordinatorConfig) -> Sequence[D]:
        """Return the group's deadlines up to `until_ms` in the order in which they fire."""

    def next_deadline_ms(self, group: G, config: CoordinatorConfig) -> int | None:
        """Return the time of the group's earliest deadline in ms, None if no deadline is armed."""
        deadlines = self.due_deadlines(group, NEVER_MS, config)
        return deadlines[0].deadline_ms if deadlines else None

    def is_armed(self, group: G, deadline: D, config: CoordinatorConfig) -> bool:
        """Return True if `deadline`, which was due, is still armed. A deadline that fired before it may have
        disarmed it.
        """
        return deadline in self.due_deadlines(group, deadline.deadline_ms, config)

    @abstractmethod
    def view(self, group: G) -> StoredView:
        """Return the group as it is shown on the groups topic."""

    @abstractmethod
    def refusal_effects(self, group: G, answers: Sequence[tuple[int, ErrorResponse]]) -> Any:
        """Return the effects of a step that sends `answers` and changes nothing. Each answer has its
        partition of the responses topic.
        """


# The events of a group that are not deadlines, the same for every protocol.
#
# `R_co` is the type of a protocol's requests, `D_co` the type of its deadlines.


R_co = TypeVar("R_co", covariant=True)
D_co = TypeVar("D_co", covariant=True)


class Received(Struct, Generic[R_co], frozen=True, gc=False):
    """An event: a request was read from the log.

    If a deadline has already fired that is later than the request's append time, `late_by_ms` is the
    difference. Otherwise it is 0.
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
    """An event: the handler of a deadline or takeover raised an exception, so the group was restored to its
    earlier state. The group's deadlines are stopped.
    """

    deadline: D_co
    error: str  # the exception: its type and its text


class Outage(Struct, frozen=True):
    """An event: no coordinator ran after `after_ms`, and a coordinator takes the group over at `until_ms`."""

    after_ms: int
    until_ms: int

    @property
    def length_ms(self) -> int:
        return self.until_ms - self.after_ms

    def __str__(self) -> str:
        return f"takeover at {self.until_ms}"


def cause_of(event: object) -> str:
    """Return the cause of a step: the id of the request, or the deadline as text."""
    if isinstance(event, (Received, Failed)):
        return event.request_id
    return str(event.deadline if isinstance(event, Quarantine) else event)
