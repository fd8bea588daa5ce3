"""Tables in the format of kafka-consumer-groups: columns padded with blanks, no rules."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka_why.escaping import VisibleText, visible, visible_text

MISSING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, and the minimum width in characters; wider values widen the column."""

    heading: str
    min_width: int = 15


def render_table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> VisibleText:
    """Format the heading and the rows, one per line, without trailing blanks.

    None is shown as `-`, and unprintable characters are escaped.
    """
    cells = [[MISSING if value is None else visible(str(value)) for value in row] for row in rows]
    lines = [[column.heading for column in columns], *cells]
    widths = [
        max(column.min_width, *(len(line[number]) for line in lines)) for number, column in enumerate(columns)
    ]
    return visible_text(_padded(line, widths) for line in lines)


def _padded(line: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
