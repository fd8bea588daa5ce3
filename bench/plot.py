"""Draws the pictures of docs/benchmarks.md."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from bench.report import Plot, Series

_COLOURS = ("#d1495b", "#2e6f9e", "#5b9279", "#c9a227", "#6b4e9b")
_MAX_MARKED = 40  # points; a longer line has no marker at each point


def draw(plot: Plot, path: Path) -> None:
    """Write a PNG. Raises OSError."""
    figure = Figure(figsize=(8.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Axes = figure.add_subplot()
    for series, colour in zip(plot.series, _COLOURS, strict=False):
        marker = "" if len(series.x) > _MAX_MARKED else "o"
        axes.plot(series.x, series.y, color=colour, marker=marker, markersize=4, label=series.name)
        if plot.guide:
            axes.plot(series.x, n_log_n(series), color=colour, linestyle=":", linewidth=1)
    if plot.guide:
        axes.plot([], [], color="grey", linestyle=":", linewidth=1, label="n log n through the last point")
    if plot.log_x:
        axes.set_xscale("log", base=2 if plot.guide else 10)
        axes.xaxis.set_major_formatter(LogFormatter())
    if plot.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    else:
        axes.set_ylim(bottom=0)
    if plot.guide:
        sizes = plot.series[0].x
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes])
    axes.set_title(plot.title, fontsize=11)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=9)
    figure.savefig(path, dpi=110)


def n_log_n(series: Series) -> Sequence[float]:
    """Return n log n through the last point of a series. A series that is above it grows more slowly."""
    last_n_log_n = series.x[-1] * math.log(series.x[-1])
    return [series.y[-1] * x * math.log(x) / last_n_log_n for x in series.x]
