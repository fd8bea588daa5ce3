"""One rebalance, for its page and `/api/rebalance`: the words of `why`, its phases, who was slow, what moved."""

from msgspec import Struct

from clients.partition_text import number_list
from insight.page.group import RebalanceLine, rebalance_line
from insight.why.clock import duration_text
from insight.why.history import History
from insight.why.model import Outcome, Rebalance
from insight.why.names import Names
from insight.why.report import report
from insight.why.text import details, names_of
from state.kafka.history import HistoryEntry


class Phase(Struct, frozen=True):
    """A phase, or a member's part of it: from `x`, `width` wide, in per cent of the whole."""

    name: str
    kind: str
    x: float
    width: float
    took: str


class Move(Struct, frozen=True, kw_only=True):
    """What one member got and lost, in words."""

    name: str
    before: int
    after: int
    gained: str
    lost: str


class RebalancePage(Struct, frozen=True, kw_only=True):
    """A rebalance. `earlier_ms` and `later_ms` are the addresses of its neighbours."""

    group_id: str
    line: RebalanceLine
    ended_ms: int | None
    lines: list[tuple[str, str]]
    phases: list[Phase]
    moves: list[Move]
    earlier_ms: int | None
    later_ms: int | None
    now_ms: int


def rebalance_page(group_id: str, history: History, at_ms: int, now_ms: int) -> RebalancePage | None:
    """Return the page of the rebalance that began at a time, None if there is none."""
    ours = [entry for entry in history.entries if isinstance(entry, HistoryEntry)]
    if not ours:
        return None
    found = report(group_id, ours, now_ms, unread=history.unread, from_start=history.from_start)
    place = next((i for i, r in enumerate(found.rebalances) if r.began_ms == at_ms), None)
    if place is None:
        return None
    r, names = found.rebalances[place], names_of(found)
    neighbours = (
        found.rebalances[place - 1] if place else None,
        *found.rebalances[place + 1 : place + 2],
        None,
    )
    return RebalancePage(
        group_id=group_id,
        line=rebalance_line(r, names),
        ended_ms=r.ended_ms,
        lines=_lines(r, now_ms, names),
        phases=_phases(r, names, now_ms),
        moves=_moves(r, names),
        earlier_ms=None if neighbours[0] is None else neighbours[0].began_ms,
        later_ms=None if neighbours[1] is None else neighbours[1].began_ms,
        now_ms=now_ms,
    )


def _lines(r: Rebalance, now_ms: int, names: Names) -> list[tuple[str, str]]:
    """The lines of `why`, without those of the moves, which have a table."""
    found: list[tuple[str, str]] = []
    for label, text in details(r, now_ms, names):
        if label:
            found.append((label, text))
        elif found and found[-1][0] != "moved":
            found.append(("", text))
    return found


def _phases(r: Rebalance, names: Names, now_ms: int) -> list[Phase]:
    whole_ms = max((now_ms if r.ended_ms is None else r.ended_ms) - r.began_ms, 1)

    def phase(name: str, kind: str, from_ms: int, to_ms: int) -> Phase:
        x = round(from_ms * 100 / whole_ms, 3)
        return Phase(
            name,
            kind,
            x,
            round(max((to_ms - from_ms) * 100 / whole_ms, 0.3), 3),
            duration_text(to_ms - from_ms),
        )

    found = []
    if r.preparing_ms is not None:
        found.append(phase("members join", "waits", 0, r.preparing_ms))
        for joined in sorted(r.joined, key=lambda one: -one.after_ms)[:12]:
            found.append(phase(names.of(joined.member_id), "member", 0, joined.after_ms))
    if r.completing_ms is not None and r.preparing_ms is not None:
        found.append(phase("assignment", "gives", r.preparing_ms, r.preparing_ms + r.completing_ms))
    for way in sorted(r.progress, key=lambda one: -(one.settled_after_ms or whole_ms))[:12]:
        ends_ms = whole_ms if way.settled_after_ms is None else way.settled_after_ms
        kind = "waits" if r.outcome is Outcome.UNDER_WAY and way.settled_after_ms is None else "member"
        found.append(phase(names.of(way.member_id), kind, 0, ends_ms))
    return found


def _moves(r: Rebalance, names: Names) -> list[Move]:
    if r.moves is None:
        return []
    return [
        Move(
            name=names.of(member.member_id),
            before=member.before,
            after=member.after,
            gained=_topics(member.gained),
            lost=_topics(member.lost),
        )
        for member in r.moves.members
        if member.gained or member.lost
    ]


def _topics(partitions: dict[str, list[int]]) -> str:
    return ", ".join(f"{topic} {number_list(numbers)}" for topic, numbers in partitions.items())
