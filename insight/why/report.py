"""A report on a group: its current state, a summary of its rebalances, and the rebalances."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from insight.why.lanes import Lane, Span, member_lanes, state_spans
from insight.why.lives import Life, lives
from insight.why.model import CauseKind, Outcome, Rebalance
from insight.why.names import clients_of
from insight.why.notes import notes
from insight.why.rebalances import rebalances_of
from state.kafka.group import DEAD
from state.kafka.history import HistoryEntry


class CauseCount(Struct, frozen=True):
    """How often one kind of cause opened a rebalance, and how often for each client.

    A client is named by its group.instance.id, else its client id, because its member id changes when it
    restarts.
    """

    kind: CauseKind
    rebalances: int
    by_client: dict[str, int]


class Summary(Struct, frozen=True, kw_only=True):
    """Figures of the rebalances. One under way counts until now; `longest` is a rebalance's number."""

    rebalances: int
    causes: list[CauseCount]
    not_stable_ms: int
    longest: int | None
    longest_ms: int
    moved: int
    needless: int


class Report(Struct, frozen=True, kw_only=True):
    """One group. `state` is that of the last entry, "Dead" if it ended. `notes` name gaps and faults.
    `group_type` is `classic` or `consumer`, the group's protocol; `generation` is the group epoch with the
    latter. `clients` are those of `insight.why.names.clients_of`.
    """

    group_id: str
    now_ms: int
    since_ms: int | None
    from_ms: int
    state: str
    state_since_ms: int
    generation: int
    members: list[str]
    summary: Summary
    notes: list[str]
    rebalances: list[Rebalance]
    group_type: str = "classic"
    clients: dict[str, str] = {}


def report(
    group_id: str,
    history: Iterable[HistoryEntry],
    now_ms: int,
    since_ms: int | None = None,
    *,
    unread: Collection[tuple[str, int]] = (),
    from_start: bool = True,
) -> Report:
    """Return the report on a group. `history` has at least one entry; it may have duplicates and gaps.

    `since_ms` omits the rebalances that ended before it; the others are numbered from 1. `unread` are the
    names of entries that were not read because nothing depends on them. `from_start`: the history begins with
    the first retained entry.
    """
    group_lives = lives(history, unread)
    assert group_lives, "a group without history has no report"
    found = [r for r in rebalances_of(group_lives) if since_ms is None or _end_ms(r, now_ms) >= since_ms]
    found = [replace(rebalance, number=number) for number, rebalance in enumerate(found, 1)]
    last = group_lives[-1].entries[-1]
    return Report(
        group_id=group_id,
        now_ms=now_ms,
        since_ms=since_ms,
        from_ms=group_lives[0].entries[0].at_ms,
        state=last.to_state,
        state_since_ms=_state_since_ms(group_lives[-1]),
        generation=last.generation,
        members=[lane.member_id for lane in member_lanes(group_lives[-1:]) if lane.is_open],
        summary=summary(found, now_ms),
        notes=_notes(group_lives, from_start),
        rebalances=found,
        group_type=last.group_type,
        clients=clients_of(event for life in group_lives for event in life.entries),
    )


def summary(found: Sequence[Rebalance], now_ms: int) -> Summary:
    """Return the figures of these rebalances."""
    causes: dict[CauseKind, Counter[str]] = {}
    for rebalance in found:
        causes.setdefault(rebalance.cause.kind, Counter())[client_of(rebalance)] += 1
    counts = [
        CauseCount(kind, clients.total(), dict(clients.most_common())) for kind, clients in causes.items()
    ]
    lengths = {r.number: _end_ms(r, now_ms) - r.began_ms for r in found}
    longest = max(lengths, key=lambda number: lengths[number], default=None)
    return Summary(
        rebalances=len(found),
        causes=sorted(counts, key=lambda count: -count.rebalances),
        not_stable_ms=sum(lengths.values()),
        longest=longest,
        longest_ms=0 if longest is None else lengths[longest],
        moved=sum(r.moves.moved for r in found if r.moves is not None),
        needless=sum(r.moves.needless or 0 for r in found if r.moves is not None),
    )


def client_of(rebalance: Rebalance) -> str:
    """Return the client that caused the rebalance, by its lasting name; the cluster, if its topics did."""
    cause = rebalance.cause
    if cause.kind in (CauseKind.TOPICS_CHANGED, CauseKind.PATTERN_RESOLVED):
        return "the cluster"
    if cause.kind is CauseKind.CONVERTED:
        return "the group"
    lasting = cause.group_instance_id or cause.client_id
    return lasting or next(iter(cause.member_ids), "unknown")


def lanes_of(history: Iterable[HistoryEntry]) -> tuple[list[Span], list[Lane]]:
    """Return the spans of the group's states and the lanes of its members, for a picture."""
    group_lives = lives(history)
    return state_spans(group_lives), member_lanes(group_lives)


def _end_ms(rebalance: Rebalance, now_ms: int) -> int:
    """Return when the rebalance ended, now if it is under way, or its beginning if the end is lost."""
    if rebalance.ended_ms is not None:
        return rebalance.ended_ms
    under_way = rebalance.outcome is Outcome.UNDER_WAY
    return max(now_ms, rebalance.began_ms) if under_way else rebalance.began_ms


def _state_since_ms(life: Life[HistoryEntry]) -> int:
    last = life.entries[-1]
    for event in reversed(life.entries):
        if event.from_state != event.to_state:
            return event.at_ms if event.to_state == last.to_state else last.at_ms
    return life.entries[0].at_ms


def _notes(group_lives: Sequence[Life[HistoryEntry]], from_start: bool) -> list[str]:
    last = group_lives[-1].entries[-1]
    ended = [f"the group has ended: {last.reason}"] if last.to_state == DEAD else []
    return [*notes(group_lives, from_start=from_start), *ended]
