"""One step under way, as far as it is the same for every protocol."""

from typing import Generic, TypeVar

G = TypeVar("G")
C = TypeVar("C")


class BaseContext(Generic[G, C]):
    """The group (None while there is none), what is happening to it, when, and what it armed.

    `cause` is the id of the request or the deadline that the step is about.
    """

    def __init__(self, group: G | None, group_id: str, cause: str, now_ms: int, config: C) -> None:
        self._group = group
        self.group_id = group_id
        self.cause = cause
        self.now_ms = now_ms
        self.config = config
        self._earliest_armed_ms: int | None = None

    @property
    def group(self) -> G:
        assert self._group is not None, "this step needs a group"
        return self._group

    @property
    def has_group(self) -> bool:
        return self._group is not None

    def deadline_at(self, deadline_ms: int) -> int:
        """This time, for a timer that is being armed."""
        if self._earliest_armed_ms is None or deadline_ms < self._earliest_armed_ms:
            self._earliest_armed_ms = deadline_ms
        return deadline_ms
