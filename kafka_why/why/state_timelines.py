"""Derives timelines from a history: one of the group's states, and one for each member."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from kafka_why.contract.kafka.history import BY_EPOCHS, DEAD, EntryType, GroupState, HistoryEntry
from kafka_why.contract.kafka.history import MemberState as KafkaMemberState
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.why.moves import AssignmentDecoder
from kafka_why.why.reconciling import partition_count
from kafka_why.why.segments import IncarnationHistory


class MemberState(StrEnum):
    """A member's state as the coordinator knows it."""

    AWAITED = "has to join again"
    JOINED = "joined, waits for the others"
    ASSIGNING = "waits for its assignment"
    HOLDS = "holds partitions"
    # Only in groups with epochs, whose members keep partitions during a rebalance:
    REVOKING = "has to give up partitions"
    WAITING = "waits for partitions of others"
    AWAY = "left for a while"


_BY_KAFKA_STATE = {
    KafkaMemberState.STABLE: MemberState.HOLDS,
    KafkaMemberState.UNREVOKED_PARTITIONS: MemberState.REVOKING,
    KafkaMemberState.UNRELEASED_PARTITIONS: MemberState.WAITING,
}


class Span(Struct, frozen=True, gc=False):
    """A state from one time to another."""

    what: str  # the group's state, or a `MemberState`
    from_ms: int
    to_ms: int | None = None  # None while the state lasts
    partitions: int | None = None  # number of the member's partitions; None if unknown


@dataclass(slots=True)
class StateTimeline:
    """The spans of one member, or of the group. A static member keeps its timeline with a new member id."""

    member_id: MemberId
    spans: list[Span] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """True if the member is in the group at the end of the history."""
        return bool(self.spans) and self.spans[-1].to_ms is None

    @property
    def partitions(self) -> int | None:
        """The number of the member's partitions, or None if unknown."""
        return self.spans[-1].partitions if self.spans else None

    def become(self, what: str | None, at_ms: int, partitions: int | None = None) -> None:
        """End the current state at `at_ms`, and start the state `what`, unless it is None (the member left).

        A state of zero length leaves no span.
        """
        spans = self.spans
        if spans and (last := spans[-1]).to_ms is None:
            if last.from_ms < at_ms:
                spans[-1] = Span(last.what, last.from_ms, at_ms, last.partitions)
            else:
                spans.pop()
        if what is not None:
            spans.append(Span(what, at_ms, None, partitions))


def state_spans(group_lives: Iterable[IncarnationHistory[HistoryEntry]]) -> list[Span]:
    """Return the group's states over time. While the group does not exist, there is no span."""
    timeline = StateTimeline(member_id="")  # of the group
    for life in group_lives:
        first = life.entries[0]
        timeline.become(first.from_state, first.at_ms)
        for event in life.entries:
            if event.to_state != timeline.spans[-1].what:
                timeline.become(None if event.to_state == DEAD else event.to_state, event.at_ms)
            if event.to_state == DEAD:
                break
    return timeline.spans


def member_timelines(
    group_lives: Iterable[IncarnationHistory[HistoryEntry]], assignments: AssignmentDecoder
) -> list[StateTimeline]:
    """Return the timelines of all members, in the order of their first joins."""
    timelines: list[StateTimeline] = []
    for life in group_lives:
        members = _Members(assignments)
        for event in life.entries:
            members.apply(event)
        if life.entries[-1].to_state == DEAD:
            members.end_all(life.entries[-1].at_ms)
        timelines += members.timelines
    return [timeline for timeline in timelines if timeline.spans]


class _Members:
    """The members of one incarnation of the group, and their timelines, updated entry by entry."""

    def __init__(self, assignments: AssignmentDecoder) -> None:
        self.timelines: list[StateTimeline] = []  # also of former members
        self._assignments = assignments
        self._present: dict[MemberId, StateTimeline] = {}
        self._member_by_instance: dict[str, MemberId] = {}
        self._last_join: dict[MemberId, str] = {}  # id of the request with which the member last joined

    def apply(self, event: HistoryEntry) -> None:
        at_ms, member_id = event.at_ms, event.member_id
        if event.group_type in BY_EPOCHS or event.type is EntryType.GROUP_CONVERTED:
            self._apply_with_epochs(event)
        else:
            self._apply_classic(event)
        match event.type:
            case EntryType.MEMBER_REMOVED if member_id is not None:
                self._timeline_of(member_id).become(None, at_ms)
                del self._present[member_id]
            case EntryType.MEMBER_REPLACED if member_id is not None:
                self._replace(member_id, event)
            case EntryType.EMPTY:
                self.end_all(at_ms)
        if event.group_instance_id is not None and member_id is not None:
            self._member_by_instance[event.group_instance_id] = member_id

    def _apply_classic(self, event: HistoryEntry) -> None:
        at_ms, member_id = event.at_ms, event.member_id
        match event.type:
            case EntryType.MEMBER_ADDED | EntryType.MEMBER_REJOINED if member_id is not None:
                self._timeline_of(member_id).become(MemberState.JOINED, at_ms)
                self._last_join[member_id] = event.cause
            case EntryType.PREPARING_REBALANCE:
                for present, timeline in self._present.items():
                    # The member whose request began the rebalance has joined already.
                    has_joined = self._last_join.get(present) == event.cause
                    timeline.become(MemberState.JOINED if has_joined else MemberState.AWAITED, at_ms)
            case EntryType.COMPLETING_REBALANCE:
                self._set_members(event.members or list(self._present), at_ms)
            case EntryType.STABLE if event.assignments is not None:
                numbers = self._assignments.numbers(event)
                for present in event.assignments:
                    number = None if numbers is None else numbers[present]
                    self._timeline_of(present).become(MemberState.HOLDS, at_ms, number)

    def _apply_with_epochs(self, event: HistoryEntry) -> None:
        at_ms, member_id = event.at_ms, event.member_id
        match event.type:
            case EntryType.MEMBER_ADDED if member_id is not None:
                self._timeline_of(member_id).become(MemberState.HOLDS, at_ms, 0)
            case EntryType.MEMBER_RECONCILED if member_id is not None and event.member_state is not None:
                what = _BY_KAFKA_STATE[KafkaMemberState(event.member_state)]
                self._timeline_of(member_id).become(what, at_ms, partition_count(event.assigned))
            case EntryType.MEMBER_LEFT_TEMPORARILY if member_id is not None:
                timeline = self._timeline_of(member_id)
                timeline.become(MemberState.AWAY, at_ms, timeline.partitions)
            case EntryType.GROUP_CONVERTED if event.targets is not None:
                for present, target in event.targets.items():
                    self._timeline_of(present).become(MemberState.HOLDS, at_ms, partition_count(target))

    def end_all(self, at_ms: int) -> None:
        """End the timelines of all members, because the group is empty or deleted."""
        self._set_members((), at_ms)

    def _timeline_of(self, member_id: MemberId) -> StateTimeline:
        """Return a member's timeline. A member without one joins the group."""
        if member_id not in self._present:
            self._present[member_id] = StateTimeline(member_id)
            self.timelines.append(self._present[member_id])
        return self._present[member_id]

    def _replace(self, member_id: MemberId, event: HistoryEntry) -> None:
        """Give a static member that came back its new id. In a Stable group it keeps its assignment."""
        old_id = event.replaced_member_id or self._member_by_instance.get(event.group_instance_id or "")
        if old_id in self._present:
            self._present[member_id] = self._present.pop(old_id)
            self._present[member_id].member_id = member_id
        timeline = self._timeline_of(member_id)
        if event.group_type in BY_EPOCHS:
            timeline.become(MemberState.HOLDS, event.at_ms, timeline.partitions)
        elif event.to_state != GroupState.STABLE:
            timeline.become(MemberState.JOINED, event.at_ms)
        elif not timeline.is_open:
            timeline.become(MemberState.HOLDS, event.at_ms)
        self._last_join[member_id] = event.cause

    def _set_members(self, members: Sequence[MemberId], at_ms: int) -> None:
        """End the timelines of all other members. These members now wait for their assignment."""
        for gone in self._present.keys() - set(members):
            self._present.pop(gone).become(None, at_ms)
        for member_id in members:
            self._timeline_of(member_id).become(MemberState.ASSIGNING, at_ms)
