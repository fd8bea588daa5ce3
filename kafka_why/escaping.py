"""Escaping of clients' strings (group ids, names, reasons) for a terminal. Unprintable characters are
escaped, because a control character could move the cursor, hide lines or add some.
"""

import re
from collections.abc import Iterable

_NOT_PRINTABLE = re.compile(r"[^ -~]")


class VisibleText(str):
    """Text without unprintable characters, except the line feeds between its own lines."""

    __slots__ = ()

    def __str__(self) -> "VisibleText":
        """Return the text itself, so that an error with such a message keeps its lines."""
        return self


def visible(text: str) -> VisibleText:
    """Return the text on one line, with unprintable characters escaped as in Python's strings.

    A `VisibleText` is returned unchanged.
    """
    if isinstance(text, VisibleText):
        return text
    return VisibleText(text if text.isprintable() else _NOT_PRINTABLE.sub(_escaped, text))


def visible_text(lines: Iterable[str], between: str = "\n") -> VisibleText:
    """Join lines, each escaped by `visible`, so that a client's line feed starts no new line."""
    return VisibleText(between.join(map(visible, lines)))


def visible_lines(text: str) -> VisibleText:
    """Escape a text whose line feeds are our own, such as a traceback."""
    return visible_text(text.split("\n"))


def _escaped(found: re.Match[str]) -> str:
    character = found.group()
    return character if character.isprintable() else character.encode("unicode_escape").decode()
