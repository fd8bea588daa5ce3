"""Outcomes as a picture: one panel per strategy, one bar per member, gained partitions in another colour."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from insight.assign.compare import StrategyResult
from insight.why.names import Names

MAX_MEMBERS = 40
_COLUMNS = 2
_PANEL_INCHES, _BAR_INCHES, _MARGIN_INCHES = 5.4, 0.26, 1.0
_DPI = 130
_INK, _FAINT, _KEPT, _GAINED = "#263238", "#90a4ae", "#5b9279", "#f4a259"


def draw(outcomes: Sequence[StrategyResult], names: Names, path: Path) -> None:
    """Write a PNG with at most the first MAX_MEMBERS members. Raises OSError."""
    columns = min(len(outcomes), _COLUMNS)
    lines = -(-len(outcomes) // columns)
    bars = min(max(len(outcome.shares) for outcome in outcomes), MAX_MEMBERS)
    height = lines * (_MARGIN_INCHES + _BAR_INCHES * bars) + 0.4
    figure = Figure(figsize=(_PANEL_INCHES * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, sharex=True, squeeze=False).flat
    for axes in panels[len(outcomes) :]:
        axes.set_visible(False)
    for axes, outcome in zip(panels, outcomes, strict=False):
        _panel(axes, outcome, names)
    if any(outcome.moves is not None for outcome in outcomes):
        handles = [Patch(color=_KEPT, label="kept"), Patch(color=_GAINED, label="gained")]
        figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path, dpi=_DPI, format="png")


def _panel(axes: Axes, outcome: StrategyResult, names: Names) -> None:
    shares = outcome.shares[:MAX_MEMBERS]
    moves = {} if outcome.moves is None else {m.member_id: m for m in outcome.moves.members}
    gained = [
        sum(map(len, moves[share.member_id].gained.values())) if share.member_id in moves else 0
        for share in shares
    ]
    kept = [share.partitions - new for share, new in zip(shares, gained, strict=True)]
    rows = range(len(shares))
    axes.barh(rows, kept, color=_KEPT, height=0.7)
    axes.barh(rows, gained, left=kept, color=_GAINED, height=0.7)
    for row, share in enumerate(shares):
        label = str(share.partitions) if share.weight is None else f"{share.partitions} ({share.weight:,})"
        axes.text(share.partitions, row, f" {label}", va="center", fontsize=7, color=_INK)
    axes.set_yticks(rows, [names.of(share.member_id).replace("$", r"\$") for share in shares])
    axes.invert_yaxis()
    axes.tick_params(labelsize=8, labelcolor=_INK, color=_FAINT, length=0, labelbottom=True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(_FAINT)
    moved = "" if outcome.moves is None else f": {outcome.moves.moved} moved"
    axes.set_title(f"{outcome.strategy}{moved}", loc="left", fontsize=10, fontweight="bold", color=_INK)
