"""A report as a picture: the group's states over time, the rebalances, and a lane for each member."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.dates as mdates
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from insight.why.clock import Clock, duration_text
from insight.why.model import Rebalance
from insight.why.names import Names
from insight.why.report import Report
from insight.why.state_timelines import MemberState, Span, StateTimeline
from insight.why.text import cause_text
from state.kafka.classic_group import GroupState
from state.kafka.consumer_group import ConsumerGroupState
from state.kafka.history import BY_EPOCHS, NOT_READY

MAX_LANES = 30
_MAX_LABELS = 12
_LABEL_ROWS, _LABEL_STEP = (
    -0.75,
    0.55,
)  # the y of the first label above the group's lane, and the step to the next
_DPI = 130
_WIDTH_INCHES = 12.0
_LANE_INCHES = 0.34
_MARGIN_INCHES = 2.2
_BETWEEN_INCHES = 0.7
_LEAST_LABEL_SHARE = 0.02  # of the width: a narrower span has no number in it
_NAME_CHARS = 28

_INK, _FAINT = "#263238", "#90a4ae"
_DASHED = (0, (2, 2))
_COLOURS: dict[str, str] = {
    GroupState.EMPTY: "#eceff1",
    GroupState.PREPARING_REBALANCE: "#f4a259",
    GroupState.COMPLETING_REBALANCE: "#f7d08a",
    GroupState.STABLE: "#5b9279",
    MemberState.AWAITED: "#d1495b",
    MemberState.JOINED: "#f4a259",
    MemberState.ASSIGNING: "#f7d08a",
    MemberState.HOLDS: "#8fcb9b",
    ConsumerGroupState.ASSIGNING: "#f4a259",
    ConsumerGroupState.RECONCILING: "#f7d08a",
    NOT_READY: "#f4a259",
    MemberState.REVOKING: "#d1495b",
    MemberState.WAITING: "#f7d08a",
    MemberState.AWAY: "#b0bec5",
}
_OF_CONSUMERS = (MemberState.HOLDS, MemberState.REVOKING, MemberState.WAITING, MemberState.AWAY)
_CLASSIC = (MemberState.AWAITED, MemberState.JOINED, MemberState.ASSIGNING, MemberState.HOLDS)


class Panel(NamedTuple):
    """A report with its lanes. `title` comes before the figures in the panel's title; default: the group."""

    report: Report
    states: Sequence[Span]
    members: Sequence[StateTimeline]
    title: str = ""


def draw(
    report: Report, states: Sequence[Span], members: Sequence[StateTimeline], path: Path, clock: Clock
) -> None:
    """Write a PNG. Spans are cut to the time of the report. Raises OSError."""
    draw_panels([Panel(report, states, members)], path, clock)


def draw_panels(panels: Sequence[Panel], path: Path, clock: Clock) -> None:
    """Write a PNG with one panel below the other, all with the same time limits. Raises OSError."""
    limits = [_limits(panel.report, panel.states) for panel in panels]
    limits_ms = min(begin_ms for begin_ms, _ in limits), max(end_ms for _, end_ms in limits)
    heights = [_lines_of(panel, limits_ms) for panel in panels]
    height = _MARGIN_INCHES + _LANE_INCHES * sum(heights) + _BETWEEN_INCHES * (len(panels) - 1)
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    FigureCanvasAgg(figure)
    places = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights).flat
    for axes, panel in zip(places, panels, strict=True):
        _draw_panel(axes, panel, limits_ms, clock)
    _legends(figure, {panel.report.group_type for panel in panels})
    figure.savefig(path, dpi=_DPI, format="png")


def _seen(panel: Panel, limits_ms: tuple[int, int]) -> list[StateTimeline]:
    """Return the lanes with a span within the limits."""
    return [lane for lane in panel.members if any(_cut(span, *limits_ms) for span in lane.spans)]


def _lines_of(panel: Panel, limits_ms: tuple[int, int]) -> float:
    """Return the height of a panel in lanes."""
    labels = min(len(panel.report.rebalances), _MAX_LABELS)
    return min(len(_seen(panel, limits_ms)), MAX_LANES) + 1 + _LABEL_STEP * labels


def _draw_panel(axes: Axes, panel: Panel, limits_ms: tuple[int, int], clock: Clock) -> None:
    seen = _seen(panel, limits_ms)
    shown = seen[-MAX_LANES:]
    names = Names((lane.member_id for lane in panel.members), panel.report.clients)
    for span in panel.states:
        _bar(axes, 0, span, limits_ms, height=0.8)
    for row, lane in enumerate(shown, start=1):
        for span in lane.spans:
            _bar(axes, row + 0.4, span, limits_ms, height=0.62)
        gone_ms = lane.spans[-1].to_ms
        if gone_ms is not None:
            axes.plot(_days(gone_ms), row + 0.4, marker="x", markersize=6, color=_INK, clip_on=True)
    _mark_rebalances(axes, panel.report, names, len(shown), limits_ms)
    _dress(axes, [names.of(lane.member_id) for lane in shown], limits_ms, clock)
    _title(axes, panel, len(seen) - len(shown))


def _limits(report: Report, states: Sequence[Span]) -> tuple[int, int]:
    """Return the time limits: from the beginning of the report to its end, with a margin at both ends."""
    begin_ms = report.from_ms if report.since_ms is None else max(report.from_ms, report.since_ms)
    ends = [span.to_ms or span.from_ms for span in states]
    # If the group has been stable for long, its last hours would hide what happened before.
    last_ms = max([report.state_since_ms, begin_ms, *ends])
    busy_ms = max(last_ms - begin_ms, 1_000)
    end_ms = max(min(report.now_ms, last_ms + busy_ms // 4), last_ms)
    room_ms = max((end_ms - begin_ms) // 100, 10)
    return begin_ms - room_ms, end_ms + room_ms


def _cut(span: Span, begin_ms: int, end_ms: int) -> tuple[int, int] | None:
    from_ms, to_ms = max(span.from_ms, begin_ms), min(end_ms if span.to_ms is None else span.to_ms, end_ms)
    return (from_ms, to_ms) if from_ms < to_ms else None


def _days(at_ms: int) -> float:
    """Return a time as matplotlib counts it, in days."""
    return at_ms / 86_400_000


def _bar(axes: Axes, row: float, span: Span, limits_ms: tuple[int, int], height: float) -> None:
    cut = _cut(span, *limits_ms)
    if cut is None:
        return
    begin, end = _days(cut[0]), _days(cut[1])
    axes.barh(row, end - begin, left=begin, height=height, color=_COLOURS.get(span.what, _FAINT), linewidth=0)
    wide = (cut[1] - cut[0]) / (limits_ms[1] - limits_ms[0]) > _LEAST_LABEL_SHARE
    if span.partitions is not None and wide:
        middle = (begin + end) / 2
        axes.text(middle, row, str(span.partitions), ha="center", va="center", fontsize=8, color=_INK)


def _mark_rebalances(
    axes: Axes, report: Report, names: Names, lanes: int, limits_ms: tuple[int, int]
) -> None:
    """Draw a line at the beginning of each rebalance; the longest have a label above, each in its own row."""
    within = [r for r in report.rebalances if limits_ms[0] <= r.began_ms]
    longest = sorted(within, key=lambda r: -(r.duration_ms if r.duration_ms is not None else 1 << 60))
    named = sorted(longest[:_MAX_LABELS], key=lambda r: -r.began_ms)
    heights = {r.number: _LABEL_ROWS - _LABEL_STEP * level for level, r in enumerate(named)}
    for r in within:
        top = heights.get(r.number, _LABEL_ROWS + _LABEL_STEP / 2)
        axes.vlines(
            _days(r.began_ms), top, lanes + 1, colors=_INK, linewidth=0.7, linestyles=_DASHED, alpha=0.6
        )
    for r in named:
        _name(axes, r, heights[r.number], names, limits_ms)
    axes.set_ylim(lanes + 1, _LABEL_ROWS - _LABEL_STEP * len(named))


def _name(axes: Axes, r: Rebalance, height: float, names: Names, limits_ms: tuple[int, int]) -> None:
    took = "" if r.duration_ms is None else f" ({duration_text(r.duration_ms)})"
    on_the_right = (r.began_ms - limits_ms[0]) / (limits_ms[1] - limits_ms[0]) > 0.6
    axes.annotate(
        _plain(f"#{r.number} {cause_text(r, names)}{took}"),
        (_days(r.began_ms), height),
        xytext=(-4 if on_the_right else 4, 0),
        textcoords="offset points",
        ha="right" if on_the_right else "left",
        va="center",
        fontsize=8,
        color=_INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.9},
        annotation_clip=False,
    )


def _dress(axes: Axes, lanes: Sequence[str], limits_ms: tuple[int, int], clock: Clock) -> None:
    axes.set_xlim(_days(limits_ms[0]), _days(limits_ms[1]))
    axes.set_yticks(
        [0, *(row + 1.4 for row in range(len(lanes)))], ["group", *(_plain(_short(lane)) for lane in lanes)]
    )
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=_INK)
    axes.tick_params(axis="x", labelsize=8, labelcolor=_INK, color=_FAINT)
    zone = clock.at(limits_ms[0]).tzinfo
    locator = mdates.AutoDateLocator(tz=zone, minticks=5)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    formatter = mdates.ConciseDateFormatter(locator, tz=zone)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(formatter)
    axes.grid(axis="x", color=_FAINT, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
    axes.xaxis.get_offset_text().set(fontsize=8, color=_INK)
    axes.set_title(f"times in {clock.zone(limits_ms[0])}", loc="right", fontsize=8, color=_INK, pad=10)


def _short(name: str) -> str:
    return name if len(name) <= _NAME_CHARS else f"{name[: _NAME_CHARS - 1]}…"


def _plain(text: str) -> str:
    """Escape dollar signs, which would begin a formula."""
    return text.replace("$", r"\$")


def _title(axes: Axes, panel: Panel, hidden: int) -> None:
    figures = panel.report.summary
    count = f"{figures.rebalances} rebalance{'' if figures.rebalances == 1 else 's'}"
    title = (
        f"{panel.title or panel.report.group_id}: {count}, {duration_text(figures.not_stable_ms)} not Stable"
    )
    if hidden:
        title += f"; the {MAX_LANES} members that came last, {hidden} more are not shown"
    axes.set_title(_plain(title), loc="left", fontsize=12, fontweight="bold", color=_INK, pad=10)


def _legends(figure: Any, group_types: set[str]) -> None:
    """Draw the legends of the states that groups of these types have."""
    of_groups: dict[str, None] = {}
    of_members: dict[str, None] = {}
    for group_type in sorted(group_types):
        of_consumers = group_type in BY_EPOCHS
        of_groups |= dict.fromkeys(ConsumerGroupState if of_consumers else GroupState)
        of_groups |= {NOT_READY: None} if group_type == "streams" else {}
        of_members |= dict.fromkeys(_OF_CONSUMERS if of_consumers else _CLASSIC)
    handles = [Patch(color=_COLOURS[what], label=f"group: {what}") for what in of_groups]
    handles += [Patch(color=_COLOURS[what], label=f"member: {what}") for what in of_members]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=4, fontsize=8, frameon=False, labelcolor=_INK
    )
