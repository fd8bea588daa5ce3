"""The timeline of one group: it applies the group's log and deadlines in time order.

For each row of the log, in order: every deadline that is due at the row's time fires first, each at its own
time. Then the row is applied. Then the deadlines that are due at the same time fire. After the last row, the
deadlines that are due at the watermark fire. The outcome is a function of the log, however the log is cut
into calls (batching invariance).

Time stands still while no coordinator runs: no deadline is due in an outage. A row that was appended in an
outage is applied at the end of the outage, after the takeover. Outages are an input, as the log is.

One record cannot stop the others: a step that raises is undone and answered, see `Timeline._undo`.
"""

import traceback
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from msgspec import Struct, msgpack

from state.config import CoordinatorConfig
from state.dispatch import (
    AnyDeadline,
    AnyEffects,
    AnyEvent,
    AnyGroup,
    AnyRequest,
    due_deadlines,
    is_armed,
    next_deadline_ms,
    step,
)
from state.inputs import Failed, Outage, Quarantine, Received

# The group is copied when the journal reaches this number of steps, or this size of their records.
JOURNAL_MAX_STEPS = 4_096
JOURNAL_MAX_BYTES = 32 * 1024 * 1024

# A copy is made by encoding, which takes a hundredth of the time of `copy.deepcopy`.
_encoder = msgpack.Encoder()
_decoder: msgpack.Decoder[AnyGroup] = msgpack.Decoder(AnyGroup)

Step = Callable[[AnyGroup | None, str, AnyEvent, int, CoordinatorConfig], AnyEffects]


class Row(Struct, frozen=True):
    """One request of the log. `at_ms` is the broker's append time in ms, `request_id` is
    `<topic>-<partition>-<offset>`, and `size_bytes` is the size of the record.
    """

    at_ms: int
    request_id: str
    request: AnyRequest
    size_bytes: int = 0


class Fault(Struct, frozen=True):
    """A step that raised: its request or deadline, and the traceback."""

    cause: str
    traceback: str


class Timeline:
    """The run of one group through a part of its log.

    `restore` returns a new copy of the group as it was at the start. It is called only when a step is undone.
    If `restore` is None, `group` is copied at once. Steps append to `effects` and `faults`. The caller may
    call `take_effects` at any time. `outages` are sorted by time and do not overlap. `due_ms` is a time that
    is not later than the group's next deadline; None: no deadline is armed. With a later `due_ms`, deadlines
    fire too late.
    """

    def __init__(
        self,
        group_id: str,
        group: AnyGroup | None,
        config: CoordinatorConfig,
        *,
        restore: Callable[[], AnyGroup | None] | None = None,
        step: Step = step,
        outages: Sequence[Outage] = (),
        due_ms: int | None = 0,
    ) -> None:
        self.group_id = group_id
        self.group = group
        self.faults: list[Fault] = []
        self._config = config
        self._step = step
        self._outages = outages
        # The number of outages that end before the group's time.
        self._passed = 0 if group is None else bisect_right(outages, group.clock_ms, key=_until)
        self._effects: list[AnyEffects] = []
        self._given = group
        self._restore = restore or _copier(group)
        self._journal: list[tuple[AnyEvent, int]] = []
        self._journal_bytes = 0
        # Never later than the next deadline. The deadlines are searched when this time is reached.
        self._due_ms = None if group is None else due_ms

    def next_deadline_ms(self) -> int | None:
        """Return the time of the earliest deadline in ms, None if no deadline is armed."""
        return None if self.group is None else next_deadline_ms(self.group, self._config)

    def take_effects(self) -> list[AnyEffects]:
        """Return the effects of the steps since the last call."""
        taken, self._effects = self._effects, []
        return taken

    def apply(self, row: Row) -> None:
        """Fire the deadlines until the row's time, apply the row, and fire the deadlines that are due at
        once.
        """
        at_ms = self._handled_at(row.at_ms) if self._outages else row.at_ms
        self.fire_until(at_ms)
        group = self.group
        clock_ms, late_by_ms = at_ms, 0
        if group is not None and at_ms < group.clock_ms:
            clock_ms = group.clock_ms
            late_by_ms = max(group.last_fired_ms - at_ms, 0)
        self._journal_bytes += row.size_bytes
        try:
            self._take(Received(row.request_id, row.request, late_by_ms), clock_ms)
        except Exception:  # noqa: BLE001 - no exception may stop the other records
            self._undo(row.request_id)
            self._take(Failed(row.request_id, row.request), clock_ms)
        self.fire_until(clock_ms)

    def fire_until(self, until_ms: int) -> None:
        """Fire every deadline that is due at `until_ms`, in order, including deadlines that are armed
        meanwhile, and apply the takeovers until then.
        """
        if self._passed < len(self._outages):
            until_ms = self._take_over(until_ms)
        if self._due_ms is not None and self._due_ms <= until_ms:
            self._fire_until(until_ms)

    def _take_over(self, until_ms: int) -> int:
        """Apply a takeover at the end of each outage that was reached. Return the time until which deadlines
        fire afterwards: time stands still in an outage.
        """
        while self._passed < len(self._outages):
            outage = self._outages[self._passed]
            if until_ms < outage.until_ms:
                return min(until_ms, outage.after_ms)
            self._passed += 1
            self._fire_until(outage.after_ms)
            if self.group is not None and self.group.clock_ms < outage.until_ms:
                self._fire(outage, outage.until_ms)
        return until_ms

    def _handled_at(self, appended_ms: int) -> int:
        """Return the time at which a row is handled: the end of the outage in which it was appended, else its
        append time.
        """
        at = bisect_left(self._outages, appended_ms, key=_until)
        if at < len(self._outages) and self._outages[at].after_ms < appended_ms:
            return self._outages[at].until_ms
        return appended_ms

    def _fire_until(self, until_ms: int) -> None:
        while self._due_ms is not None and self._due_ms <= until_ms:
            due = [] if self.group is None else due_deadlines(self.group, until_ms, self._config)
            self._due_ms = None
            for deadline in due:
                # A deadline that was armed meanwhile may have to fire first: search anew.
                if self._due_ms is not None and self._due_ms <= deadline.deadline_ms:
                    break
                if self.group is not None and is_armed(self.group, deadline, self._config):
                    self._fire(deadline, max(deadline.deadline_ms, self.group.clock_ms))
            self._due_ms = self.next_deadline_ms()

    def _fire(self, due: AnyDeadline | Outage, now_ms: int) -> None:
        try:
            self._take(due, now_ms)
        except Exception as error:  # noqa: BLE001
            self._undo(str(due))
            self._take(Quarantine(due, f"{type(error).__name__}: {error}"), now_ms)

    def _take(self, event: AnyEvent, now_ms: int) -> None:
        effects = self._step(self.group, self.group_id, event, now_ms, self._config)
        self.group = effects.group
        self._effects.append(effects)
        armed_ms = effects.earliest_armed_ms
        if armed_ms is not None and (self._due_ms is None or armed_ms < self._due_ms):
            self._due_ms = armed_ms
        self._journal.append((event, now_ms))
        if len(self._journal) >= JOURNAL_MAX_STEPS or self._journal_bytes >= JOURNAL_MAX_BYTES:
            self._begin_journal()

    def _undo(self, cause: str) -> None:
        """Restore the group to its state before the step that raised: take the last copy and repeat the steps
        since.
        """
        self.faults.append(Fault(cause, traceback.format_exc()))
        group = self._restore()
        assert group is None or group is not self._given, "restore gives the group that steps have changed"
        for event, now_ms in self._journal:
            group = self._step(group, self.group_id, event, now_ms, self._config).group
        self.group = group
        self._begin_journal()

    def _begin_journal(self) -> None:
        self._restore = _copier(self.group)
        self._journal.clear()
        self._journal_bytes = 0


def _until(outage: Outage) -> int:
    return outage.until_ms


def _copier(group: AnyGroup | None) -> Callable[[], AnyGroup | None]:
    """Copy the group. The returned function returns a new copy of this copy."""
    if group is None:
        return lambda: None
    copy = _encoder.encode(group)
    return lambda: _decoder.decode(copy)
