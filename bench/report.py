"""Figures, their tables, and the same figures as JSON."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

_ROW = "{:<48}{:>14}{:>14}{:>10}   {}"
_DIGITS = 3


@dataclass(frozen=True)
class Figure:
    """One result: our figure, and in the same unit the other side's figure, None if there is none.

    `at_most` and `ratio_at_most` are limits, None if there is none.
    """

    what: str
    unit: str
    ours: float
    beside: float | None = None
    at_most: float | None = None
    ratio_at_most: float | None = None

    @property
    def ratio(self) -> float | None:
        """Return our figure divided by the other side's, None without the latter."""
        return self.ours / self.beside if self.beside else None

    @property
    def held(self) -> bool | None:
        """Return whether the limits are kept, None if there are none."""
        if self.at_most is None and self.ratio_at_most is None:
            return None
        ratio_held = self.ratio_at_most is None or (
            self.ratio is not None and self.ratio <= self.ratio_at_most
        )
        return ratio_held and (self.at_most is None or self.ours <= self.at_most)

    def text(self) -> str:
        """Return a row of a table."""
        return _ROW.format(
            f"  {self.what}",
            _amount(self.ours, self.unit),
            "" if self.beside is None else _amount(self.beside, self.unit),
            "" if self.ratio is None else _number(self.ratio),
            _verdict(self),
        ).rstrip()


@dataclass(frozen=True)
class Table:
    """Figures that belong together. `beside` names the other side."""

    title: str
    beside: str
    figures: Sequence[Figure]

    @property
    def held(self) -> bool:
        """Whether all limits are kept."""
        return all(figure.held is not False for figure in self.figures)

    def text(self) -> str:
        """Return the table as text."""
        head = _ROW.format(self.title, "ours", self.beside, "ratio", "").rstrip()
        return "\n".join([head, *(figure.text() for figure in self.figures)])


def as_json(tables: Sequence[Table]) -> str:
    """Return the tables as JSON: a list of objects, one per figure."""
    return json.dumps(
        [
            {"table": table.title, "beside_is": table.beside, **asdict(figure), "ratio": figure.ratio}
            for table in tables
            for figure in table.figures
        ],
        indent=1,
    )


def say(text: str) -> None:
    """Print the progress of the run."""
    print(text, file=sys.stderr, flush=True)


def _verdict(figure: Figure) -> str:
    if figure.held is None:
        return ""
    lines = []
    if figure.at_most is not None:
        lines.append(f"at most {_amount(figure.at_most, figure.unit)}")
    if figure.ratio_at_most is not None:
        lines.append(f"ratio at most {_number(figure.ratio_at_most)}")
    return f"{', '.join(lines)}: {'held' if figure.held else 'NOT HELD'}"


def _amount(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}"


def _number(value: float) -> str:
    """Format a number with three significant digits, or all digits before the point."""
    if value == 0 or abs(value) >= 10 ** (_DIGITS - 1):
        return f"{value:,.0f}"
    return f"{value:.{_DIGITS}g}"
