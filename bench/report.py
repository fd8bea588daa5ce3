"""Figures with their lines and goals, the tables of them, and their JSON."""

import sys
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec
from msgspec import Struct

_DIGITS = 3


class Limit(Struct, frozen=True, omit_defaults=True):
    """A bound of a figure, in its unit, or of its ratio to the figure beside it."""

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
    """A result: our values, one a repeat, and in the same unit those of the system `beside_is`, if there is
    one. `line` is what has to be reached, `goal` what is wanted. Each is None if there is none.
    """

    what: str
    unit: str
    ours: Sequence[float]
    beside: Sequence[float] = ()
    beside_is: str = ""
    line: Limit | None = None
    goal: Limit | None = None

    @property
    def median(self) -> float:
        return median(self.ours)

    @property
    def ratio(self) -> float | None:
        """Our median divided by the other system's, None without one."""
        beside = median(self.beside) if self.beside else 0.0
        return self.median / beside if beside else None

    def keeps(self, limit: Limit | None) -> bool | None:
        """Return True if the figure is within the limit, None if there is none."""
        if limit is None:
            return None
        value = self.ratio if limit.of_ratio else self.median
        if value is None:
            return False
        return value >= limit.amount if limit.at_least else value <= limit.amount

    @property
    def verdict(self) -> str:
        """`goal` or `line` if that is reached, `NOT` if the line is not, empty without a line."""
        if self.line is None:
            return ""
        if not self.keeps(self.line):
            return "NOT"
        return "goal" if self.keeps(self.goal) else "line"

    def cells(self) -> list[str]:
        """Return the cells of this figure's row: what, ours, beside, ratio, line, goal, verdict."""
        return [
            self.what,
            _values(self.ours, self.unit),
            f"{_values(self.beside, self.unit)} ({self.beside_is})" if self.beside else "",
            "" if self.ratio is None else f"{number(self.ratio)}x",
            _limit(self.line, self.unit),
            _limit(self.goal, self.unit),
            self.verdict,
        ]


HEAD = ["what", "ours", "beside", "ratio", "line", "goal", "reached"]


class Series(Struct, frozen=True):
    """A line of a plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


class Plot(Struct, frozen=True, omit_defaults=True):
    """A picture to draw. `guide` adds the line of n log n through the last point of each series."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    guide: bool = False


class Measured(Struct, frozen=True, omit_defaults=True):
    """The results of a row. `notes` are sentences about the method, with numbers of this run. `seconds` is
    the duration.
    """

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
