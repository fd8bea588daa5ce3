"""The rebalances of a consumer, share or streams group: the changes of the group epoch until every member has
its target assignment.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from kafka_why.contract.kafka.history import SHARE, STREAMS, ConsumerGroupState, EntryType, HistoryEntry
from kafka_why.why.causes import UNKNOWN_CAUSE, cause_of_epoch, conversion
from kafka_why.why.model import EpochChange, Moves, Rebalance, RebalanceOutcome
from kafka_why.why.moves import Holdings, KnownState, compare, compare_shared
from kafka_why.why.reconciling import ReconciliationTracker, compare_tasks, task_moves, tasks_of
from kafka_why.why.segments import IncarnationHistory, TopicNames, joined_in, removed_in

_NOT_SETTLED = (ConsumerGroupState.ASSIGNING, ConsumerGroupState.RECONCILING)
_ENDS = {
    EntryType.STABLE: RebalanceOutcome.STABLE,
    EntryType.EMPTY: RebalanceOutcome.EMPTY,
    EntryType.GROUP_DELETED: RebalanceOutcome.UNKNOWN,
}
_NEWS = (EntryType.TOPICS_CHANGED, EntryType.SHARE_PARTITIONS_INITIALIZED)
_TARGET_TYPES = (
    EntryType.GROUP_EPOCH_BUMPED,
    EntryType.TARGET_ASSIGNMENT_COMPUTED,
    EntryType.MEMBER_RECONCILED,
    EntryType.STABLE,
)


@dataclass(slots=True)
class _Segment:
    """The entries of one rebalance, and of the whole request or deadline that began it."""

    entries: list[HistoryEntry]
    opening: HistoryEntry | None  # that began the rebalance; None if it is not in the history
    before: Holdings | None  # assignment before the rebalance; None if unknown
    # Earlier entries that can be the reason of a new epoch: changed topics, or initialized partitions.
    news: list[HistoryEntry] = field(default_factory=list)
    last_target_ms: int | None = None  # time of the previous target assignment; None if unknown
    has_target: bool = False


def rebalances_by_epochs(
    phase: IncarnationHistory[HistoryEntry], known: KnownState, *, is_converted: bool, is_last: bool
) -> Iterator[Rebalance]:
    """Yield the rebalances of a phase with epochs. `known` is the state before the phase, and is updated.

    `is_converted` is True if the group became a classic group after the phase. A rebalance can be under way
    only if `is_last`.
    """
    splitter = _RebalanceSplitter(ReconciliationTracker(known.holdings))
    end = (
        RebalanceOutcome.CONVERTED
        if is_converted
        else RebalanceOutcome.UNDER_WAY
        if is_last
        else RebalanceOutcome.UNKNOWN
    )
    expected, topic_names = phase.begins_after + 1, TopicNames()
    for event in map(topic_names.replace_ids, phase.entries):
        if event.seq != expected and not phase.unread.issuperset(range(expected, event.seq)):
            yield from splitter.lose_track(phase.incarnation)
        expected = event.seq + 1
        yield from splitter.add(event, phase.incarnation)
    yield from splitter.finish(phase.incarnation, end)
    tracker = splitter.tracker
    known.holdings = tracker.assigned if tracker.is_complete else None
    known.released = {}


class _RebalanceSplitter:
    def __init__(self, tracker: ReconciliationTracker) -> None:
        self.tracker = tracker
        self._segment: _Segment | None = None
        self._lead: list[HistoryEntry] = []  # the entries of the last request or deadline
        self._news: list[HistoryEntry] = []
        self._before_lead: Holdings | None = None
        self._last_target_ms: int | None = None

    def add(self, event: HistoryEntry, incarnation: str) -> Iterator[Rebalance]:
        """Add the next entry. Yield the rebalances that end before it or with it."""
        if self._lead and self._lead[-1].cause != event.cause:
            self._lead = []
            yield from self._end_with_request(incarnation)
        if self._can_begin(event) and not self._lead:
            self._before_lead = dict(self.tracker.assigned) if self.tracker.is_complete else None
        self._lead.append(event)
        if event.type in _NEWS:
            self._news.append(event)
        if event.type is EntryType.GROUP_EPOCH_BUMPED and self._can_begin(event):
            yield from self._supersede(event, incarnation)
            self._begin(event, list(self._lead), event)
        elif self._segment is not None:
            self._segment.entries.append(event)
        elif self._is_in_the_middle(event):
            self._begin(event, [event], None)
        if event.type is EntryType.TARGET_ASSIGNMENT_COMPUTED:
            self._note_target(event)
        self.tracker.apply(event)
        if self._segment is not None and event.type in _ENDS:
            yield self._end(incarnation, _ENDS[event.type], event.at_ms)

    def _can_begin(self, event: HistoryEntry) -> bool:
        """Return True if a new epoch begins a rebalance."""
        # In a share group, the first epoch after each target assignment does.
        return self._segment is None or (event.group_type == SHARE and self._segment.has_target)

    def _note_target(self, event: HistoryEntry) -> None:
        self._last_target_ms = event.at_ms
        if self._segment is not None:
            self._segment.has_target = True
        if event.group_type == SHARE:
            self._news = []

    def _supersede(self, event: HistoryEntry, incarnation: str) -> Iterator[Rebalance]:
        """End the current rebalance because `event` begins the next one."""
        segment = self._segment
        if segment is None:
            return
        # Entries of the same request or deadline move to the next rebalance.
        number = 0
        for earlier in reversed(self._lead[:-1]):
            if earlier.type in _TARGET_TYPES:
                break
            number += 1
        if number:
            del segment.entries[-number:]
        self._lead = self._lead[-number - 1 :]
        yield self._end(incarnation, RebalanceOutcome.SUPERSEDED, event.at_ms, self._before_lead)

    def _end_with_request(self, incarnation: str) -> Iterator[Rebalance]:
        """End a rebalance that began and ended with the same request, as in a group with one member.

        The group was Stable before and after the request, so there is no Stable entry (GS4). Observed groups
        (OB26) and share groups (SP25) have one.
        """
        last = None if self._segment is None else self._segment.entries[-1]
        if last is None or last.observed or self._is_removal_incomplete(last):
            return
        if last.group_type == SHARE:
            if last.to_state == ConsumerGroupState.EMPTY:  # an administrator altered offsets
                yield self._end(incarnation, RebalanceOutcome.EMPTY, last.at_ms)
            return
        if last.to_state == ConsumerGroupState.STABLE:
            yield self._end(incarnation, RebalanceOutcome.STABLE, last.at_ms)

    def _is_removal_incomplete(self, last: HistoryEntry) -> bool:
        """Return True if a member was removed, and the next entry of the request is not read yet."""
        if last.group_type == SHARE:
            return any(event.type is EntryType.MEMBER_REMOVED for event in self._lead)
        return bool(self._lead) and last.type is EntryType.MEMBER_REMOVED

    def _is_in_the_middle(self, event: HistoryEntry) -> bool:
        # The history begins with this entry.
        return not self.tracker.is_complete and len(self._lead) == 1 and event.from_state in _NOT_SETTLED

    def _begin(self, event: HistoryEntry, entries: list[HistoryEntry], opening: HistoryEntry | None) -> None:
        self._segment = _Segment(entries, opening, self._before_lead if opening is not None else None)
        self._segment.news, self._news = self._news, []
        self._segment.last_target_ms = self._last_target_ms
        self.tracker.begin()

    def lose_track(self, incarnation: str) -> Iterator[Rebalance]:
        """End the current rebalance and forget the assignment, because entries are missing."""
        yield from self._end_with_request(incarnation)
        if self._segment is not None:
            yield self._end(incarnation, RebalanceOutcome.UNKNOWN, None)
        self.tracker.lose_track()
        self._lead, self._news, self._last_target_ms = [], [], None

    def finish(self, incarnation: str, outcome: RebalanceOutcome) -> Iterator[Rebalance]:
        """End the phase. A rebalance that has not ended gets `outcome`."""
        yield from self._end_with_request(incarnation)
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
        """Return the current rebalance, which ends. A superseded one ends with the assignment `after`."""
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
    first, last, opening = segment.entries[0], segment.entries[-1], segment.opening
    began_ms = (opening or first).at_ms
    epochs = _epochs(segment, began_ms)
    progress = tracker.progress(began_ms)
    settled = [p for p in progress if p.settled_after_ms is not None]
    ended = ended_ms is not None
    is_streams, before = last.group_type == STREAMS, segment.before
    is_known = ended and before is not None and after is not None
    return Rebalance(
        number=0,
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
        moves=_moves(before, after, last.group_type) if ended else None,
        idle=tracker.idle() if ended and segment.before is not None else None,
        assignment_bytes=None,
        converted=conversion(segment.entries),
        has_tasks=is_streams,
        tasks=task_moves(before or {}, after or {}, tracker.processes) if is_streams and is_known else None,
        is_shared=last.group_type == SHARE,
        epochs=epochs,
        progress=progress,
        observed=first.observed,
    )


def _epochs(segment: _Segment, began_ms: int) -> list[EpochChange]:
    found: list[EpochChange] = []
    for place, event in enumerate(segment.entries):
        if event.type is EntryType.GROUP_EPOCH_BUMPED:
            found.append(
                EpochChange(
                    epoch=event.generation,
                    after_ms=event.at_ms - began_ms,
                    cause=cause_of_epoch(event, segment.entries[:place], segment.news),
                    target_after_ms=None,
                    assignor_name=None,
                    changed_targets=None,
                    last_target_before_ms=_since_last_target(segment, place),
                )
            )
        if event.type is EntryType.TARGET_ASSIGNMENT_COMPUTED:
            found = [
                replace(
                    change,
                    target_after_ms=event.at_ms - began_ms,
                    assignor_name=event.assignor_name,
                    changed_targets=None if event.targets is None else len(event.targets),
                    missing_standbys=tasks_of(event.partitions),
                )
                if change.target_after_ms is None
                else change
                for change in found
            ]
    return found


def _since_last_target(segment: _Segment, place: int) -> int | None:
    """Return the time from the last target to a new epoch of a share group, or None if unknown."""
    bump = segment.entries[place]
    if bump.group_type != SHARE or segment.last_target_ms is None:
        return None
    return bump.at_ms - segment.last_target_ms


def _moves(before: Holdings | None, after: Holdings | None, group_type: str) -> Moves | None:
    if before is None or after is None:
        return None
    if group_type == SHARE:
        return compare_shared(before, after)
    if group_type == STREAMS:
        return compare_tasks(before, after)
    return replace(compare(before, after), needless=None)
