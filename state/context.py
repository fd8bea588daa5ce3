"""The part of a step's context that all protocols share."""

from typing import Generic, TypeVar

from msgspec import Struct

G = TypeVar("G")
C = TypeVar("C")


class BaseContext(Struct, Generic[G, C], eq=False):
    """The group, the time, the cause and the configuration of one step, and the deadlines that the step arms.

    `cause` is the id of the request or the deadline that is handled. `now_ms` is the group's time in ms. It
    is a Struct because each step makes one: a class with an `__init__` takes twice the time.
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
