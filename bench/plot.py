"""Heartbeat latencies as a picture: the share of heartbeats answered within a time, ours and Kafka's."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.heartbeats import Beats
from bench.sides import Sides

_COLOURS = Sides(ours="#d1495b", kafkas="#5b9279")
_NAMES = Sides(ours="through the gateway", kafkas="Kafka's own")
_STYLES = ("-", "--", ":")


def draw_latencies(beats_of: Mapping[int, Sides[Beats]], path: Path) -> None:
    """Write a PNG; `beats_of` has the measurements by the number of groups. Raises OSError."""
    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Axes = figure.add_subplot()
    for (groups, beats), style in zip(beats_of.items(), _STYLES, strict=True):
        for side, colour, name in zip(beats, _COLOURS, _NAMES, strict=True):
            latencies_ms = [seconds * 1e3 for seconds in side.singles_s]
            axes.ecdf(latencies_ms, color=colour, linestyle=style, label=f"{name}, groups: {groups:,}")
    axes.set_xscale("log")
    axes.set_xlabel("ms from a heartbeat to its response, one at a time")
    axes.set_ylabel("share answered")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=130)
