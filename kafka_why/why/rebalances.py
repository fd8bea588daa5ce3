"""Derives a group's rebalances from its history: time, cause, duration, awaited members, moves."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    by_incarnation,
    first_of_each,
    generation_before,
    joined_in,
    phases,
    removed_in,
    segments,
)
from kafka_why.why.work import connect_work, streams_tasks

_EXTENSIONS = (EntryType.INITIAL_DELAY_EXTENDED, EntryType.REBALANCE_EXTENDED)


def rebalances(history: Iterable[HistoryEntry]) -> list[Rebalance]:
    """Return all rebalances of one group in order. `history` may have duplicates and gaps."""
    return rebalances_of(by_incarnation(history), AssignmentDecoder())


def rebalances_of(
    group_lives: Sequence[IncarnationHistory[HistoryEntry]], assignments: AssignmentDecoder
) -> list[Rebalance]:
    """Return the rebalances of these lives. Only the last one can be under way."""
    found: list[Rebalance] = []
    for life in group_lives:
        known = KnownState()
        of_life = phases(life)
        for place, (is_of_epochs, phase) in enumerate(of_life):
            is_last_phase = place == len(of_life) - 1
            is_last = is_last_phase and life is group_lives[-1]
            if is_of_epochs:
                found += rebalances_by_epochs(phase, known, is_converted=not is_last_phase, is_last=is_last)
            else:
                found += _rebalances_by_generations(
                    phase, known, assignments, is_converted=not is_last_phase, is_last=is_last
                )
    return [replace(rebalance, number=number) for number, rebalance in enumerate(found, 1)]


def _rebalances_by_generations(
    phase: IncarnationHistory[HistoryEntry],
    known: KnownState,
    assignments: AssignmentDecoder,
    *,
    is_converted: bool,
    is_last: bool,
) -> Iterator[Rebalance]:
    for segment in segments(phase):
        if segment.outcome is RebalanceOutcome.UNDER_WAY and is_converted:
            segment.end(RebalanceOutcome.CONVERTED, phase.entries[-1].at_ms)
        elif segment.outcome is RebalanceOutcome.UNDER_WAY and not is_last:
            segment.outcome = RebalanceOutcome.UNKNOWN
        if segment.gap:
            known.lose_track()
        renamed = known.follow_static_members(segment.all_entries)
        if segment.outcome is None:
            _apply_first_assignment(segment, known, assignments)
        else:
            yield _build_rebalance(phase.incarnation, segment, known, assignments, renamed)


def _apply_first_assignment(segment: Segment, known: KnownState, assignments: AssignmentDecoder) -> None:
    """Apply the assignment that an observed group had when its records were first read."""
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
    assert segment.outcome is not None
    opening, forming, first = segment.opening, segment.forming, segment.entries[0]
    # In an observed group only the end of the rebalance shows which members left while others waited.
    source = forming if first.observed else opening
    waited_for = [renamed.get(m, m) for m in (source.waiting_for or [])] if source is not None else []
    preparing_ms, completing_ms, duration_ms = _phases(segment)
    protocol_name = _latest(segment, "protocol_name")
    stable = segment.entries[-1] if segment.outcome is RebalanceOutcome.STABLE else None
    moves, idle_partitions, assignment_bytes = _moves_and_idle(segment, known, assignments, protocol_name)
    connect = {} if stable is None else connect_work(stable.assignments, protocol_name)
    return Rebalance(
        number=0,
        incarnation=incarnation,
        began_ms=segment.began_ms,
        ended_ms=segment.ended_ms,
        outcome=segment.outcome,
        cause=UNKNOWN_CAUSE if opening is None else cause_of(opening, segment.lead),
        from_state=first.from_state,
        generation_from=_generation_from(first),
        generation_to=_generation_to(segment),
        preparing_ms=preparing_ms,
        completing_ms=completing_ms,
        duration_ms=duration_ms,
        beginning_lost=not segment.is_begin_known,
        deadline_ms=_latest(segment, "deadline_ms"),
        extensions=sum(event.type in _EXTENSIONS for event in segment.entries),
        waited_for=waited_for,
        last=None if first.observed and len(waited_for) > 1 else _last(segment, waited_for),
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


def _phases(segment: Segment) -> tuple[int | None, int | None, int | None]:
    forming, ended_ms = segment.forming, segment.ended_ms
    preparing_ms = completing_ms = duration_ms = None
    if segment.is_begin_known and ended_ms is not None:
        duration_ms = ended_ms - segment.began_ms
    if forming is not None and segment.is_begin_known:
        preparing_ms = forming.at_ms - segment.began_ms
    if forming is not None and forming.type is EntryType.COMPLETING_REBALANCE and ended_ms is not None:
        completing_ms = ended_ms - forming.at_ms
    return preparing_ms, completing_ms, duration_ms


def _generation_from(first: HistoryEntry) -> int:
    joined_already = first.from_state == GroupState.COMPLETING_REBALANCE
    lost_its_beginning = first.type is not EntryType.PREPARING_REBALANCE
    return generation_before(first) - (joined_already and lost_its_beginning)


def _generation_to(segment: Segment) -> int | None:
    """Return the generation that the rebalance formed, or None."""
    last = segment.entries[-1]
    formed = last.to_state != GroupState.PREPARING_REBALANCE
    return last.generation if formed else None


def _latest(segment: Segment, name: str) -> Any:
    values = (getattr(event, name) for event in reversed(segment.entries))
    return next((value for value in values if value is not None), None)


def _last(segment: Segment, waited_for: Sequence[MemberId]) -> MemberId | None:
    """Return the last awaited member to join or to be removed before the generation was formed."""
    if segment.forming is None:
        return None
    there, awaited = first_of_each(segment.all_entries, (*JOINS, *REMOVALS)), set(waited_for)
    return max((m for m in there if m in awaited), key=lambda m: there[m].at_ms, default=None)


def _moves_and_idle(
    segment: Segment, known: KnownState, assignments: AssignmentDecoder, protocol_name: str | None
) -> tuple[Moves | None, Idle | None, dict[str, int] | None]:
    """Return `moves`, `idle` and `assignment_bytes`, and update `known` for the next rebalance."""
    held, released, settled = known.holdings, known.released, known.settled
    known.settled = segment.outcome in (RebalanceOutcome.STABLE, RebalanceOutcome.EMPTY)
    idle_partitions = moves = assignment_bytes = None
    is_observed = segment.opening is not None and segment.opening.observed
    if held is not None and segment.ended_ms is not None and not is_observed:
        idle_partitions = idle(
            held,
            released,
            segment.all_entries,
            (segment.began_ms, segment.ended_ms),
            protocol_name=protocol_name,
            settled=settled,
        )
    if known.settled:
        now, assignment_bytes = _new_assignment(segment, assignments)
        if held is not None and now is not None:
            moves = compare(held, now, released, _latest(segment, "subscriptions"))
        known.set_holdings(now)
    return moves, idle_partitions, assignment_bytes


def _new_assignment(
    segment: Segment, assignments: AssignmentDecoder
) -> tuple[Holdings | None, dict[str, int] | None]:
    """Return the new assignment or, if it cannot be decoded, each member's size in bytes."""
    if segment.outcome is RebalanceOutcome.EMPTY:
        return {}, None
    stable = segment.entries[-1]
    holdings = assignments.holdings(stable)
    if holdings is not None or stable.assignments is None:
        return holdings, None
    return None, {m: len(data) for m, data in stable.assignments.items()}
