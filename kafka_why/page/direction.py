"""Text from strangers keeps its place: neither control characters nor letters that are written from right to
left reorder what is beside them.

Names are parts of sentences, of titles and of texts in pictures, where no element can be put around them. So
Unicode's isolates are, and they are where a template writes a text (`finalize` of its environment).
"""

import re

from markupsafe import Markup, escape

from kafka_why.escaping import visible_lines

_RIGHT_TO_LEFT = r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
_RUN = re.compile(rf"{_RIGHT_TO_LEFT}(?:[{_RIGHT_TO_LEFT[1:-1]} ]*{_RIGHT_TO_LEFT})?")
_ISOLATE, _END = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"
_SPACES = re.compile("([\N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}])")


def isolated(text: str) -> str:
    """Return the text with right-to-left runs isolated, and what is not printable escaped."""
    if text.isascii():
        return visible_lines(text)
    parts = _SPACES.split(text)
    shown = "".join(part if _SPACES.fullmatch(part) else visible_lines(part) for part in parts)
    return _RUN.sub(rf"{_ISOLATE}\g<0>{_END}", shown)


def finalize(value: object) -> object:
    """Return what a template writes for a value. Markup has been through this."""
    return isolated(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def exact(text: str) -> Markup:
    """Return the text as it is, for a field that is sent back."""
    return escape(text)
