"""One rebalance, for its page and `/api/rebalance`: `why`'s words, its phases, who was slow, what moved."""

from msgspec import Struct

from kafka_why.page.group import RebalanceLine, rebalance_line
from kafka_why.page.timeline import end_ms
from kafka_why.partition_text import number_list
from kafka_why.why.model import Rebalance, RebalanceOutcome
from kafka_why.why.report import Course, report_of
from kafka_why.why.text import details
from kafka_why.why.wording import Names, duration_text

MAX_MEMBERS = 12
"""Members whose part of a phase is shown, the slowest."""
LEAST_PERCENT = 0.3


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


def rebalance_page(group_id: str, course: Course, at_ms: int, now_ms: int) -> RebalancePage | None:
    """Return the page of the rebalance that began at a time, None if there is none. Of several that began in
    the same millisecond it is the last one, which overtook the others.
    """
    found = report_of(group_id, course, now_ms)
    by_time = {r.began_ms: r for r in found.rebalances}
    r = by_time.get(at_ms)
    if r is None:
        return None
    names = course.names
    return RebalancePage(
        group_id=group_id,
        line=rebalance_line(r, names),
        ended_ms=r.ended_ms,
        lines=_lines(r, now_ms, names),
        phases=_phases(r, names, now_ms),
        moves=_moves(r, names),
        earlier_ms=max((other for other in by_time if other < at_ms), default=None),
        later_ms=min((other for other in by_time if other > at_ms), default=None),
        now_ms=now_ms,
    )


def _lines(r: Rebalance, now_ms: int, names: Names) -> list[tuple[str, str]]:
    """The lines of `why`, without the moves, which have a table."""
    found: list[tuple[str, str]] = []
    for label, text in details(r, now_ms, names):
        if label:
            found.append((label, text))
        elif found and found[-1][0] != "moved":
            found.append(("", text))
    return found


def _phases(r: Rebalance, names: Names, now_ms: int) -> list[Phase]:
    joins_ms, ends_ms = r.preparing_ms, end_ms(r, now_ms) - r.began_ms
    if joins_ms is None and r.outcome is RebalanceOutcome.UNDER_WAY and not r.goes_by_epochs:
        joins_ms = ends_ms
    joined = sorted(r.joined, key=lambda one: -one.after_ms)[:MAX_MEMBERS]
    # Of a rebalance whose end is lost, the last that is known is its end.
    whole_ms = max(ends_ms, joins_ms or 0, *(one.after_ms for one in joined), 1)

    def phase(name: str, kind: str, from_ms: int, to_ms: int) -> Phase:
        width = max((to_ms - from_ms) * 100 / whole_ms, LEAST_PERCENT)
        x = min(from_ms * 100 / whole_ms, 100 - width)
        return Phase(name, kind, round(x, 3), round(width, 3), duration_text(to_ms - from_ms))

    found = []
    if joins_ms is not None:
        found.append(phase("members join", "waits", 0, joins_ms))
        found += [phase(names.of(one.member_id), "member", 0, one.after_ms) for one in joined]
        if ends_ms > joins_ms:
            found.append(phase("assignment", "gives", joins_ms, ends_ms))
    ways = [(whole_ms if w.settled_after_ms is None else w.settled_after_ms, w) for w in r.progress]
    for to_ms, way in sorted(ways, key=lambda one: -one[0])[:MAX_MEMBERS]:
        kind = (
            "waits" if r.outcome is RebalanceOutcome.UNDER_WAY and way.settled_after_ms is None else "member"
        )
        found.append(phase(names.of(way.member_id), kind, 0, to_ms))
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
