"""The timeline of a group: a lane for each client, bands for rebalances, positions in per cent of the width.

The server draws it as SVG. Positions in per cent fit any width without a script.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TypeVar

from msgspec import Struct

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.page.words import iso, utc_time
from kafka_why.why.model import Rebalance, RebalanceOutcome
from kafka_why.why.state_timelines import MemberState, Span, StateTimeline
from kafka_why.why.text import cause_text
from kafka_why.wording import Names, count, duration_text, lasting_name

T = TypeVar("T")

MAX_LANES = 40
LANE_PX, BANDS_PX, AXIS_PX = 36, 34, 22
LEAST_PERCENT = 0.05
"""The minimum width of a mark, unless the next mark is closer: half a point of a picture 1,000 wide."""
PIXEL_PERCENT = 0.1
"""A pixel of such a picture. Successive marks that are narrower are drawn as one."""
MAX_MARKS = 2_000
"""Maximum number of marks in all lanes. In a picture with more, wider marks are drawn as one, too."""
LEAST_MARKS = 20
"""Marks that each lane may have, however many lanes there are."""
MAX_TICKS = 6
_HOUR_S, _DAY_S = 3_600, 86_400
_OF_HOURS_S = (_HOUR_S, 2 * _HOUR_S, 4 * _HOUR_S, 12 * _HOUR_S)
_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1_800, *_OF_HOURS_S, _DAY_S, 2 * _DAY_S, 7 * _DAY_S)
_LABEL_PERCENT = 3
_SILENCE = re.compile(r"session timeout of (\d+) ms")

HOLDS, WAITS, GIVES, SILENT, AWAY = "holds", "waits", "gives", "silent", "away"
_MARKS: dict[str, str] = {
    MemberState.HOLDS: HOLDS,
    MemberState.JOINED: WAITS,
    MemberState.ASSIGNING: WAITS,
    MemberState.AWAITED: GIVES,
    MemberState.WAITING: WAITS,
    MemberState.REVOKING: GIVES,
    MemberState.AWAY: AWAY,
    SILENT: SILENT,
}


class Mark(Struct, frozen=True):
    """A stretch of a lane."""

    x: float  # in per cent, as `width`
    width: float
    kind: str
    text: str
    label: str = ""


class LaneRow(Struct, frozen=True):
    """The lane of a client.

    It is of one member, or of successive members, because a restarted client is a new member.
    """

    name: str
    member_ids: list[str]
    y: int
    marks: list[Mark]
    gone: list[tuple[float, str]]  # positions at which a member was removed or left, with reasons
    told: list[tuple[float, str]] = []  # positions at which a client of RocketMQ was notified of a change


class Band(Struct, frozen=True):
    """A rebalance, from its beginning to its end."""

    x: float
    width: float
    number: int
    at_ms: int  # identifies its page
    text: str


class Tick(Struct, frozen=True):
    """A time on the axis."""

    x: float
    iso: str  # for the reader's zone
    text: str  # in UTC


class TimelinePicture(Struct, frozen=True, kw_only=True):
    """The data of the drawing."""

    from_ms: int
    to_ms: int
    lanes: list[LaneRow]
    bands: list[Band]
    ticks: list[Tick]
    folded: int  # number of hidden lanes
    height: int


def timeline(
    lanes: Sequence[StateTimeline],
    rebalances: Sequence[Rebalance],
    removals: Iterable[HistoryEntry],
    names: Names,
    clients: Mapping[MemberId, str],
    limits_ms: tuple[int, int],
    now_ms: int,
    *,
    unfolded: bool = False,
) -> TimelinePicture:
    """Return the picture within `limits_ms`. `removals` and `clients` are as in `kafka_why.why.report`."""
    scale = TimeScale(*limits_ms)
    removed: _Removals = {(entry.member_id, entry.at_ms): entry for entry in removals}
    seen = [lane for lane in lanes if scale.shows(lane.spans, now_ms)]
    rows_of = _by_client(seen, clients)
    notable: Counter[str] = Counter()
    for r in rebalances:
        notable.update([*r.cause.member_ids, *([r.last] if r.last else [])])
    shown = (
        rows_of if unfolded else most_notable(rows_of, lambda row: sum(notable[m.member_id] for m in row[1]))
    )
    most = max(MAX_MARKS // max(len(shown), 1), LEAST_MARKS)
    rows = [
        _row(name, members, BANDS_PX + place * LANE_PX, removed, names, scale, now_ms, most)
        for place, (name, members) in enumerate(shown)
    ]
    return TimelinePicture(
        from_ms=limits_ms[0],
        to_ms=limits_ms[1],
        lanes=rows,
        bands=list(_bands(rebalances, names, scale, now_ms)),
        ticks=list(_ticks(limits_ms, scale)),
        folded=len(rows_of) - len(shown),
        height=BANDS_PX + LANE_PX * len(rows) + AXIS_PX,
    )


class TimeScale:
    """A scale that maps times to per cent of the width."""

    def __init__(self, from_ms: int, to_ms: int) -> None:
        self.from_ms, self.to_ms = from_ms, max(to_ms, from_ms + 1)

    def x(self, at_ms: float) -> float:
        return round((at_ms - self.from_ms) * 100 / (self.to_ms - self.from_ms), 3)

    def ms(self, percent: float) -> float:
        return percent * (self.to_ms - self.from_ms) / 100

    def place(self, from_ms: int, to_ms: int) -> tuple[float, float] | None:
        """Return the position and the width of the part within the limits, or None."""
        from_ms, to_ms = max(from_ms, self.from_ms), min(to_ms, self.to_ms)
        if from_ms >= to_ms:
            return None
        x = min(self.x(from_ms), 100 - LEAST_PERCENT)
        return x, max(round(self.x(to_ms) - x, 3), LEAST_PERCENT)

    def shows(self, spans: Sequence[Span], now_ms: int) -> bool:
        """Return True if one of these successive spans is partly within the limits."""
        within = self._within(spans, now_ms)
        return any(self.place(spans[i].from_ms, end_ms(spans[i], now_ms)) for i in within)

    def within(self, spans: Sequence[Span], now_ms: int) -> Sequence[Span]:
        """Return the spans that overlap the limits. There may be one more, which begins now."""
        within = self._within(spans, now_ms)
        return spans[within.start : within.stop]

    def _within(self, spans: Sequence[Span], now_ms: int) -> range:
        first = bisect_right(spans, self.from_ms, key=partial(end_ms, now_ms=now_ms))
        return range(first, bisect_left(spans, self.to_ms, first, key=lambda span: span.from_ms))

    def has(self, at_ms: int) -> bool:
        return self.from_ms <= at_ms <= self.to_ms


_Client = tuple[str, list[StateTimeline]]
"""A name, and the lanes of the members that had it one after the other."""
_Removals = dict[tuple[MemberId | None, int | None], HistoryEntry]


def _by_client(lanes: Iterable[StateTimeline], clients: Mapping[MemberId, str]) -> list[_Client]:
    """Group the lanes of members with one name, if their lifetimes do not overlap."""
    found: list[_Client] = []
    of_name: dict[str, list[list[StateTimeline]]] = {}
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


def _is_over(lane: StateTimeline, at_ms: int) -> bool:
    end_ms = lane.spans[-1].to_ms
    return end_ms is not None and end_ms <= at_ms


def most_notable(rows: Sequence[T], weight: Callable[[T], int]) -> Sequence[T]:
    """Return the MAX_LANES rows of greatest weight, in their original order."""
    ranked = sorted(range(len(rows)), key=lambda i: (-weight(rows[i]), i))
    return [rows[i] for i in sorted(ranked[:MAX_LANES])]


def shown_ms(limits_ms: tuple[int, int], history_ms: int) -> tuple[int, int]:
    """Return the limits of a picture. The time before the history is cut, except for a margin."""
    from_ms, to_ms = limits_ms
    return max(from_ms, history_ms - (to_ms - history_ms) // 50) if history_ms < to_ms else from_ms, to_ms


def _row(
    name: str,
    members: Sequence[StateTimeline],
    y: int,
    removals: _Removals,
    names: Names,
    scale: TimeScale,
    now_ms: int,
    most: int,
) -> LaneRow:
    spans: list[Span] = []
    gone: list[tuple[float, str]] = []
    for lane in members:
        entry = removals.get((lane.member_id, lane.spans[-1].to_ms))
        spans += lane.spans if entry is None else _with_silence(lane.spans, entry)
        if entry is not None and scale.has(entry.at_ms):
            gone.append((scale.x(entry.at_ms), f"{name} was removed: {names.put_in(entry.reason)}"))
    marks = list(_marks(name, spans, scale, now_ms, most))
    if len(members) == 1:
        name = names.of(members[0].member_id)
    return LaneRow(name, [lane.member_id for lane in members], y, marks, gone)


def _with_silence(spans: Sequence[Span], removal: HistoryEntry) -> Iterator[Span]:
    """Yield the spans of a member until its removal. A session timeout makes the last ones SILENT."""
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


def _marks(name: str, spans: Sequence[Span], scale: TimeScale, now_ms: int, most: int) -> Iterator[Mark]:
    within = scale.within(spans, now_ms)
    least = PIXEL_PERCENT if len(within) <= most else max(100 / most, PIXEL_PERCENT)
    places = [
        (run, place)
        for run in _runs(within, scale.ms(least), now_ms)
        if (place := scale.place(run[0].from_ms, end_ms(run[-1], now_ms))) is not None
    ]
    later_x = [x for _, (x, _) in places[1:]]
    for (run, (x, width)), later in zip_longest(places, later_x):
        width = width if later is None else min(width, round(later - x, 3))
        if width > 0:  # else the next mark begins at the same thousandth of a per cent
            yield _mark(name, run, x, width, now_ms)


def _runs(spans: Iterable[Span], least_ms: float, now_ms: int) -> Iterator[list[Span]]:
    """Yield runs of successive spans. Spans shorter than `least_ms` are joined until the run is as long."""
    run: list[Span] = []
    began_ms = ended_ms = 0
    for span in spans:
        to_ms = end_ms(span, now_ms)
        is_long = to_ms - span.from_ms >= least_ms or span.from_ms - began_ms >= least_ms
        if run and (is_long or span.from_ms > ended_ms):
            yield run
            run = []
        if not run:
            began_ms = span.from_ms
        run.append(span)
        ended_ms = to_ms
    if run:
        yield run


def _mark(name: str, run: Sequence[Span], x: float, width: float, now_ms: int) -> Mark:
    """Return the mark of a run: SILENT if the member was silent, else of the kind that lasted longest."""
    lasted: dict[tuple[str, int | None], int] = {}
    for span in run:
        state = span.what, span.partitions
        lasted[state] = lasted.get(state, 0) + end_ms(span, now_ms) - span.from_ms
    longest = sorted(lasted, key=lambda state: -lasted[state])
    kinds: Counter[str] = Counter()
    for what, partitions in longest:
        kinds[_MARKS[what]] += lasted[what, partitions]
    kind = SILENT if SILENT in kinds else max(kinds, key=lambda kind: kinds[kind])
    states = ", ".join(f"{_state_text(*state)}, {duration_text(lasted[state])}" for state in longest)
    label = str(longest[0][1]) if kind == HOLDS and len(run) == 1 and width > _LABEL_PERCENT else ""
    return Mark(x, width, kind, f"{name} {states}", "" if longest[0][1] is None else label)


def _state_text(what: str, partitions: int | None) -> str:
    if what == SILENT:
        return "sent no heartbeat"
    if what == MemberState.HOLDS and partitions is not None:
        return f"holds {count(partitions, 'partition')}"
    return what


def _bands(rebalances: Iterable[Rebalance], names: Names, scale: TimeScale, now_ms: int) -> Iterator[Band]:
    """Yield the bands, without those that the previous one covers up to a pixel."""
    last: Band | None = None
    for r in rebalances:
        place = scale.place(r.began_ms, max(rebalance_end_ms(r, now_ms), r.began_ms + 1))
        if place is None or (last is not None and _is_covered(place, last)):
            continue
        took = (
            "" if r.ended_ms is None or r.is_begin_unknown else f", {duration_text(r.ended_ms - r.began_ms)}"
        )
        last = Band(*place, r.number, r.began_ms, f"#{r.number} {cause_text(r, names)}{took}")
        yield last


def _is_covered(place: tuple[float, float], band: Band) -> bool:
    x, width = place
    return x < band.x + PIXEL_PERCENT and x + width < band.x + band.width + PIXEL_PERCENT


def end_ms(span: Span, now_ms: int) -> int:
    """Return the end of a span, or now if it has none yet."""
    return now_ms if span.to_ms is None else span.to_ms


def rebalance_end_ms(r: Rebalance, now_ms: int) -> int:
    """Return the end of a rebalance. If it is in progress, that is now."""
    if r.ended_ms is not None:
        return r.ended_ms
    # A rebalance whose end is lost has no length here.
    return max(now_ms, r.began_ms) if r.outcome is RebalanceOutcome.UNDER_WAY else r.began_ms


def _ticks(limits_ms: tuple[int, int], scale: TimeScale) -> Iterator[Tick]:
    from_ms, to_ms = limits_ms
    weeks = -(-(to_ms - from_ms) // (MAX_TICKS * _STEPS_S[-1] * 1000)) * _STEPS_S[-1]
    step_ms = next((s for s in _STEPS_S if to_ms - from_ms <= s * 1000 * MAX_TICKS), weeks) * 1000
    first = -(-from_ms // step_ms) * step_ms
    for at_ms in range(first, to_ms, step_ms):
        yield Tick(scale.x(at_ms), iso(at_ms), utc_time(at_ms))
