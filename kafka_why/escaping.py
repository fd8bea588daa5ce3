"""Clients' strings for a terminal: group ids, names, reasons. What is not printable is escaped, because a
control character could move the cursor, hide lines or make others.
"""

import re
from collections.abc import Iterable

_NOT_PRINTABLE = re.compile(r"[^ -~]")


class VisibleText(str):
    """A text in which all but the line feeds between its own lines is printable."""

    __slots__ = ()

    def __str__(self) -> "VisibleText":
        """Return the text itself, so that an error with such a message keeps its lines."""
        return self


def visible(text: str) -> VisibleText:
    """Return the text on one line, with what is not printable escaped as in Python's strings.

    A `VisibleText` is returned as it is.
    """
    if isinstance(text, VisibleText):
        return text
    return VisibleText(text if text.isprintable() else _NOT_PRINTABLE.sub(_escaped, text))


def visible_text(lines: Iterable[str], between: str = "\n") -> VisibleText:
    """Join lines, or texts of several, each escaped by `visible`, so a client's line feed makes no line."""
    return VisibleText(between.join(map(visible, lines)))


def visible_lines(text: str) -> VisibleText:
    """Escape a text whose line feeds are our own, such as a traceback."""
    return visible_text(text.split("\n"))


def _escaped(found: re.Match[str]) -> str:
    character = found.group()
    return character if character.isprintable() else character.encode("unicode_escape").decode()
