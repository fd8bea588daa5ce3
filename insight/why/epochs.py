"""The rebalances of a consumer, share or streams group: the changes of the group epoch until every member has
its target assignment.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from assignors.kafka.api import MemberId
from insight.why.assignments import Holdings
from insight.why.causes import LOST, conversion
from insight.why.incarnations import IncarnationHistory
from insight.why.known_state import KnownState
from insight.why.model import (
    Cause,
    CauseKind,
    EpochChange,
    Joined,
    Moves,
    Rebalance,
    RebalanceOutcome,
    Removed,
)
from insight.why.moves import compare, moved_shared
from insight.why.reconciling import Reconciling
from insight.why.topic_names import TopicNames
from state.kafka.consumer_group import ConsumerGroupState
from state.kafka.history import EntryType, HistoryEntry

_JOINS = (EntryType.MEMBER_ADDED, EntryType.MEMBER_REPLACED, EntryType.MEMBER_REJOINED)
_NOT_SETTLED = (ConsumerGroupState.ASSIGNING, ConsumerGroupState.RECONCILING)
_ENDS = {
    EntryType.STABLE: RebalanceOutcome.STABLE,
    EntryType.EMPTY: RebalanceOutcome.EMPTY,
    EntryType.GROUP_DELETED: RebalanceOutcome.UNKNOWN,
}
_REMOVED_BY_RULE = {
    "TM1": CauseKind.SESSION_TIMEOUT,
    "TM2": CauseKind.SESSION_TIMEOUT,
    "TM3": CauseKind.REBALANCE_TIMEOUT,
    "TM4": CauseKind.JOIN_TIMEOUT,
    "TM5": CauseKind.SYNC_TIMEOUT,
    "OB22": CauseKind.MEMBER_GONE,
}
_BY_TYPE = {
    EntryType.MEMBER_ADDED: CauseKind.MEMBER_JOINED,
    EntryType.MEMBER_REMOVED: CauseKind.MEMBER_LEFT,
    EntryType.MEMBER_REPLACED: CauseKind.STATIC_MEMBER_RETURNED,
}
_TOPICS_CHANGED_RULES = ("HB53", "OB27", "OB51")
_BY_RULE = {"OB43": CauseKind.PARTITIONS_INITIALIZED, "OB52": CauseKind.SETTINGS_CHANGED}
_SHARE, _STREAMS = "share", "streams"


@dataclass(slots=True)
class _Segment:
    """Entries of one rebalance, with those of the request or deadline that began it. `opening` is None if the
    beginning is not in the history. `before` is the assignment before, None if it is not known.
    """

    entries: list[HistoryEntry]
    opening: HistoryEntry | None
    before: Holdings | None
    topics_changed: list[HistoryEntry] = field(default_factory=list)


def rebalances_by_epochs(
    phase: IncarnationHistory[HistoryEntry], known: KnownState, *, is_converted: bool, is_last: bool
) -> Iterator[Rebalance]:
    """Yield the rebalances of a phase that goes by epochs. `known` is taken over and handed on.
    `is_converted`: the group became a classic group after it. `is_last`: only then a rebalance is under way.
    """
    cutter = _Cutter(Reconciling(known.holdings))
    end = (
        RebalanceOutcome.CONVERTED
        if is_converted
        else RebalanceOutcome.UNDER_WAY
        if is_last
        else RebalanceOutcome.UNKNOWN
    )
    expected, topic_names = phase.begins_after + 1, TopicNames()
    for event in map(topic_names.put_in, phase.entries):
        if event.seq != expected and not phase.unread.issuperset(range(expected, event.seq)):
            yield from cutter.lose_track(phase.incarnation)
        expected = event.seq + 1
        yield from cutter.cut(event, phase.incarnation)
    yield from cutter.finish(phase.incarnation, end)
    followed = cutter.following
    known.holdings = followed.assigned if followed.is_complete else None
    known.released = {}


class _Cutter:
    """Cuts a phase where rebalances begin and end."""

    def __init__(self, following: Reconciling) -> None:
        self.following = following
        self._segment: _Segment | None = None
        self._lead: list[HistoryEntry] = []  # the entries of the last request or deadline
        self._topics_changed: list[HistoryEntry] = []
        self._calm: Holdings | None = None

    def cut(self, event: HistoryEntry, incarnation: str) -> Iterator[Rebalance]:
        if self._lead and self._lead[-1].cause != event.cause:
            self._lead = []
            yield from self._end_at_once(incarnation)
        if self._segment is None and not self._lead:
            self._calm = dict(self.following.assigned) if self.following.is_complete else None
        self._lead.append(event)
        if event.type is EntryType.TOPICS_CHANGED:
            self._topics_changed.append(event)
        if self._segment is not None:
            self._segment.entries.append(event)
        elif event.type is EntryType.GROUP_EPOCH_BUMPED:
            self._begin(event, list(self._lead), event)
        elif self._is_in_the_middle(event):
            self._begin(event, [event], None)
        self.following.apply(event)
        if self._segment is not None and event.type in _ENDS:
            yield self._end(incarnation, _ENDS[event.type], event.at_ms)

    def _end_at_once(self, incarnation: str) -> Iterator[Rebalance]:
        """End a rebalance that was over with the request that began it, as in a group with one member. The
        group was Stable before and after it, so it has no entry Stable (GS4). An observed one has (OB26).
        """
        last = None if self._segment is None else self._segment.entries[-1]
        if last is not None and last.to_state == ConsumerGroupState.STABLE and not last.observed:
            yield self._end(incarnation, RebalanceOutcome.STABLE, last.at_ms)

    def _is_in_the_middle(self, event: HistoryEntry) -> bool:
        """Whether the known history begins with this entry, in the middle of a rebalance."""
        return not self.following.is_complete and len(self._lead) == 1 and event.from_state in _NOT_SETTLED

    def _begin(self, event: HistoryEntry, entries: list[HistoryEntry], opening: HistoryEntry | None) -> None:
        self._segment = _Segment(entries, opening, self._calm if opening is not None else None)
        self._segment.topics_changed, self._topics_changed = self._topics_changed, []
        self.following.begin()

    def lose_track(self, incarnation: str) -> Iterator[Rebalance]:
        """Entries are missing."""
        yield from self._end_at_once(incarnation)
        if self._segment is not None:
            yield self._end(incarnation, RebalanceOutcome.UNKNOWN, None)
        self.following.lose_track()
        self._lead, self._topics_changed = [], []

    def finish(self, incarnation: str, outcome: RebalanceOutcome) -> Iterator[Rebalance]:
        """The phase ends."""
        yield from self._end_at_once(incarnation)
        if self._segment is not None:
            ended_ms = self._segment.entries[-1].at_ms if outcome is RebalanceOutcome.CONVERTED else None
            yield self._end(incarnation, outcome, ended_ms)

    def _end(self, incarnation: str, outcome: RebalanceOutcome, ended_ms: int | None) -> Rebalance:
        segment, self._segment = self._segment, None
        assert segment is not None
        return _rebalance(segment, self.following, incarnation, outcome, ended_ms)


def _rebalance(
    segment: _Segment,
    following: Reconciling,
    incarnation: str,
    outcome: RebalanceOutcome,
    ended_ms: int | None,
) -> Rebalance:
    first, last, opening = segment.entries[0], segment.entries[-1], segment.opening
    began_ms = (opening or first).at_ms
    epochs = _epochs(segment, began_ms)
    progress = following.progress(began_ms)
    settled = [p for p in progress if p.settled_after_ms is not None]
    ended = ended_ms is not None
    return Rebalance(
        number=0,
        incarnation=incarnation,
        began_ms=began_ms,
        ended_ms=ended_ms,
        outcome=outcome,
        cause=epochs[0].cause if opening is not None else LOST,
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
        joined=_joined(segment.entries, began_ms),
        removed=_removed(segment.entries, began_ms),
        members=last.members or sorted(following.assigned),
        unsynced=[],
        leader_id=None,
        protocol_name=next((e.assignor_name for e in reversed(epochs) if e.assignor_name), None),
        moves=_moves(segment.before, following, last.group_type) if ended else None,
        idle=following.idle() if ended and segment.before is not None else None,
        assignment_bytes=None,
        converted=conversion(segment.entries),
        has_tasks=last.group_type == _STREAMS,
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
                    cause=_cause(event, segment, place),
                    target_after_ms=None,
                    assignor_name=None,
                    changed_targets=None,
                )
            )
        if event.type is EntryType.TARGET_ASSIGNMENT_COMPUTED:
            found = [
                replace(
                    change,
                    target_after_ms=event.at_ms - began_ms,
                    assignor_name=event.assignor_name,
                    changed_targets=None if event.targets is None else len(event.targets),
                )
                if change.target_after_ms is None
                else change
                for change in found
            ]
    return found


def _cause(bump: HistoryEntry, segment: _Segment, place: int) -> Cause:
    """Return the cause of a new epoch, from the entries of the same request or deadline before it."""
    led = [event for event in segment.entries[:place] if event.cause == bump.cause]
    about = [event for event in led if event.type in _BY_TYPE]
    first = about[0] if about else bump
    reason = bump.reason
    if bump.rule in _TOPICS_CHANGED_RULES:
        changed = [*segment.topics_changed, *segment.entries[:place]]
        sentences = [event.reason for event in changed if event.type is EntryType.TOPICS_CHANGED]
        reason = "; ".join(dict.fromkeys(sentences)) or reason
    return Cause(
        kind=_kind(bump, about, led),
        reason=reason,
        trigger=bump.cause,
        principal=bump.principal,
        member_ids=[event.member_id for event in about or [bump] if event.member_id],
        group_instance_id=first.group_instance_id,
        client_id=first.client_id,
        client_host=first.client_host,
        client_reason=first.client_reason,
    )


def _kind(bump: HistoryEntry, about: Sequence[HistoryEntry], led: Sequence[HistoryEntry]) -> CauseKind:
    if bump.rule in _TOPICS_CHANGED_RULES:
        return CauseKind.TOPICS_CHANGED
    if about:
        return _REMOVED_BY_RULE.get(about[0].rule, _BY_TYPE[about[0].type])
    if bump.rule in _BY_RULE:
        return _BY_RULE[bump.rule]
    if bump.member_id is not None:
        is_streams = bump.group_type == _STREAMS
        return CauseKind.MEMBER_CHANGED if is_streams else CauseKind.SUBSCRIPTION_CHANGED
    is_resolved = any(event.type is EntryType.REGEX_RESOLVED for event in led)
    return CauseKind.PATTERN_RESOLVED if is_resolved else CauseKind.UNKNOWN


def _first_of_each(
    entries: Sequence[HistoryEntry], types: Sequence[EntryType]
) -> list[tuple[MemberId, HistoryEntry]]:
    found: dict[MemberId, HistoryEntry] = {}
    for event in entries:
        if event.type in types and event.member_id is not None:
            found.setdefault(event.member_id, event)
    return list(found.items())


def _joined(entries: Sequence[HistoryEntry], began_ms: int) -> list[Joined]:
    return [Joined(m, max(0, event.at_ms - began_ms)) for m, event in _first_of_each(entries, _JOINS)]


def _removed(entries: Sequence[HistoryEntry], began_ms: int) -> list[Removed]:
    return [
        Removed(m, max(0, event.at_ms - began_ms), event.reason, event.client_reason)
        for m, event in _first_of_each(entries, (EntryType.MEMBER_REMOVED,))
    ]


def _moves(before: Holdings | None, following: Reconciling, group_type: str) -> Moves | None:
    if before is None or not following.is_complete:
        return None
    found = replace(compare(before, following.assigned), needless=None)
    if group_type == _SHARE:
        return replace(found, moved=moved_shared(before, following.assigned))
    return found
