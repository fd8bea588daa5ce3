"""The rebalances of a consumer, share or streams group: the changes of the group epoch until every member has
its target assignment.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from msgspec.structs import replace

from kafka_why.contract.kafka.history import SHARE, STREAMS, ConsumerGroupState, EntryType, HistoryEntry
from kafka_why.why.causes import UNKNOWN_CAUSE, cause_of_epoch, conversion
from kafka_why.why.model import EpochChange, Moves, Rebalance, RebalanceOutcome
from kafka_why.why.moves import Holdings, KnownState, compare, compare_shared
from kafka_why.why.reconciling import ReconciliationTracker
from kafka_why.why.segments import IncarnationHistory, TopicNames, joined_in, removed_in
from kafka_why.why.tasks import compare_tasks, failures_in, states_in, task_moves, tasks_of

_NOT_SETTLED = (ConsumerGroupState.ASSIGNING, ConsumerGroupState.RECONCILING)
_ENDS = {
    EntryType.STABLE: RebalanceOutcome.STABLE,
    EntryType.EMPTY: RebalanceOutcome.EMPTY,
    EntryType.GROUP_DELETED: RebalanceOutcome.UNKNOWN,
}
_TOPIC_CHANGES = (EntryType.TOPICS_CHANGED, EntryType.SHARE_PARTITIONS_INITIALIZED)
# Entries of a trigger up to the last one of these types belong to the current rebalance.
_TARGET_TYPES = (
    EntryType.GROUP_EPOCH_BUMPED,
    EntryType.TARGET_ASSIGNMENT_COMPUTED,
    EntryType.MEMBER_RECONCILED,
    EntryType.STABLE,
)


@dataclass(slots=True)
class _Segment:
    """The entries of one rebalance, with all entries of the request or deadline that began it."""

    entries: list[HistoryEntry]
    opening: HistoryEntry | None  # the entry that began the rebalance; None if the history lacks it
    before: Holdings | None  # assignment before the rebalance; None if unknown
    # Earlier entries about topics, which can be the reason of a new epoch.
    topic_changes: list[HistoryEntry]
    last_target_ms: int | None  # time of the previous target assignment; None if unknown
    has_target: bool = False


def rebalances_by_epochs(
    phase: IncarnationHistory[HistoryEntry], known: KnownState, last_outcome: RebalanceOutcome
) -> Iterator[Rebalance]:
    """Yield the rebalances of a phase, a time in which the group had one type, here one with epochs.

    `known` is the group's state before the phase, and is updated. A rebalance that has not ended in the phase
    gets `last_outcome`.
    """
    splitter = _RebalanceSplitter(ReconciliationTracker(known.holdings))
    expected_seq, topic_names = phase.begins_after + 1, TopicNames()
    for event in map(topic_names.replace_ids, phase.entries):
        if event.seq != expected_seq and not phase.unread.issuperset(range(expected_seq, event.seq)):
            yield from splitter.lose_track(phase.incarnation)
        expected_seq = event.seq + 1
        yield from splitter.add(event, phase.incarnation)
    yield from splitter.finish(phase.incarnation, last_outcome)
    tracker = splitter.tracker
    known.holdings = tracker.assigned if tracker.is_complete else None
    known.released = {}


class _RebalanceSplitter:
    """A splitter of a phase into rebalances. A trigger is a request or deadline; it can have many entries.

    The methods yield the rebalances that have ended.
    """

    def __init__(self, tracker: ReconciliationTracker) -> None:
        self.tracker = tracker
        self._segment: _Segment | None = None  # the current rebalance
        self._trigger_entries: list[HistoryEntry] = []  # the entries of the current trigger
        # Entries about topics that no rebalance has yet.
        self._topic_changes: list[HistoryEntry] = []
        self._holdings_before_trigger: Holdings | None = None  # None if unknown
        self._last_target_ms: int | None = None

    def add(self, event: HistoryEntry, incarnation: str) -> Iterator[Rebalance]:
        """Add the next entry. Yield the rebalances that end before it or with it."""
        if self._trigger_entries and self._trigger_entries[-1].cause != event.cause:
            self._trigger_entries = []
            yield from self._end_with_trigger(incarnation)
        if self._can_begin(event) and not self._trigger_entries:  # the first entry of its trigger
            self._holdings_before_trigger = dict(self.tracker.assigned) if self.tracker.is_complete else None
        self._trigger_entries.append(event)
        if event.type in _TOPIC_CHANGES:
            self._topic_changes.append(event)
        if event.type is EntryType.GROUP_EPOCH_BUMPED and self._can_begin(event):
            yield from self._supersede(event, incarnation)
            self._begin(list(self._trigger_entries), opening=event)
        elif self._segment is not None:
            self._segment.entries.append(event)
        elif self._history_begins_midway(event):
            self._begin([event], opening=None)
        if event.type is EntryType.TARGET_ASSIGNMENT_COMPUTED:
            self._note_target(event)
        self.tracker.apply(event)
        if self._segment is not None and event.type in _ENDS:
            yield self._end(incarnation, _ENDS[event.type], event.at_ms)

    def _can_begin(self, event: HistoryEntry) -> bool:
        """Return True if a new epoch would begin a rebalance now. Otherwise it belongs to the current one.

        In a share group, the first epoch after each target assignment begins a rebalance.
        """
        return self._segment is None or (event.group_type == SHARE and self._segment.has_target)

    def _note_target(self, event: HistoryEntry) -> None:
        """Note that a target assignment was computed."""
        self._last_target_ms = event.at_ms
        if self._segment is not None:
            self._segment.has_target = True
        if event.group_type == SHARE:
            self._topic_changes = []

    def _supersede(self, event: HistoryEntry, incarnation: str) -> Iterator[Rebalance]:
        """End the current rebalance because `event` begins the next one."""
        segment = self._segment
        if segment is None:
            return
        # `event` is the trigger's last entry so far, and not in the segment. The trigger's entries after its
        # last epoch, target, reconciliation or Stable led to `event`, so they move to the next rebalance.
        earlier = reversed(self._trigger_entries[:-1])
        moving = len(list(takewhile(lambda entry: entry.type not in _TARGET_TYPES, earlier)))
        if moving:
            del segment.entries[-moving:]
        self._trigger_entries = self._trigger_entries[-moving - 1 :]
        yield self._end(incarnation, RebalanceOutcome.SUPERSEDED, event.at_ms, self._holdings_before_trigger)

    def _end_with_trigger(self, incarnation: str) -> Iterator[Rebalance]:
        """End a rebalance that began and ended with the same trigger, as in a group with one member.

        The group was Stable before and after it, so there is no Stable entry (GS4). Observed groups (OB26)
        and share groups (SP25) have one.
        """
        last = None if self._segment is None else self._segment.entries[-1]
        if last is None or last.observed or self._is_removal_incomplete(last):
            return
        if last.group_type == SHARE:
            if last.to_state == ConsumerGroupState.EMPTY:  # without members: an administrator altered offsets
                yield self._end(incarnation, RebalanceOutcome.EMPTY, last.at_ms)
            return
        if last.to_state == ConsumerGroupState.STABLE:
            yield self._end(incarnation, RebalanceOutcome.STABLE, last.at_ms)

    def _is_removal_incomplete(self, last: HistoryEntry) -> bool:
        """Return True if a member was removed, and the next entry of the trigger is not read yet."""
        if last.group_type == SHARE:
            return any(event.type is EntryType.MEMBER_REMOVED for event in self._trigger_entries)
        return bool(self._trigger_entries) and last.type is EntryType.MEMBER_REMOVED

    def _history_begins_midway(self, event: HistoryEntry) -> bool:
        """Return True if `event` is the first entry of the history, and is in the middle of a rebalance."""
        return (
            not self.tracker.is_complete
            and len(self._trigger_entries) == 1
            and event.from_state in _NOT_SETTLED
        )

    def _begin(self, entries: list[HistoryEntry], opening: HistoryEntry | None) -> None:
        before = None if opening is None else self._holdings_before_trigger
        self._segment = _Segment(entries, opening, before, self._topic_changes, self._last_target_ms)
        self._topic_changes = []
        self.tracker.begin()

    def lose_track(self, incarnation: str) -> Iterator[Rebalance]:
        """End the current rebalance and forget the assignment, because entries are missing."""
        yield from self._end_with_trigger(incarnation)
        if self._segment is not None:
            yield self._end(incarnation, RebalanceOutcome.UNKNOWN, None)
        self.tracker.lose_track()
        self._trigger_entries, self._topic_changes, self._last_target_ms = [], [], None

    def finish(self, incarnation: str, outcome: RebalanceOutcome) -> Iterator[Rebalance]:
        """End the phase. A rebalance that has not ended gets `outcome`."""
        yield from self._end_with_trigger(incarnation)
        if self._segment is not None:
            ended_ms = self._segment.entries[-1].at_ms if outcome is RebalanceOutcome.CONVERTED else None
            yield self._end(incarnation, outcome, ended_ms)

    def _end(
        self,
        incarnation: str,
        outcome: RebalanceOutcome,
        ended_ms: int | None,
        after: Holdings | None = None,
    ) -> Rebalance:
        """End and return the current rebalance. If it is superseded, `after` is the assignment at its end."""
        segment, self._segment = self._segment, None
        assert segment is not None
        if outcome is not RebalanceOutcome.SUPERSEDED and self.tracker.is_complete:
            after = self.tracker.assigned
        return _build_rebalance(segment, self.tracker, incarnation, outcome, ended_ms, after)


def _build_rebalance(
    segment: _Segment,
    tracker: ReconciliationTracker,
    incarnation: str,
    outcome: RebalanceOutcome,
    ended_ms: int | None,
    after: Holdings | None,
) -> Rebalance:
    """Build the rebalance of a segment. `after` is the assignment at its end, or None if unknown."""
    first, last, opening = segment.entries[0], segment.entries[-1], segment.opening
    began_ms = (opening or first).at_ms
    epochs = _epoch_changes(segment, began_ms)
    progress = tracker.progress(began_ms)
    settled = [p for p in progress if p.settled_after_ms is not None]
    has_ended = ended_ms is not None
    is_streams, before = last.group_type == STREAMS, segment.before
    has_assignments = has_ended and before is not None and after is not None
    return Rebalance(
        number=0,  # set by `rebalances_of`
        incarnation=incarnation,
        began_ms=began_ms,
        ended_ms=ended_ms,
        outcome=outcome,
        cause=epochs[0].cause if opening is not None else UNKNOWN_CAUSE,
        from_state=first.from_state,
        generation_from=first.generation if opening is None else opening.generation - 1,
        generation_to=last.generation,
        preparing_ms=None,
        completing_ms=None,
        duration_ms=ended_ms - began_ms if ended_ms is not None and opening is not None else None,
        beginning_lost=opening is None,
        deadline_ms=None,
        extensions=0,
        waited_for=[],
        last=max(settled, key=lambda p: p.settled_after_ms or 0).member_id if settled else None,
        joined=joined_in(segment.entries, began_ms),
        removed=removed_in(segment.entries, began_ms),
        members=last.members or sorted(tracker.assigned),
        unsynced=[],
        leader_id=None,
        protocol_name=next((e.assignor_name for e in reversed(epochs) if e.assignor_name), None),
        moves=_moves(before, after, last.group_type) if has_ended else None,
        idle=tracker.idle() if has_ended and segment.before is not None else None,
        assignment_bytes=None,
        converted=conversion(segment.entries),
        has_tasks=is_streams,
        tasks=(
            task_moves(before or {}, after or {}, tracker.processes, states_in(segment.entries))
            if is_streams and has_assignments
            else None
        ),
        not_created=failures_in(segment.entries, began_ms),
        is_shared=last.group_type == SHARE,
        epochs=epochs,
        progress=progress,
        observed=first.observed,
    )


def _epoch_changes(segment: _Segment, began_ms: int) -> list[EpochChange]:
    """Return the changes of the group epoch. Each gets the first target assignment after it."""
    changes: list[EpochChange] = []
    for index, event in enumerate(segment.entries):
        if event.type is EntryType.GROUP_EPOCH_BUMPED:
            changes.append(
                EpochChange(
                    epoch=event.generation,
                    after_ms=event.at_ms - began_ms,
                    cause=cause_of_epoch(event, segment.entries[:index], segment.topic_changes),
                    target_after_ms=None,
                    assignor_name=None,
                    changed_targets=None,
                    last_target_before_ms=(
                        None
                        if event.group_type != SHARE or segment.last_target_ms is None
                        else event.at_ms - segment.last_target_ms
                    ),
                )
            )
        if event.type is EntryType.TARGET_ASSIGNMENT_COMPUTED:
            changes = [
                replace(
                    change,
                    target_after_ms=event.at_ms - began_ms,
                    assignor_name=event.assignor_name,
                    changed_targets=None if event.targets is None else len(event.targets),
                    missing_standbys=tasks_of(event.partitions),
                )
                if change.target_after_ms is None
                else change
                for change in changes
            ]
    return changes


def _moves(before: Holdings | None, after: Holdings | None, group_type: str) -> Moves | None:
    """Compare two assignments of a group of this type, or return None if one is unknown."""
    if before is None or after is None:
        return None
    if group_type == SHARE:
        return compare_shared(before, after)
    if group_type == STREAMS:
        return compare_tasks(before, after)
    # Without the members' subscriptions, which the history lacks, the minimum of moves is unknown.
    return replace(compare(before, after), needless=None)
