"""The timeline of a group: a lane for each client, bands for rebalances, positions in per cent of the width.

The server draws it as SVG. Positions in per cent fit any width without a script.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from math import ceil
from typing import TypeVar

from msgspec import Struct, field

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.protocols.subscriptions import MemberId
from kafka_why.page.words import iso, utc_time
from kafka_why.why.model import Rebalance
from kafka_why.why.state_timelines import MemberState, Span, StateTimeline
from kafka_why.why.text import cause_text
from kafka_why.wording import Names, count, duration_text, lasting_name

T = TypeVar("T")

MAX_LANES = 40
LANE_PX, BANDS_PX, AXIS_PX = 36, 34, 22
LEAST_PERCENT = 0.05
"""The minimum width of a mark, unless the next mark is closer: half a pixel of a picture of 1,000 pixels."""
PIXEL_PERCENT = 0.1
"""A pixel of such a picture. Successive marks that are narrower are drawn as one."""
MAX_MARKS = 2_000
"""Maximum number of marks in all lanes. If there are more, wider marks are joined, too."""
LEAST_MARKS = 20
"""The lowest limit of the marks in one lane. With very many lanes the sum exceeds MAX_MARKS."""
MAX_TICKS = 6
_HOUR_S, _DAY_S, _WEEK_S = 3_600, 86_400, 604_800
_HOURS_S = (_HOUR_S, 2 * _HOUR_S, 4 * _HOUR_S, 12 * _HOUR_S)
_TICK_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1_800, *_HOURS_S, _DAY_S, 2 * _DAY_S, _WEEK_S)
_LABEL_PERCENT = 3  # only wider marks have a label
_SESSION_TIMEOUT = re.compile(r"session timeout of (?P<ms>\d+) ms")

HOLDS, WAITS, GIVES, SILENT, AWAY = "holds", "waits", "gives", "silent", "away"
"""The kinds of marks, which are CSS classes."""
_KIND_OF_STATE: dict[str, str] = {
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
    text: str  # a tooltip
    label: str = ""  # written on the mark


class LaneRow(Struct, frozen=True):
    """The lane of a client.

    It is of one member, or of successive members, because a restarted client is a new member.
    """

    name: str
    member_ids: list[str]
    y: int  # in pixels
    marks: list[Mark]
    gone: list[tuple[float, str]]  # positions at which a member was removed or left, with reasons
    # Positions at which a RocketMQ client was notified of a change.
    notified: list[tuple[float, str]] = field(default_factory=list, name="told")


class Band(Struct, frozen=True):
    """A rebalance, from its beginning to its end."""

    x: float  # in per cent, as `width`
    width: float
    number: int
    at_ms: int  # identifies its page
    text: str


class Tick(Struct, frozen=True):
    """A time on the axis."""

    x: float  # in per cent
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
    height: int  # in pixels


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
    removal_entries: _Removals = {(entry.member_id, entry.at_ms): entry for entry in removals}
    visible = [lane for lane in lanes if scale.shows(lane.spans, now_ms)]
    by_client = _by_client(visible, clients)
    mentions = Counter(member_id for r in rebalances for member_id in (*r.cause.member_ids, r.last))

    def weight(client: _Client) -> int:
        """Return how often rebalances name the client as their cause or as the last awaited member."""
        return sum(mentions[lane.member_id] for lane in client[1])

    drawn = by_client if unfolded else most_notable_lanes(by_client, weight)
    max_marks = max(MAX_MARKS // max(len(drawn), 1), LEAST_MARKS)
    rows = [
        _lane_row(name, members, BANDS_PX + index * LANE_PX, removal_entries, names, scale, now_ms, max_marks)
        for index, (name, members) in enumerate(drawn)
    ]
    return TimelinePicture(
        from_ms=limits_ms[0],
        to_ms=limits_ms[1],
        lanes=rows,
        bands=list(_bands(rebalances, names, scale, now_ms)),
        ticks=list(_ticks(limits_ms, scale)),
        folded=len(by_client) - len(drawn),
        height=BANDS_PX + LANE_PX * len(rows) + AXIS_PX,
    )


class TimeScale:
    """A scale that maps times to per cent of the width."""

    def __init__(self, from_ms: int, to_ms: int) -> None:
        self.from_ms, self.to_ms = from_ms, max(to_ms, from_ms + 1)

    def x(self, at_ms: float) -> float:
        """Return the position of a time, in per cent."""
        return round((at_ms - self.from_ms) * 100 / (self.to_ms - self.from_ms), 3)

    def ms(self, percent: float) -> float:
        """Return the duration that a width in per cent stands for."""
        return percent * (self.to_ms - self.from_ms) / 100

    def place(self, from_ms: int, to_ms: int) -> tuple[float, float] | None:
        """Return the position and the width of the part within the limits, or None if there is none."""
        from_ms, to_ms = max(from_ms, self.from_ms), min(to_ms, self.to_ms)
        if from_ms >= to_ms:
            return None
        x = min(self.x(from_ms), 100 - LEAST_PERCENT)
        return x, max(round(self.x(to_ms) - x, 3), LEAST_PERCENT)

    def shows(self, spans: Sequence[Span], now_ms: int) -> bool:
        """Return True if one of these successive spans is partly within the limits."""
        return any(self.place(span.from_ms, end_ms(span, now_ms)) for span in self.within(spans, now_ms))

    def within(self, spans: Sequence[Span], now_ms: int) -> Sequence[Span]:
        """Return those of successive spans that overlap the limits, perhaps with one of length 0."""
        first = bisect_right(spans, self.from_ms, key=partial(end_ms, now_ms=now_ms))
        stop = bisect_left(spans, self.to_ms, first, key=lambda span: span.from_ms)
        return spans[first:stop]

    def contains(self, at_ms: int) -> bool:
        return self.from_ms <= at_ms <= self.to_ms


_Client = tuple[str, list[StateTimeline]]
"""A client's name, and the lanes of its successive members."""
_Removals = dict[tuple[MemberId | None, int | None], HistoryEntry]
"""Entries about removed members, by member id and time in ms."""


def _by_client(lanes: Iterable[StateTimeline], clients: Mapping[MemberId, str]) -> list[_Client]:
    """Group the lanes of members with one name, if their lifetimes do not overlap."""
    by_client: list[_Client] = []
    rows_by_name: dict[str, list[list[StateTimeline]]] = {}
    for lane in lanes:
        name = lasting_name(lane.member_id, clients)
        rows = rows_by_name.setdefault(name, [])
        free_row = next((row for row in rows if _has_ended(row[-1], lane.spans[0].from_ms)), None)
        if free_row is not None:
            free_row.append(lane)
            continue
        rows.append([lane])
        by_client.append((name, rows[-1]))
    return by_client


def _has_ended(lane: StateTimeline, at_ms: int) -> bool:
    end_ms = lane.spans[-1].to_ms
    return end_ms is not None and end_ms <= at_ms


def most_notable_lanes(rows: Sequence[T], weight: Callable[[T], int]) -> Sequence[T]:
    """Return the MAX_LANES rows of greatest weight, in their original order."""
    ranked = sorted(range(len(rows)), key=lambda i: (-weight(rows[i]), i))
    return [rows[i] for i in sorted(ranked[:MAX_LANES])]


def picture_limits_ms(limits_ms: tuple[int, int], history_ms: int) -> tuple[int, int]:
    """Return the limits of a picture. It begins at most 2 per cent before the history.

    `history_ms` is the time of the history's first entry.
    """
    from_ms, to_ms = limits_ms
    if history_ms < to_ms:
        from_ms = max(from_ms, history_ms - (to_ms - history_ms) // 50)
    return from_ms, to_ms


def _lane_row(
    name: str,
    members: Sequence[StateTimeline],
    y: int,
    removals: _Removals,
    names: Names,
    scale: TimeScale,
    now_ms: int,
    max_marks: int,
) -> LaneRow:
    spans: list[Span] = []
    gone: list[tuple[float, str]] = []
    for lane in members:
        entry = removals.get((lane.member_id, lane.spans[-1].to_ms))
        spans += lane.spans if entry is None else _with_silence(lane.spans, entry)
        if entry is not None and scale.contains(entry.at_ms):
            gone.append((scale.x(entry.at_ms), f"{name} was removed: {names.put_in(entry.reason)}"))
    marks = list(_marks(name, spans, scale, now_ms, max_marks))
    if len(members) == 1:
        name = names.of(members[0].member_id)
    return LaneRow(name, [lane.member_id for lane in members], y, marks, gone)


def _with_silence(spans: Sequence[Span], removal: HistoryEntry) -> Iterator[Span]:
    """Yield the spans of a member until its removal.

    If its session timed out, the time in which it sent no heartbeat is SILENT.
    """
    session_timeout = _SESSION_TIMEOUT.search(removal.reason)
    if session_timeout is None:
        yield from spans
        return
    silent_from_ms = max(removal.at_ms - int(session_timeout["ms"]), spans[0].from_ms)
    for span in spans:
        if span.from_ms < silent_from_ms:
            to_ms = silent_from_ms if span.to_ms is None else min(span.to_ms, silent_from_ms)
            yield Span(span.what, span.from_ms, to_ms, span.partitions)
    yield Span(SILENT, silent_from_ms, removal.at_ms)


def _marks(name: str, spans: Sequence[Span], scale: TimeScale, now_ms: int, max_marks: int) -> Iterator[Mark]:
    """Yield the marks of a lane. A mark ends where the next one begins, even if it gets narrow."""
    within = scale.within(spans, now_ms)
    least_percent = PIXEL_PERCENT if len(within) <= max_marks else max(100 / max_marks, PIXEL_PERCENT)
    runs = _runs(within, scale.ms(least_percent), now_ms)
    places = ((run, scale.place(run[0].from_ms, end_ms(run[-1], now_ms))) for run in runs)
    visible = [(run, place) for run, place in places if place is not None]
    next_xs = [x for _, (x, _) in visible[1:]]
    for (run, (x, width)), next_x in zip_longest(visible, next_xs):
        width = width if next_x is None else min(width, round(next_x - x, 3))
        if width > 0:  # else the next mark begins at the same thousandth of a per cent
            yield _mark(name, run, x, width, now_ms)


def _runs(spans: Iterable[Span], least_ms: float, now_ms: int) -> Iterator[list[Span]]:
    """Yield runs of successive spans, each run for one mark.

    A span of at least `least_ms` is a run of its own. Shorter ones that follow each other without a pause are
    joined until the run is as long.
    """
    run: list[Span] = []
    began_ms = ended_ms = 0  # of the run
    for span in spans:
        to_ms = end_ms(span, now_ms)
        is_long_enough = to_ms - span.from_ms >= least_ms or span.from_ms - began_ms >= least_ms
        if run and (is_long_enough or span.from_ms > ended_ms):
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
    longest_first = sorted(lasted, key=lambda state: -lasted[state])
    lasted_by_kind: Counter[str] = Counter()
    for what, partitions in longest_first:
        lasted_by_kind[_KIND_OF_STATE[what]] += lasted[what, partitions]
    longest_kind = max(lasted_by_kind, key=lambda kind: lasted_by_kind[kind])
    kind = SILENT if SILENT in lasted_by_kind else longest_kind
    states = ", ".join(f"{_state_text(*state)}, {duration_text(lasted[state])}" for state in longest_first)
    number = run[0].partitions
    is_labelled = kind == HOLDS and len(run) == 1 and number is not None and width > _LABEL_PERCENT
    return Mark(x, width, kind, f"{name} {states}", label=str(number) if is_labelled else "")


def _state_text(what: str, partitions: int | None) -> str:
    if what == SILENT:
        return "sent no heartbeat"
    if what == MemberState.HOLDS and partitions is not None:
        return f"holds {count(partitions, 'partition')}"
    return what


def _bands(rebalances: Iterable[Rebalance], names: Names, scale: TimeScale, now_ms: int) -> Iterator[Band]:
    """Yield the bands of rebalances.

    Omit a band if its beginning and its end are each less than a pixel after those of the previous band.
    """
    last: Band | None = None
    for r in rebalances:
        place = scale.place(r.began_ms, max(r.end_ms(now_ms), r.began_ms + 1))
        if place is None or (last is not None and _is_covered(place, last)):
            continue
        took = (
            "" if r.ended_ms is None or r.is_begin_unknown else f", {duration_text(r.ended_ms - r.began_ms)}"
        )
        last = Band(*place, r.number, r.began_ms, f"#{r.number} {cause_text(r, names)}{took}")
        yield last


def _is_covered(place: tuple[float, float], band: Band) -> bool:
    """Return True if a band at `place` would add less than a pixel to the previous band."""
    x, width = place
    return x < band.x + PIXEL_PERCENT and x + width < band.x + band.width + PIXEL_PERCENT


def end_ms(span: Span, now_ms: int) -> int:
    """Return the end of a span, or now if it has none yet."""
    return now_ms if span.to_ms is None else span.to_ms


def _ticks(limits_ms: tuple[int, int], scale: TimeScale) -> Iterator[Tick]:
    """Yield ticks at multiples of a step: the shortest of _TICK_STEPS_S for MAX_TICKS, or several weeks."""
    from_ms, to_ms = limits_ms
    least_step_s = (to_ms - from_ms) / (1000 * MAX_TICKS)
    weeks_s = ceil(least_step_s / _WEEK_S) * _WEEK_S
    step_ms = 1000 * next((step_s for step_s in _TICK_STEPS_S if step_s >= least_step_s), weeks_s)
    for at_ms in range(ceil(from_ms / step_ms) * step_ms, to_ms, step_ms):
        yield Tick(scale.x(at_ms), iso(at_ms), utc_time(at_ms))
