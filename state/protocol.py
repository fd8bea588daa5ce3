"""The queries that all stored state of a group id answers, and the context of a step.

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

    _group: G | None
    group_id: str
    cause: str
    now_ms: int
    config: C
    _earliest_armed_ms: int | None = None

    @property
    def group(self) -> G:
        assert self._group is not None, "this step needs a group"
        return self._group

    @property
    def has_group(self) -> bool:
        return self._group is not None

    def deadline_at(self, deadline_ms: int) -> int:
        """Return `deadline_ms`, and note it as armed if it is the earliest of this step."""
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
