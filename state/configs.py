"""The configurations of a coordinator by time."""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from msgspec import Struct

from state.config import CoordinatorConfig


class ConfigChange(Struct, frozen=True):
    """`config` is in force at all times after `after_ms`, until the next change."""

    after_ms: int
    config: CoordinatorConfig


class Configs(Struct, frozen=True):
    """`first` is in force until the first of `changes`. These are sorted by time. Of changes after the same
    time the last one counts.
    """

    first: CoordinatorConfig
    changes: Sequence[ConfigChange] = ()

    def at(self, now_ms: int) -> CoordinatorConfig:
        """Return the configuration in force at a time."""
        changed = self.changed_before(now_ms)
        return self.changes[changed - 1].config if changed else self.first

    def changed_before(self, now_ms: int) -> int:
        """Return the number of changes that are in force at a time, or were."""
        return bisect_left(self.changes, now_ms, key=_after)

    def each(self, function: Callable[[CoordinatorConfig], CoordinatorConfig]) -> "Configs":
        """Return what the function makes of each configuration, at the same times."""
        changes = [ConfigChange(change.after_ms, function(change.config)) for change in self.changes]
        return Configs(function(self.first), changes)


def _after(change: ConfigChange) -> int:
    return change.after_ms
