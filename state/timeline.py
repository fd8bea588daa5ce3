"""The timeline of one group: it applies the group's log and deadlines in time order.

For each row of the log, in order: every deadline that is due at the row's time fires first, each at its own
time. Then the row is applied. Then the deadlines that are due at the same time fire. After the last row, the
deadlines that are due at the watermark fire. The outcome is a function of the log, however the log is split
into calls (batching invariance).

Time stands still while no coordinator runs: no deadline is due in an outage. A row that was appended in an
outage is applied at the end of the outage, after the takeover. The configuration changes at a time: each
step uses the one in force at its own time. Outages and changes are inputs, as the log is (`Periods`).

One record cannot stop the others: a step that raises is undone and answered, see `Timeline._undo`.
"""

import traceback
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from msgspec import Struct, msgpack

from kafka_why.contract.codec import AnyRequest
from state.config import ConfigChange, Configs, CoordinatorConfig
from state.dispatch import (
    AnyDeadline,
    AnyEffects,
    AnyEvent,
    AnyGroup,
    due_deadlines,
    is_armed,
    next_deadline_ms,
    step,
)
from state.protocol import Failed, Outage, Quarantine, Received

# The time of a log, cut at the outages and at the changes of the configuration.
#
# Both are inputs of the core, as the log is. Each event is decided under the configuration in force at its
# time. A change applies to all times after its own. Nothing happens in an outage.


# Later than any timestamp that a record may have, in ms since 1970.
NEVER_MS = 2**63 - 1


class Period(Struct, frozen=True):
    """A span of time under one configuration and without an outage: from `from_ms` to `until_ms`, both
    included. `outage` is the outage that follows, None if a new configuration follows or the span has no end.
    """

    config: CoordinatorConfig
    from_ms: int
    until_ms: int
    outage: Outage | None


class Periods:
    """All periods of a log. `outages` are sorted by time and do not overlap.

    The configuration does not change in an outage.
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
            # If an outage and a change have the same time, the outage is first.
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


# The defaults of a timeline.
JOURNAL_MAX_STEPS = 4_096
JOURNAL_MAX_BYTES = 32 * 1024 * 1024

# A copy is made by encoding, which takes a hundredth of the time of `copy.deepcopy`.
_encoder = msgpack.Encoder()
_decoder: msgpack.Decoder[AnyGroup] = msgpack.Decoder(AnyGroup)

StepFunction = Callable[[AnyGroup | None, str, AnyEvent, int, CoordinatorConfig], AnyEffects]


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
    """One group's run through a part of its log.

    `restore` returns a new copy of the group as it was at the start. It is called only when a step is undone.
    If `restore` is None, `group` is copied at once. Steps append to `effects` and `faults`. The caller may
    call `drain_effects` at any time. The group is copied when the journal reaches `journal_max_steps`, or
    this size of the steps' records. `outages` and `changes` of the configuration are sorted by time, and
    outages do not overlap; `config` is in force before the first change. `due_ms` is a time that is not later
    than the group's next deadline, or None if no deadline is armed. If it were later, deadlines would fire
    too late.
    """

    def __init__(
        self,
        group_id: str,
        group: AnyGroup | None,
        config: CoordinatorConfig,
        *,
        restore: Callable[[], AnyGroup | None] | None = None,
        step: StepFunction = step,
        outages: Sequence[Outage] = (),
        changes: Sequence[ConfigChange] = (),
        due_ms: int | None = 0,
        journal_max_steps: int = JOURNAL_MAX_STEPS,
        journal_max_bytes: int = JOURNAL_MAX_BYTES,
    ) -> None:
        self.group_id = group_id
        self.group = group
        self.faults: list[Fault] = []
        self._step = step
        self._outages = outages
        self._periods = Periods(Configs(config, changes), outages)
        # The period of the next step. It is never before the period of the group's clock.
        self._period = self._periods.at(0 if group is None else group.clock_ms)
        self._effects: list[AnyEffects] = []
        self._given = group
        self._restore = restore or _copier(group)
        self._journal: list[tuple[AnyEvent, int]] = []
        self._journal_bytes = 0
        self._journal_max_steps = journal_max_steps
        self._journal_max_bytes = journal_max_bytes
        # Never later than the next deadline. The deadlines are searched when this time is reached.
        self._due_ms = None if group is None else due_ms

    def next_deadline_ms(self) -> int | None:
        """Return the time of the earliest deadline in ms, None if no deadline is armed."""
        return None if self.group is None else next_deadline_ms(self.group, self._period.config)

    def next_due_ms(self) -> int | None:
        """Return the time at which the next deadline fires unless a row comes before: its own time, or the
        end of an outage that contains it.
        """
        deadline_ms = self.next_deadline_ms()
        return None if deadline_ms is None else self._periods.handled_at(deadline_ms)

    @property
    def due_ms(self) -> int | None:
        """A time in ms that is not later than the next deadline, None if no deadline is armed."""
        return self._due_ms

    def drain_effects(self) -> list[AnyEffects]:
        """Return the effects of the steps since the last call."""
        taken, self._effects = self._effects, []
        return taken

    def apply(self, row: Row) -> None:
        """Fire the deadlines until the row's time, apply the row, and fire the deadlines that are then
        due.
        """
        at_ms = self._periods.handled_at(row.at_ms) if self._outages else row.at_ms
        if at_ms < self._period.from_ms:
            self._return_to(at_ms)
        self.fire_until(at_ms)
        group = self.group
        clock_ms, late_by_ms = at_ms, 0
        if group is not None and at_ms < group.clock_ms:
            clock_ms = group.clock_ms
            late_by_ms = max(group.last_fired_ms - at_ms, 0)
        self._journal_bytes += row.size_bytes
        try:
            self._apply_event(Received(row.request_id, row.request, late_by_ms), clock_ms)
        except Exception:  # noqa: BLE001 - no exception may stop the other records
            self._undo(row.request_id)
            self._apply_event(Failed(row.request_id, row.request), clock_ms)
        self.fire_until(clock_ms)

    def fire_until(self, until_ms: int) -> None:
        """Fire every deadline due at `until_ms`, in order, including those armed meanwhile, and apply the
        takeovers until then.
        """
        if until_ms > self._period.until_ms:
            until_ms = self._advance_to(until_ms)
        if self._due_ms is not None and self._due_ms <= until_ms:
            self._fire_until(until_ms)

    def _advance_to(self, until_ms: int) -> int:
        """Advance to the period of a later time. Deadlines fire in each period before it, and a takeover is
        applied at the end of each outage.

        Return the time until which deadlines fire afterwards. It lies before an outage, because time stands
        still in it.
        """
        if self.group is None:
            self._enter(until_ms)
            return until_ms
        while until_ms > self._period.until_ms:
            end_ms, outage = self._period.until_ms, self._period.outage
            if outage is not None and until_ms < outage.until_ms:
                return end_ms
            self._fire_until(end_ms)
            self._enter(end_ms + 1 if outage is None else outage.until_ms)
            if outage is not None:
                self._take_over(outage)
        return until_ms

    def _take_over(self, outage: Outage) -> None:
        if self.group is not None and self.group.clock_ms < outage.until_ms:
            self._fire(outage, outage.until_ms)

    def _return_to(self, at_ms: int) -> None:
        """Return to the period of a late row, unless the group has had a later step. The advance to a later
        period has then left no trace in the group.
        """
        now_ms = at_ms if self.group is None else max(at_ms, self.group.clock_ms)
        if now_ms < self._period.from_ms:
            self._enter(now_ms)

    def _enter(self, now_ms: int) -> None:
        """Enter the period of this time. Search deadlines again, because they may depend on the
        configuration.
        """
        self._period = self._periods.at(now_ms)
        self._due_ms = self.next_deadline_ms()

    def _fire_until(self, until_ms: int) -> None:
        config, from_ms = self._period.config, self._period.from_ms
        while self._due_ms is not None and self._due_ms <= until_ms:
            due = [] if self.group is None else due_deadlines(self.group, until_ms, config)
            self._due_ms = None
            for deadline in due:
                # A deadline armed meanwhile may have to fire first: search again.
                if self._due_ms is not None and self._due_ms <= deadline.deadline_ms:
                    break
                if self.group is not None and is_armed(self.group, deadline, config):
                    # A new configuration may set a deadline to a time before its own.
                    self._fire(deadline, max(deadline.deadline_ms, self.group.clock_ms, from_ms))
            self._due_ms = self.next_deadline_ms()

    def _fire(self, due: AnyDeadline | Outage, now_ms: int) -> None:
        try:
            self._apply_event(due, now_ms)
        except Exception as error:  # noqa: BLE001
            self._undo(str(due))
            self._apply_event(Quarantine(due, f"{type(error).__name__}: {error}"), now_ms)

    def _apply_event(self, event: AnyEvent, now_ms: int) -> None:
        effects = self._step(self.group, self.group_id, event, now_ms, self._period.config)
        self.group = effects.group
        self._effects.append(effects)
        armed_ms = effects.earliest_armed_ms
        if armed_ms is not None and (self._due_ms is None or armed_ms < self._due_ms):
            self._due_ms = armed_ms
        self._journal.append((event, now_ms))
        if len(self._journal) >= self._journal_max_steps or self._journal_bytes >= self._journal_max_bytes:
            self._begin_journal()

    def _undo(self, cause: str) -> None:
        """Restore the group to its state before the step that raised: take the last copy and replay the steps
        since.
        """
        self.faults.append(Fault(cause, traceback.format_exc()))
        group = self._restore()
        assert group is None or group is not self._given, "restore must return a new copy of the group"
        for event, now_ms in self._journal:
            config = self._periods.configs.at(now_ms)
            group = self._step(group, self.group_id, event, now_ms, config).group
        self.group = group
        self._begin_journal()

    def _begin_journal(self) -> None:
        self._restore = _copier(self.group)
        self._journal.clear()
        self._journal_bytes = 0


def _copier(group: AnyGroup | None) -> Callable[[], AnyGroup | None]:
    """Copy the group, and return a function that returns new copies of that copy."""
    if group is None:
        return lambda: None
    copy = _encoder.encode(group)
    return lambda: _decoder.decode(copy)
