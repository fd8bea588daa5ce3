"""The timeline of a group: a lane for each client, bands for rebalances, positions in per cent of the width.

The server draws it as SVG. Positions in per cent fit any width, and need no script.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from msgspec import Struct

from assignors.kafka.api import MemberId
from insight.page.words import iso, utc_time
from insight.why.clock import duration_text
from insight.why.lanes import Lane, MemberState, Span
from insight.why.model import Outcome, Rebalance
from insight.why.names import Names, lasting_name
from insight.why.text import cause_text
from insight.why.wording import count
from state.kafka.history import EntryType, HistoryEntry

MAX_LANES = 40
LANE_PX, BAR_PX, BANDS_PX, AXIS_PX = 36, 14, 34, 22
LEAST_PERCENT = 0.05
"""A mark is at least so wide, as far as the next one leaves room: half a point of a picture 1,000 wide."""
MAX_TICKS = 6
_HOUR_S, _DAY_S = 3_600, 86_400
_OF_HOURS_S = (_HOUR_S, 2 * _HOUR_S, 4 * _HOUR_S, 12 * _HOUR_S)
_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1_800, *_OF_HOURS_S, _DAY_S, 2 * _DAY_S, 7 * _DAY_S)
_LABEL_PERCENT = 3
_SILENCE = re.compile(r"session timeout of (\d+) ms")

HOLDS, WAITS, GIVES, SILENT, AWAY = "holds", "waits", "gives", "silent", "away"
_MARKS = {
    MemberState.HOLDS: HOLDS,
    MemberState.JOINED: WAITS,
    MemberState.ASSIGNING: WAITS,
    MemberState.AWAITED: GIVES,
    MemberState.WAITING: WAITS,
    MemberState.REVOKING: GIVES,
    MemberState.AWAY: AWAY,
}


class Mark(Struct, frozen=True):
    """A stretch of a lane: `x` and `width` in per cent, its kind, and what it says."""

    x: float
    width: float
    kind: str
    text: str
    label: str = ""


class LaneRow(Struct, frozen=True):
    """A client's lane: one member, or several one after the other, because a client that is started again is
    another member. `gone` are the places where one was removed or left, with the reason. `told` are those
    where a client of RocketMQ was told of a change.
    """

    name: str
    member_ids: list[str]
    y: int
    marks: list[Mark]
    gone: list[tuple[float, str]]
    told: list[tuple[float, str]] = []


class Band(Struct, frozen=True):
    """A rebalance, from its beginning to its end. `at_ms` is its address."""

    x: float
    width: float
    number: int
    at_ms: int
    text: str


class Tick(Struct, frozen=True):
    """A time on the axis: `iso` for the reader's zone, `text` in UTC."""

    x: float
    iso: str
    text: str


class Timeline(Struct, frozen=True, kw_only=True):
    """The picture. `folded` is the number of lanes that are not shown."""

    from_ms: int
    to_ms: int
    lanes: list[LaneRow]
    bands: list[Band]
    ticks: list[Tick]
    folded: int
    height: int


def timeline(
    lanes: Sequence[Lane],
    rebalances: Sequence[Rebalance],
    entries: Iterable[HistoryEntry],
    names: Names,
    clients: Mapping[MemberId, str],
    limits_ms: tuple[int, int],
    now_ms: int,
    *,
    unfolded: bool = False,
) -> Timeline:
    """Return the picture between two times. `clients` are those of `insight.why.names.clients_of`."""
    scale = _Scale(*limits_ms)
    removals: _Removals = {
        (entry.member_id, entry.at_ms): entry for entry in entries if entry.type is EntryType.MEMBER_REMOVED
    }
    seen = [lane for lane in lanes if any(scale.place(span, now_ms) for span in lane.spans)]
    rows_of = _by_client(seen, clients)
    shown = rows_of if unfolded or len(rows_of) <= MAX_LANES else _chosen(rows_of, rebalances)
    rows = [
        _row(name, members, BANDS_PX + place * LANE_PX, removals, names, scale, now_ms)
        for place, (name, members) in enumerate(shown)
    ]
    return Timeline(
        from_ms=limits_ms[0],
        to_ms=limits_ms[1],
        lanes=rows,
        bands=list(_bands(rebalances, names, scale, now_ms)),
        ticks=list(_ticks(limits_ms, scale)),
        folded=len(rows_of) - len(shown),
        height=BANDS_PX + LANE_PX * len(rows) + AXIS_PX,
    )


class _Scale:
    """Times as per cent of the width."""

    def __init__(self, from_ms: int, to_ms: int) -> None:
        self.from_ms, self.to_ms = from_ms, max(to_ms, from_ms + 1)

    def x(self, at_ms: float) -> float:
        return round((at_ms - self.from_ms) * 100 / (self.to_ms - self.from_ms), 3)

    def place(self, span: Span, now_ms: int) -> tuple[float, float] | None:
        """The place and the width of what is within the limits, None if nothing is."""
        from_ms = max(span.from_ms, self.from_ms)
        to_ms = min(now_ms if span.to_ms is None else span.to_ms, self.to_ms)
        if from_ms >= to_ms:
            return None
        x = min(self.x(from_ms), 100 - LEAST_PERCENT)
        return x, max(round(self.x(to_ms) - x, 3), LEAST_PERCENT)

    def has(self, at_ms: int) -> bool:
        return self.from_ms <= at_ms <= self.to_ms


_Client = tuple[str, list[Lane]]
"""A name, and the lanes of the members that had it one after the other."""
_Removals = dict[tuple[MemberId | None, int | None], HistoryEntry]


def _by_client(lanes: Iterable[Lane], clients: Mapping[MemberId, str]) -> list[_Client]:
    """Put the lanes of members of one name together, if none began before the one before it had ended."""
    found: list[_Client] = []
    of_name: dict[str, list[list[Lane]]] = {}
    for lane in lanes:
        name = lasting_name(lane.member_id, clients)
        rows = of_name.setdefault(name, [])
        free = next((members for members in rows if _is_over(members[-1], lane.spans[0].from_ms)), None)
        if free is not None:
            free.append(lane)
            continue
        rows.append([lane])
        found.append((name, rows[-1]))
    return found


def _is_over(lane: Lane, at_ms: int) -> bool:
    end_ms = lane.spans[-1].to_ms
    return end_ms is not None and end_ms <= at_ms


def _chosen(rows: Sequence[_Client], rebalances: Sequence[Rebalance]) -> list[_Client]:
    """Return MAX_LANES rows in their order: above all those of members that caused or delayed a rebalance."""
    notable: Counter[str] = Counter()
    for r in rebalances:
        notable.update([*r.cause.member_ids, *([r.last] if r.last else [])])
    ranked = sorted(range(len(rows)), key=lambda i: (-sum(notable[m.member_id] for m in rows[i][1]), i))
    return [rows[i] for i in sorted(ranked[:MAX_LANES])]


def _row(
    name: str,
    members: Sequence[Lane],
    y: int,
    removals: _Removals,
    names: Names,
    scale: _Scale,
    now_ms: int,
) -> LaneRow:
    spans: list[Span] = []
    gone: list[tuple[float, str]] = []
    for lane in members:
        entry = removals.get((lane.member_id, lane.spans[-1].to_ms))
        spans += lane.spans if entry is None else _with_silence(lane.spans, entry)
        if entry is not None and scale.has(entry.at_ms):
            gone.append((scale.x(entry.at_ms), f"{name} was removed: {names.put_in(entry.reason)}"))
    marks = list(_marks(name, spans, scale, now_ms))
    if len(members) == 1:
        name = names.of(members[0].member_id)
    return LaneRow(name, [lane.member_id for lane in members], y, marks, gone)


def _with_silence(spans: Sequence[Span], removal: HistoryEntry) -> Iterator[Span]:
    """Yield the spans of a member until its removal. If its session timed out, it is SILENT for so long."""
    silence = _SILENCE.search(removal.reason)
    if silence is None:
        yield from spans
        return
    from_ms = max(removal.at_ms - int(silence[1]), spans[0].from_ms)
    for span in spans:
        if span.from_ms < from_ms:
            to_ms = from_ms if span.to_ms is None else min(span.to_ms, from_ms)
            yield Span(span.what, span.from_ms, to_ms, span.partitions)
    yield Span(SILENT, from_ms, removal.at_ms)


def _marks(name: str, spans: Iterable[Span], scale: _Scale, now_ms: int) -> Iterator[Mark]:
    places = [(span, place) for span in spans if (place := scale.place(span, now_ms)) is not None]
    for (span, (x, width)), later in zip_longest(places, places[1:]):
        width = width if later is None else min(width, round(later[1][0] - x, 3))
        if width <= 0:
            continue  # the one after it begins at the same thousandth of a per cent
        kind = SILENT if span.what == SILENT else _MARKS.get(MemberState(span.what), WAITS)
        lasted = duration_text((now_ms if span.to_ms is None else span.to_ms) - span.from_ms)
        what = "sent no heartbeat" if span.what == SILENT else span.what
        label = ""
        if kind == HOLDS and span.partitions is not None:
            what = f"holds {count(span.partitions, 'partition')}"
            label = str(span.partitions) if width > _LABEL_PERCENT else ""
        yield Mark(x, width, kind, f"{name} {what}, {lasted}", label)


def _bands(rebalances: Iterable[Rebalance], names: Names, scale: _Scale, now_ms: int) -> Iterator[Band]:
    for r in rebalances:
        place = scale.place(Span("", r.began_ms, max(end_ms(r, now_ms), r.began_ms + 1)), now_ms)
        if place is not None:
            took = "" if r.ended_ms is None else f", {duration_text(r.ended_ms - r.began_ms)}"
            yield Band(*place, r.number, r.began_ms, f"#{r.number} {cause_text(r, names)}{took}")


def end_ms(r: Rebalance, now_ms: int) -> int:
    """Return when a rebalance ended: now if it is under way, its beginning if its end is lost."""
    if r.ended_ms is not None:
        return r.ended_ms
    return max(now_ms, r.began_ms) if r.outcome is Outcome.UNDER_WAY else r.began_ms


def _ticks(limits_ms: tuple[int, int], scale: _Scale) -> Iterator[Tick]:
    from_ms, to_ms = limits_ms
    weeks = -(-(to_ms - from_ms) // (MAX_TICKS * _STEPS_S[-1] * 1000)) * _STEPS_S[-1]
    step_ms = next((s for s in _STEPS_S if to_ms - from_ms <= s * 1000 * MAX_TICKS), weeks) * 1000
    first = -(-from_ms // step_ms) * step_ms
    for at_ms in range(first, to_ms, step_ms):
        yield Tick(scale.x(at_ms), iso(at_ms), utc_time(at_ms))
