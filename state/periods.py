"""The time of a log, cut at the outages and at the changes of the configuration.

Both are inputs of the core beside the log. What happens at a time is decided under the configuration in force
at that time: each change holds for the times after its own. Nothing happens in an outage.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from msgspec import Struct

from state.config import Configs, CoordinatorConfig
from state.inputs import Outage

# Later than all times in ms since 1970 that a record may have.
NEVER_MS = 2**63 - 1


class Period(Struct, frozen=True):
    """A time under one configuration and without an outage: from `from_ms` to `until_ms`, both included.

    `outage` is the outage that follows it. It is None if the configuration changes, or if the time has no
    end.
    """

    config: CoordinatorConfig
    from_ms: int
    until_ms: int
    outage: Outage | None


class Periods:
    """All periods of a log. `outages` are sorted by time and do not overlap.

    No configuration changes in an outage: what is appended in it is handled at its end, under one.
    """

    def __init__(self, configs: Configs, outages: Sequence[Outage]) -> None:
        self.configs = configs
        self.outages = outages

    def at(self, now_ms: int) -> Period:
        """Return the period of a time. A time in an outage is of the period before the outage."""
        outages, changes = self.outages, self.configs.changes
        config, after_ms, until_ms, following = self.configs.first, -1, NEVER_MS, None
        if changes:
            changed = self.configs.changed_before(now_ms)
            if changed:
                config, after_ms = changes[changed - 1].config, changes[changed - 1].after_ms
            if changed < len(changes):
                until_ms = changes[changed].after_ms
        if outages:
            passed = bisect_right(outages, now_ms, key=_until)
            if passed:
                after_ms = max(after_ms, outages[passed - 1].after_ms)
            # Of an outage and a change at the same time the outage is first: nothing happens between them.
            if passed < len(outages) and outages[passed].after_ms <= until_ms:
                following = outages[passed]
                until_ms = following.after_ms
        return Period(config, after_ms + 1, until_ms, following)

    def handled_at(self, appended_ms: int) -> int:
        """Return the time at which a row is handled: the end of the outage in which it was appended, else its
        append time.
        """
        at = bisect_left(self.outages, appended_ms, key=_until)
        if at < len(self.outages) and self.outages[at].after_ms < appended_ms:
            return self.outages[at].until_ms
        return appended_ms


def _until(outage: Outage) -> int:
    return outage.until_ms
