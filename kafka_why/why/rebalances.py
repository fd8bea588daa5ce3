"""Derives a group's rebalances from its history: time, cause, duration, awaited members, moves.

A life of a group is one incarnation, from its creation to its deletion. A life is divided into phases: the
group has one type in each phase, and is converted between them. A phase is divided into segments, one for
each rebalance.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from kafka_why.contract.kafka.history import EntryType, GroupState, HistoryEntry
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.why.causes import UNKNOWN_CAUSE, cause_of, conversion
from kafka_why.why.epochs import rebalances_by_epochs
from kafka_why.why.model import Idle, Moves, Rebalance, RebalanceOutcome
from kafka_why.why.moves import AssignmentDecoder, Holdings, KnownState, compare, idle
from kafka_why.why.segments import (
    JOINS,
    REMOVALS,
    IncarnationHistory,
    Segment,
    first_of_each,
    generation_before,
    joined_in,
    phases,
    removed_in,
    segments,
)
from kafka_why.why.work import connect_work, streams_tasks

_EXTENSIONS = (EntryType.INITIAL_DELAY_EXTENDED, EntryType.REBALANCE_EXTENDED)


def rebalances_of(
    group_lives: Sequence[IncarnationHistory[HistoryEntry]], assignments: AssignmentDecoder
) -> list[Rebalance]:
    """Return the rebalances of a group's lives, numbered from 1. Only the last one can be under way."""
    rebalances: list[Rebalance] = []
    for life in group_lives:
        known = KnownState()
        life_phases = phases(life)
        for index, (has_epochs, phase) in enumerate(life_phases):
            # A rebalance without an end in its phase:
            if index < len(life_phases) - 1:  # the next phase begins with a conversion
                outcome_without_end = RebalanceOutcome.CONVERTED
            elif life is group_lives[-1]:
                outcome_without_end = RebalanceOutcome.UNDER_WAY
            else:
                outcome_without_end = RebalanceOutcome.UNKNOWN
            rebalances += (
                rebalances_by_epochs(phase, known, outcome_without_end)
                if has_epochs
                else _rebalances_by_generations(phase, known, outcome_without_end, assignments)
            )
    return [replace(rebalance, number=number) for number, rebalance in enumerate(rebalances, 1)]


def _rebalances_by_generations(
    phase: IncarnationHistory[HistoryEntry],
    known: KnownState,
    outcome_without_end: RebalanceOutcome,
    assignments: AssignmentDecoder,
) -> Iterator[Rebalance]:
    """Yield the rebalances of a phase in which the group is classic.

    `known` is the group's state before the phase, and is updated. A rebalance that has not ended in the phase
    gets `outcome_without_end`.
    """
    for segment in segments(phase):
        if segment.outcome is RebalanceOutcome.UNDER_WAY:
            is_converted = outcome_without_end is RebalanceOutcome.CONVERTED
            segment.end(outcome_without_end, phase.entries[-1].at_ms if is_converted else None)
        if segment.has_gap:
            known.lose_track()
        renamed = known.follow_static_members(segment.all_entries)
        if segment.outcome is None:  # the entries between two rebalances
            _apply_first_assignment(segment, known, assignments)
        else:
            yield _build_rebalance(phase.incarnation, segment, known, assignments, renamed)


def _apply_first_assignment(segment: Segment, known: KnownState, assignments: AssignmentDecoder) -> None:
    """Apply the assignment that an observed group had when its records were first read.

    Only an observed group has a `Stable` or `Empty` entry outside a rebalance.
    """
    for event in segment.entries:
        if event.observed and event.type in (EntryType.STABLE, EntryType.EMPTY):
            known.set_holdings({} if event.type is EntryType.EMPTY else assignments.holdings(event))


def _build_rebalance(
    incarnation: str,
    segment: Segment,
    known: KnownState,
    assignments: AssignmentDecoder,
    renamed: Mapping[MemberId, MemberId],
) -> Rebalance:
    """Build the rebalance of a segment, and update `known` to the group's state after it.

    `renamed` has the new member ids of static members that came back during the rebalance, by old id.
    """
    assert segment.outcome is not None
    opening, forming = segment.opening, segment.forming
    first, last = segment.entries[0], segment.entries[-1]
    # In an observed group, only the entry about the new generation has the awaited members.
    with_awaited = forming if first.observed else opening
    awaited = [] if with_awaited is None else with_awaited.waiting_for or []
    waited_for = [renamed.get(m, m) for m in awaited]
    preparing_ms, completing_ms, duration_ms = _durations(segment)
    protocol_name = _latest(segment, "protocol_name")
    stable = last if segment.outcome is RebalanceOutcome.STABLE else None
    moves, idle_partitions, assignment_bytes = _moves_and_idle(segment, known, assignments, protocol_name)
    connect = {} if stable is None else connect_work(stable.assignments, protocol_name)
    return Rebalance(
        number=0,  # set by `rebalances_of`
        incarnation=incarnation,
        began_ms=segment.began_ms,
        ended_ms=segment.ended_ms,
        outcome=segment.outcome,
        cause=UNKNOWN_CAUSE if opening is None else cause_of(opening, segment.trigger_entries),
        from_state=first.from_state,
        generation_from=_generation_from(first),
        generation_to=None if last.to_state == GroupState.PREPARING_REBALANCE else last.generation,
        preparing_ms=preparing_ms,
        completing_ms=completing_ms,
        duration_ms=duration_ms,
        beginning_lost=not segment.is_begin_known,
        deadline_ms=_latest(segment, "deadline_ms"),
        extensions=sum(event.type in _EXTENSIONS for event in segment.entries),
        waited_for=waited_for,
        # In an observed group, the order of several awaited members is unknown.
        last=None if first.observed and len(waited_for) > 1 else _last_awaited(segment, waited_for),
        joined=joined_in(segment.all_entries, segment.began_ms),
        removed=removed_in(segment.all_entries, segment.began_ms),
        members=(forming.members or []) if forming is not None else [],
        unsynced=(stable.waiting_for or []) if stable is not None else [],
        leader_id=_latest(segment, "leader_id"),
        protocol_name=protocol_name,
        moves=moves,
        idle=idle_partitions,
        assignment_bytes=None if connect else assignment_bytes,
        connect=connect,
        streams={} if stable is None else streams_tasks(stable.assignments, protocol_name),
        converted=conversion(segment.all_entries),
        observed=first.observed,
        began_within_ms=None if opening is None else opening.within_ms,
    )


def _durations(segment: Segment) -> tuple[int | None, int | None, int | None]:
    """Return `preparing_ms`, `completing_ms` and `duration_ms`, each None if unknown."""
    began_ms = segment.began_ms if segment.is_begin_known else None
    formed_ms = None if segment.forming is None else segment.forming.at_ms
    # A generation without members is complete at once.
    has_members = segment.forming is not None and segment.forming.type is EntryType.COMPLETING_REBALANCE
    completing_ms = _between(formed_ms, segment.ended_ms) if has_members else None
    return _between(began_ms, formed_ms), completing_ms, _between(began_ms, segment.ended_ms)


def _between(from_ms: int | None, to_ms: int | None) -> int | None:
    return None if from_ms is None or to_ms is None else to_ms - from_ms


def _generation_from(first: HistoryEntry) -> int:
    """Return the generation before the rebalance. `first` is its first entry in the history."""
    is_beginning_lost = first.type is not EntryType.PREPARING_REBALANCE
    # If the beginning is lost, `first` may be an entry after the rebalance formed its generation.
    was_formed = is_beginning_lost and first.from_state == GroupState.COMPLETING_REBALANCE
    return generation_before(first) - 1 if was_formed else generation_before(first)


def _latest(segment: Segment, field: str) -> Any:
    """Return the value of a field in the last entry of the segment that has one, or None."""
    values = (getattr(event, field) for event in reversed(segment.entries))
    return next((value for value in values if value is not None), None)


def _last_awaited(segment: Segment, waited_for: Sequence[MemberId]) -> MemberId | None:
    """Return the last of these members to join or to be removed, or None if none did or no generation was
    formed.
    """
    if segment.forming is None:
        return None
    entries, awaited = first_of_each(segment.all_entries, (*JOINS, *REMOVALS)), set(waited_for)
    at_ms = {member_id: entries[member_id].at_ms for member_id in entries if member_id in awaited}
    return max(at_ms, key=lambda member_id: at_ms[member_id], default=None)


def _moves_and_idle(
    segment: Segment, known: KnownState, assignments: AssignmentDecoder, protocol_name: str | None
) -> tuple[Moves | None, Idle | None, dict[str, int] | None]:
    """Return the rebalance's `moves`, `idle` and `assignment_bytes`, each None if unknown.

    Also update `known`, the group's state before the rebalance, to its state afterwards.
    """
    held, released, was_settled = known.holdings, known.released, known.settled
    known.settled = segment.outcome in (RebalanceOutcome.STABLE, RebalanceOutcome.EMPTY)
    idle_partitions = moves = assignment_bytes = None
    is_observed = segment.opening is not None and segment.opening.observed
    # An observed group's history does not show when its members stopped consuming.
    if held is not None and segment.ended_ms is not None and not is_observed:
        idle_partitions = idle(
            held,
            released,
            segment.all_entries,
            (segment.began_ms, segment.ended_ms),
            protocol_name=protocol_name,
            settled=was_settled,
        )
    if known.settled:
        assigned, assignment_bytes = _new_assignment(segment, assignments)
        if held is not None and assigned is not None:
            moves = compare(held, assigned, released, _latest(segment, "subscriptions"))
        known.set_holdings(assigned)
    return moves, idle_partitions, assignment_bytes


def _new_assignment(
    segment: Segment, assignments: AssignmentDecoder
) -> tuple[Holdings | None, dict[str, int] | None]:
    """Return the new assignment or, if it cannot be decoded, the size of each member's part in bytes.

    The other of the two is None. Both are None if the history lacks the assignment.
    """
    if segment.outcome is RebalanceOutcome.EMPTY:
        return {}, None
    stable = segment.entries[-1]
    holdings = assignments.holdings(stable)
    if holdings is not None or stable.assignments is None:
        return holdings, None
    return None, {m: len(data) for m, data in stable.assignments.items()}
