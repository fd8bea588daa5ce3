"""Figures with their limits, their tables, and their JSON."""

import sys
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
from msgspec import Struct, field

_DIGITS = 3


class Limit(Struct, frozen=True, omit_defaults=True):
    """A bound for a figure's median, in its unit, or with `of_ratio` for its ratio to the other system's."""

    amount: float
    at_least: bool = False
    of_ratio: bool = False


def at_most(amount: float) -> Limit:
    return Limit(amount)


def at_least(amount: float) -> Limit:
    return Limit(amount, at_least=True)


def ratio_at_most(amount: float) -> Limit:
    return Limit(amount, of_ratio=True)


def ratio_at_least(amount: float) -> Limit:
    return Limit(amount, at_least=True, of_ratio=True)


class Figure(Struct, frozen=True, omit_defaults=True):
    """A result: our values in `ours`, one per repeat, and the limits for them.

    If another system was measured too, `reference` has its values. A value beyond `required` is a failure.
    `target` is the stricter limit that is aimed at. Tables and JSON call them beside, line and goal.
    """

    what: str
    unit: str
    ours: Sequence[float]
    reference: Sequence[float] = field(default=(), name="beside")
    reference_name: str = field(default="", name="beside_is")
    required: Limit | None = field(default=None, name="line")
    target: Limit | None = field(default=None, name="goal")

    @property
    def median(self) -> float:
        return median(self.ours)

    @property
    def ratio(self) -> float | None:
        """Our median divided by the other system's, or None if only ours was measured or the other is 0."""
        reference = median(self.reference) if self.reference else 0.0
        return self.median / reference if reference else None

    def keeps(self, limit: Limit | None) -> bool | None:
        """Return True if the figure is within the limit, or None if `limit` is None.

        A figure without a ratio is not within a limit of the ratio.
        """
        if limit is None:
            return None
        value = self.ratio if limit.of_ratio else self.median
        if value is None:
            return False
        return value >= limit.amount if limit.at_least else value <= limit.amount

    @property
    def verdict(self) -> str:
        """The stricter limit that is kept: `goal` for `target`, else `line` for `required`, else `NOT`.

        Empty if no limit is required.
        """
        if self.required is None:
            return ""
        if not self.keeps(self.required):
            return "NOT"
        return "goal" if self.keeps(self.target) else "line"

    def cells(self) -> list[str]:
        """Return the cells of this figure's row, in the order of HEAD."""
        return [
            self.what,
            _values(self.ours, self.unit),
            f"{_values(self.reference, self.unit)} ({self.reference_name})" if self.reference else "",
            "" if self.ratio is None else f"{number(self.ratio)}x",
            _limit(self.required, self.unit),
            _limit(self.target, self.unit),
            self.verdict,
        ]


HEAD = ["what", "ours", "beside", "ratio", "line", "goal", "reached"]


class Series(Struct, frozen=True):
    """A line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


class Plot(Struct, frozen=True, omit_defaults=True):
    """A plot to draw. `guide` adds a line of n log n through the last point of each series."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    guide: bool = False


class Measured(Struct, frozen=True, omit_defaults=True):
    """The results of a row. `notes` are sentences with numbers of this run, `seconds` is its duration."""

    row: str
    figures: Sequence[Figure]
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()
    seconds: float = 0.0
    machine: str = ""
    is_quick: bool = False
    table: Sequence[Sequence[str]] = ()


def text_table(figures: Iterable[Figure]) -> str:
    """Return the figures as a table for a terminal."""
    rows = [HEAD, *(figure.cells() for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def markdown_table(figures: Iterable[Figure]) -> str:
    """Return the figures as a table in Markdown."""
    return markdown([HEAD, *(figure.cells() for figure in figures)])


def markdown(table: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown. Its first line is the head."""
    head, *lines = table
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *lines))


def to_json(measured: Iterable[Measured]) -> bytes:
    """Return the results as JSON: a list with an object a row."""
    return msgspec.json.format(msgspec.json.encode(list(measured)), indent=1) + b"\n"


def from_json(text: bytes) -> list[Measured]:
    """Return the results that `to_json` wrote. Raises msgspec.DecodeError."""
    return msgspec.json.decode(text, type=list[Measured])


def say(text: str) -> None:
    """Print the progress of the run."""
    print(text, file=sys.stderr, flush=True)


def number(value: float) -> str:
    """Return a number with three significant digits, or all digits before the point."""
    if value == 0 or abs(value) >= 10 ** (_DIGITS - 1):
        return f"{value:,.0f}"
    return f"{value:.{_DIGITS}g}"


def _values(values: Sequence[float], unit: str) -> str:
    """Return the median and, of several values, the least and the greatest."""
    text = f"{number(median(values))} {unit}".rstrip()
    return f"{text} [{number(min(values))} to {number(max(values))}]" if len(values) > 1 else text


def _limit(limit: Limit | None, unit: str) -> str:
    if limit is None:
        return ""
    sign = "≥" if limit.at_least else "≤"
    return f"{sign} {number(limit.amount)}{'x' if limit.of_ratio else f' {unit}'.rstrip()}"
