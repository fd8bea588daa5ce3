"""The timeline of one group: it applies the group's log and deadlines in time order. In this module a row is
one request of the log.

For each row of the log, in order: every deadline that is due at the row's time fires first, each at its own
time. Then the row is applied. Then the deadlines that are due at the same time fire. After the last row, the
deadlines fire that are due at the watermark, the time up to which the log counts as complete. The outcome is
a function of the log, however the log is split into calls (batching invariance).

Time stands still in an outage, in which no coordinator runs: no deadline is due. An outage ends with the
takeover, an event that restarts sessions and delays the other deadlines. A row that was appended in an outage
is applied after the takeover. The configuration may change at any time: each step uses the configuration in
force at its own time. Outages and changes are inputs, as the log is (`Periods`).

One record cannot stop the others: a step that raises an exception is undone (`Timeline._undo`). Then a
request is answered with an error. If a deadline raised, the group is quarantined: its deadlines stop.
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
    general_step,
    kind_of,
    take_shortcut,
)
from state.dispatch import step as core_step
from state.kafka.context import Effects
from state.protocol import NEVER_MS, Failed, Outage, Quarantine, Received

# The time of a log, cut at the outages and at the changes of the configuration.
#
# Both are inputs of the core, as the log is. Each event is decided under the configuration in force at its
# time. A change applies to all times after its own. Nothing happens in an outage.


class Period(Struct, frozen=True):
    """A span of time under one configuration and without an outage, from `from_ms` to `until_ms` (inclusive).

    `outage` is the outage that follows, or None if a new configuration follows or the span has no end.
    """

    config: CoordinatorConfig
    from_ms: int
    until_ms: int
    outage: Outage | None


class Periods:
    """The time of a log, as consecutive periods. `outages` are sorted by time and do not overlap, and the
    configuration does not change in an outage.
    """

    def __init__(self, configs: Configs, outages: Sequence[Outage]) -> None:
        self.configs = configs
        self.outages = outages

    def at(self, now_ms: int) -> Period:
        """Return the period of a time. A time in an outage belongs to the period before the outage."""
        outages, changes = self.outages, self.configs.changes
        # The period is after `after_ms` and up to `until_ms`. It begins or ends at a change or at an outage.
        config, after_ms, until_ms, next_outage = self.configs.first, -1, NEVER_MS, None
        if changes:
            past_change_count = self.configs.changed_before(now_ms)
            if past_change_count:
                last_change = changes[past_change_count - 1]
                config, after_ms = last_change.config, last_change.after_ms
            if past_change_count < len(changes):
                until_ms = changes[past_change_count].after_ms
        if outages:
            past_outage_count = bisect_right(outages, now_ms, key=_end_ms)
            if past_outage_count:
                # Nothing happens in the outage itself, so the period may begin where the outage began.
                after_ms = max(after_ms, outages[past_outage_count - 1].after_ms)
            # If an outage and a change have the same time, the outage comes first.
            if past_outage_count < len(outages) and outages[past_outage_count].after_ms <= until_ms:
                next_outage = outages[past_outage_count]
                until_ms = next_outage.after_ms
        return Period(config, after_ms + 1, until_ms, next_outage)

    def handled_at(self, appended_ms: int) -> int:
        """Return the time at which a row is handled: the end of the outage in which it was appended, else its
        append time.
        """
        index = bisect_left(self.outages, appended_ms, key=_end_ms)
        # Only the first outage that ends at or after this time can contain it.
        if index < len(self.outages) and self.outages[index].after_ms < appended_ms:
            return self.outages[index].until_ms
        return appended_ms


def _end_ms(outage: Outage) -> int:
    return outage.until_ms


# The defaults of a timeline.
JOURNAL_MAX_STEPS = 4_096
JOURNAL_MAX_BYTES = 32 * 1024 * 1024

# The memory of a timeline without its group.
_TIMELINE_BYTES = 2_000
# The memory of a decoded group relative to its encoding, and of a decoded request relative to its record.
_GROUP_FACTOR, _REQUEST_FACTOR = 10, 2
# The group's size is measured again after more than this number of commits by a shortcut, plus one commit for
# each 32 bytes of the group.
_UNMEASURED_COMMITS_MAX = 64

# To copy a group, it is encoded and decoded. This takes a hundredth of the time of `copy.deepcopy`.
_encoder = msgpack.Encoder()
_decoder: msgpack.Decoder[AnyGroup | None] = msgpack.Decoder(AnyGroup | None)

StepFunction = Callable[[AnyGroup | None, str, AnyEvent, int, CoordinatorConfig], AnyEffects]
ShortcutFunction = Callable[[AnyGroup | None, AnyEvent, int, CoordinatorConfig], Effects | None]


class Row(Struct, frozen=True):
    """One request of the log. `at_ms` is the broker's append time in ms, `request_id` is
    `<topic>-<partition>-<offset>`, and `size_bytes` is the size of the record.
    """

    at_ms: int
    request_id: str
    request: AnyRequest
    size_bytes: int = 0


class Fault(Struct, frozen=True):
    """A step that raised an exception: its request or deadline, and the traceback."""

    cause: str
    traceback: str


class Timeline:
    """One group's run through a part of its log.

    `drain_effects` returns the effects of the steps, and `faults` has the steps that raised an exception.

    A step is a shortcut or a general step (`take_shortcut` and `general_step` in `state.dispatch`). Only a
    general step that raised has to be undone. For this, the timeline takes its last copy of the group and
    replays the journal, the steps since that copy. `restore` returns the first copy: the group as it was at
    the start. If `restore` is None, the group is copied before its first general step. The journal ends after
    `journal_max_steps`, or when its records are larger than both `journal_max_bytes` and the group. The group
    is then copied again before the next general step.

    `outages` and `changes` of the configuration are sorted by time, and outages do not overlap. `config` is
    in force before the first change. `due_ms` is a lower bound of the group's next deadline, or None if no
    deadline is armed. If it were too high, deadlines would fire late.
    """

    def __init__(
        self,
        group_id: str,
        group: AnyGroup | None,
        config: CoordinatorConfig,
        *,
        restore: Callable[[], AnyGroup | None] | None = None,
        step: StepFunction = core_step,
        outages: Sequence[Outage] = (),
        changes: Sequence[ConfigChange] = (),
        due_ms: int | None = 0,
        journal_max_steps: int = JOURNAL_MAX_STEPS,
        journal_max_bytes: int = JOURNAL_MAX_BYTES,
    ) -> None:
        self.group_id = group_id
        self.group = group
        self.faults: list[Fault] = []
        # A test's own step function has no shortcuts.
        self._take_shortcut: ShortcutFunction = take_shortcut if step is core_step else _no_shortcut
        self._step: StepFunction = general_step if step is core_step else step
        self._periods = Periods(Configs(config, changes), outages)
        # The period of the next step. It is never before the period of the group's clock.
        self._period = self._periods.at(0 if group is None else group.clock_ms)
        self._effects: list[AnyEffects] = []
        self._restore = restore
        """A function that returns the group as it was before the steps of the journal, None if there is no
        copy.
        """
        self.encoded_bytes = 0
        """An estimate of the size of the encoded group, for `memory_bytes`."""
        self._unmeasured_commits = 0
        """Commits by a shortcut since the group's size was last measured."""
        self._journal: list[tuple[AnyEvent, int]] = []
        """The events since the copy, each with the time in ms at which it was applied."""
        self._journal_bytes = 0
        self._journal_max_steps = journal_max_steps
        self._journal_max_bytes = journal_max_bytes
        self.due_ms = None if group is None else due_ms
        """The time in ms at which the group is searched for due deadlines: a lower bound of its next
        deadline, or None if no deadline is armed.
        """

    def next_deadline_ms(self) -> int | None:
        """Return the time of the earliest deadline in ms, None if no deadline is armed."""
        group = self.group
        return None if group is None else kind_of(group).next_deadline_ms(group, self._period.config)

    def next_due_ms(self) -> int | None:
        """Return the time at which the next deadline fires unless a row comes before: its own time, or the
        end of an outage that contains it.
        """
        deadline_ms = self.next_deadline_ms()
        return None if deadline_ms is None else self._periods.handled_at(deadline_ms)

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory of the group and its journal."""
        return _TIMELINE_BYTES + _GROUP_FACTOR * self.encoded_bytes + _REQUEST_FACTOR * self._journal_bytes

    def drain_effects(self) -> list[AnyEffects]:
        """Return the effects of the steps since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def apply(self, row: Row) -> None:
        """Fire the deadlines up to the row's time, apply the row, and fire the deadlines that are then due.

        A row that raises an exception is answered with an error.
        """
        at_ms = self._periods.handled_at(row.at_ms) if self._periods.outages else row.at_ms
        if at_ms < self._period.from_ms:
            self._return_to_earlier_period(at_ms)
        self.fire_until(at_ms)
        group = self.group
        clock_ms, late_by_ms = at_ms, 0
        # A group's clock never runs backwards, so a row with an earlier time is applied at the group's time.
        if group is not None and at_ms < group.clock_ms:
            clock_ms = group.clock_ms
            late_by_ms = max(group.last_fired_ms - at_ms, 0)
        try:
            self._apply_event(Received(row.request_id, row.request, late_by_ms), clock_ms)
        except Exception:  # noqa: BLE001 - no exception may stop the other records
            self._undo(row.request_id)
            self._apply_event(Failed(row.request_id, row.request), clock_ms)
        if self._journal:
            self._journal_bytes += row.size_bytes
            if self._journal_bytes >= max(self._journal_max_bytes, self.encoded_bytes):
                self._end_journal()
        self.fire_until(clock_ms)

    def fire_until(self, until_ms: int) -> None:
        """Fire every deadline up to `until_ms`, in order, also deadlines that are armed meanwhile. Apply the
        takeovers up to that time.
        """
        if until_ms > self._period.until_ms:
            until_ms = self._advance_to(until_ms)
        if self.due_ms is not None and self.due_ms <= until_ms:
            self._fire_in_period(until_ms)

    def _advance_to(self, until_ms: int) -> int:
        """Advance to the period of a later time. Deadlines fire in each period before it, and a takeover is
        applied at the end of each outage.

        Return the time until which deadlines fire afterwards: `until_ms`, or the beginning of the outage that
        contains it, because time stands still in an outage. A group that does not exist has no deadlines.
        """
        if self.group is None:
            self._enter_period_at(until_ms)
            return until_ms
        while until_ms > self._period.until_ms:
            end_ms, outage = self._period.until_ms, self._period.outage
            if outage is not None and until_ms < outage.until_ms:
                return end_ms
            self._fire_in_period(end_ms)
            self._enter_period_at(end_ms + 1 if outage is None else outage.until_ms)
            if outage is not None:
                self._take_over(outage)
        return until_ms

    def _take_over(self, outage: Outage) -> None:
        """Apply the takeover at the end of the outage, unless the group's clock is already there."""
        if self.group is not None and self.group.clock_ms < outage.until_ms:
            self._fire(outage, outage.until_ms)

    def _return_to_earlier_period(self, at_ms: int) -> None:
        """Return to the period of a row that is earlier than the current period, unless the group has had a
        step in a later period.

        Without such a step, the advance to the later period has left no trace in the group.
        """
        now_ms = at_ms if self.group is None else max(at_ms, self.group.clock_ms)
        if now_ms < self._period.from_ms:
            self._enter_period_at(now_ms)

    def _enter_period_at(self, now_ms: int) -> None:
        """Enter the period of this time. Search deadlines again, because they may depend on the
        configuration.
        """
        self._period = self._periods.at(now_ms)
        self.due_ms = self.next_deadline_ms()

    def _fire_in_period(self, until_ms: int) -> None:
        """Fire every deadline up to `until_ms`, which is in the current period, in order."""
        config, from_ms = self._period.config, self._period.from_ms
        while self.due_ms is not None and self.due_ms <= until_ms:
            group = self.group
            due = () if group is None else kind_of(group).due_deadlines(group, until_ms, config)
            # During the loop, `due_ms` is the earliest deadline that these steps arm.
            self.due_ms = None
            for deadline in due:
                # The newly armed deadline has to fire first, or may have to: search again.
                if self.due_ms is not None and self.due_ms <= deadline.deadline_ms:
                    break
                group = self.group
                if group is not None and kind_of(group).is_armed(group, deadline, config):
                    # Under a new configuration a deadline may lie before this period. It fires now.
                    self._fire(deadline, max(deadline.deadline_ms, group.clock_ms, from_ms))
            self.due_ms = self.next_deadline_ms()

    def _fire(self, event: AnyDeadline | Outage, now_ms: int) -> None:
        """Apply a deadline or a takeover. If it raises an exception, undo it and quarantine the group."""
        try:
            self._apply_event(event, now_ms)
        except Exception as error:  # noqa: BLE001
            self._undo(str(event))
            self._apply_event(Quarantine(event, f"{type(error).__name__}: {error}"), now_ms)

    def _apply_event(self, event: AnyEvent, now_ms: int) -> None:
        """Apply an event to the group, store the effects, and add the event to the journal if a later undo
        has to replay it.
        """
        shortcut_effects = self._take_shortcut(self.group, event, now_ms, self._period.config)
        effects = self._take_general_step(event, now_ms) if shortcut_effects is None else shortcut_effects
        # A shortcut never has to be undone. It is in the journal only after a general step, because a replay
        # of that step must be followed by the shortcut.
        if shortcut_effects is not None and not self._journal:
            self._restore = None  # the copy is obsolete
            is_commit = bool(shortcut_effects.offsets)
            self._unmeasured_commits += is_commit
            if self._unmeasured_commits > _UNMEASURED_COMMITS_MAX + self.encoded_bytes // 32:
                self._encode_and_measure()
        else:
            self._journal.append((event, now_ms))
        self.group = effects.group
        self._effects.append(effects)
        armed_ms = effects.earliest_armed_ms
        if armed_ms is not None and (self.due_ms is None or armed_ms < self.due_ms):
            self.due_ms = armed_ms
        if len(self._journal) >= self._journal_max_steps:
            self._end_journal()

    def _take_general_step(self, event: AnyEvent, now_ms: int) -> AnyEffects:
        """Take a general step. If there is no copy of the group, copy the group first."""
        if self._restore is None:
            encoded = self._encode_and_measure()
            self._restore = lambda: _decoder.decode(encoded)
        return self._step(self.group, self.group_id, event, now_ms, self._period.config)

    def _undo(self, cause: str) -> None:
        """Restore the group to its state before the step that raised: take the last copy, and replay the
        journal. If there is no copy, a shortcut raised, and the group has not changed.
        """
        self.faults.append(Fault(cause, traceback.format_exc()))
        if self._restore is None:
            return
        group = self._restore()
        assert group is None or group is not self.group, "restore must return a new copy of the group"
        for event, now_ms in self._journal:
            config = self._periods.configs.at(now_ms)
            effects: AnyEffects | None = self._take_shortcut(group, event, now_ms, config)
            if effects is None:
                effects = self._step(group, self.group_id, event, now_ms, config)
            group = effects.group
        self.group = group
        self._end_journal()

    def _end_journal(self) -> None:
        """Forget the copy and the journal. The next general step copies the group."""
        self._restore = None
        self._journal.clear()
        self.encoded_bytes += self._journal_bytes  # the group may have grown by as much
        self._journal_bytes = 0

    def _encode_and_measure(self) -> bytes:
        encoded = _encoder.encode(self.group)
        self.encoded_bytes, self._unmeasured_commits = len(encoded), 0
        return encoded


def _no_shortcut(group: AnyGroup | None, event: AnyEvent, now_ms: int, config: CoordinatorConfig) -> None:
    """Return None, so that the step function handles every event."""
