"""Clients' strings for a terminal: group ids, names, reasons. What is not printable is escaped, because a
control character could move the cursor, hide lines or make others.
"""

import re

_NOT_PRINTABLE = re.compile(r"[^ -~]")


def visible(text: str) -> str:
    """The text on one line, with what is not printable escaped as in Python's strings."""
    if text.isprintable():
        return text
    return _NOT_PRINTABLE.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """As `visible`, of a text in lines."""
    return "\n".join(map(visible, text.split("\n")))


def _escaped(found: re.Match[str]) -> str:
    character = found.group()
    return character if character.isprintable() else character.encode("unicode_escape").decode()
