"""Derives timelines from a history: one of the group's states, and one for each member."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from kafka_why.contract.kafka.history import BY_EPOCHS, DEAD, EntryType, GroupState, HistoryEntry
from kafka_why.contract.kafka.history import MemberState as KafkaMemberState
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.why.moves import AssignmentDecoder, Numbers
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

    what: str
    from_ms: int
    to_ms: int | None = None  # None while the state lasts
    partitions: int | None = None  # None if unknown


@dataclass(slots=True)
class StateTimeline:
    """The spans of one member. A static member keeps its timeline when its member id changes."""

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
    timeline = StateTimeline("")
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
    found: list[StateTimeline] = []
    for life in group_lives:
        members = _Members(assignments)
        for event in life.entries:
            members.apply(event)
        if life.entries[-1].to_state == DEAD:
            members.end_all(life.entries[-1].at_ms)
        found += members.timelines
    return [timeline for timeline in found if timeline.spans]


class _Members:
    """The members of one incarnation of the group, and their timelines."""

    def __init__(self, assignments: AssignmentDecoder) -> None:
        self.timelines: list[StateTimeline] = []
        self._assignments = assignments
        self._present: dict[MemberId, StateTimeline] = {}
        self._instances: dict[str, MemberId] = {}
        self._joined_by: dict[MemberId, str] = {}  # the request with which the member last joined

    def apply(self, event: HistoryEntry) -> None:
        at_ms, member_id = event.at_ms, event.member_id
        if event.group_type in BY_EPOCHS or event.type is EntryType.GROUP_CONVERTED:
            self._apply_with_epochs(event)
        else:
            self._apply_classic(event)
        match event.type:
            case EntryType.MEMBER_REMOVED if member_id is not None:
                self._timeline(member_id).become(None, at_ms)
                del self._present[member_id]
            case EntryType.MEMBER_REPLACED if member_id is not None:
                self._replace(member_id, event)
            case EntryType.EMPTY:
                self.end_all(at_ms)
        if event.group_instance_id is not None and member_id is not None:
            self._instances[event.group_instance_id] = member_id

    def _apply_classic(self, event: HistoryEntry) -> None:
        at_ms, member_id = event.at_ms, event.member_id
        match event.type:
            case EntryType.MEMBER_ADDED | EntryType.MEMBER_REJOINED if member_id is not None:
                self._timeline(member_id).become(MemberState.JOINED, at_ms)
                self._joined_by[member_id] = event.cause
            case EntryType.PREPARING_REBALANCE:
                for present, timeline in self._present.items():
                    joined = self._joined_by.get(present) == event.cause
                    timeline.become(MemberState.JOINED if joined else MemberState.AWAITED, at_ms)
            case EntryType.COMPLETING_REBALANCE:
                self._set_members(event.members or list(self._present), at_ms)
            case EntryType.STABLE if event.assignments is not None:
                self._set_holders(event.assignments, self._assignments.numbers(event), at_ms)

    def _apply_with_epochs(self, event: HistoryEntry) -> None:
        at_ms, member_id = event.at_ms, event.member_id
        match event.type:
            case EntryType.MEMBER_ADDED if member_id is not None:
                self._timeline(member_id).become(MemberState.HOLDS, at_ms, 0)
            case EntryType.MEMBER_RECONCILED if member_id is not None and event.member_state is not None:
                what = _BY_KAFKA_STATE[KafkaMemberState(event.member_state)]
                self._timeline(member_id).become(what, at_ms, _partition_count(event.assigned))
            case EntryType.MEMBER_LEFT_TEMPORARILY if member_id is not None:
                timeline = self._timeline(member_id)
                timeline.become(MemberState.AWAY, at_ms, timeline.partitions)
            case EntryType.GROUP_CONVERTED if event.targets is not None:
                for present, target in event.targets.items():
                    self._timeline(present).become(MemberState.HOLDS, at_ms, _partition_count(target))

    def end_all(self, at_ms: int) -> None:
        self._set_members((), at_ms)

    def _timeline(self, member_id: MemberId) -> StateTimeline:
        if member_id not in self._present:
            self._present[member_id] = StateTimeline(member_id)
            self.timelines.append(self._present[member_id])
        return self._present[member_id]

    def _replace(self, member_id: MemberId, event: HistoryEntry) -> None:
        """Give a static member its new id. In a Stable group it keeps its assignment."""
        old = event.replaced_member_id or self._instances.get(event.group_instance_id or "")
        if old in self._present:
            self._present[member_id] = self._present.pop(old)
            self._present[member_id].member_id = member_id
        timeline = self._timeline(member_id)
        if event.group_type in BY_EPOCHS:
            timeline.become(MemberState.HOLDS, event.at_ms, timeline.partitions)
        elif event.to_state != GroupState.STABLE:
            timeline.become(MemberState.JOINED, event.at_ms)
        elif not timeline.is_open:
            timeline.become(MemberState.HOLDS, event.at_ms)
        self._joined_by[member_id] = event.cause

    def _set_members(self, members: Sequence[MemberId], at_ms: int) -> None:
        for gone in self._present.keys() - set(members):
            self._present.pop(gone).become(None, at_ms)
        for member_id in members:
            self._timeline(member_id).become(MemberState.ASSIGNING, at_ms)

    def _set_holders(self, member_ids: Iterable[MemberId], numbers: Numbers | None, at_ms: int) -> None:
        for member_id in member_ids:
            self._timeline(member_id).become(
                MemberState.HOLDS, at_ms, None if numbers is None else numbers[member_id]
            )


def _partition_count(partitions: Mapping[str, Sequence[int]] | None) -> int:
    return sum(map(len, (partitions or {}).values()))
