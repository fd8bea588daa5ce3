"""Numbers, times and strangers' strings as text of the page. Durations are as in `why`.

Characters of strangers' strings could reorder the text around them: they are control characters and letters
written from right to left. Names are parts of sentences, titles and texts in pictures, where no element can
enclose them. So they are enclosed in Unicode's isolates. `finalize` does that to every text that a template
writes, except for a form field that is sent back, which the filter `exact` only escapes.
"""

import re
from datetime import UTC, datetime

from markupsafe import Markup

from kafka_why.wording import duration_text, visible_lines


def thousands(number: int) -> str:
    """Return a number such as `48 210`, with narrow no-break spaces."""
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def ago(at_ms: int | None, now_ms: int) -> str:
    """Return a text such as `3 min 5 s ago`, or "never" for None."""
    return "never" if at_ms is None else f"{duration_text(max(now_ms - at_ms, 0))} ago"


def iso(at_ms: int) -> str:
    """Return a time such as `2026-11-23T20:31:37.120Z`.

    The page's script shows it in the reader's zone.
    """
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_time(at_ms: int) -> str:
    """Return a time such as `20:31:37`, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")


_RIGHT_TO_LEFT = r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
# From a right-to-left letter to the last one that only such letters and spaces separate from it.
_RIGHT_TO_LEFT_RUN = re.compile(rf"{_RIGHT_TO_LEFT}(?:[{_RIGHT_TO_LEFT[1:-1]} ]*{_RIGHT_TO_LEFT})?")
_ISOLATE, _END = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"
# Spaces of our own texts, which `visible_lines` would escape.
_OUR_SPACES = re.compile("([\N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}])")


def isolated(text: str) -> str:
    """Return the text with right-to-left runs isolated, and unprintable characters escaped."""
    if text.isascii():
        return visible_lines(text)
    parts = _OUR_SPACES.split(text)
    escaped = "".join(part if _OUR_SPACES.fullmatch(part) else visible_lines(part) for part in parts)
    return _RIGHT_TO_LEFT_RUN.sub(rf"{_ISOLATE}\g<0>{_END}", escaped)


def finalize(value: object) -> object:
    """Return the value as a template writes it. Markup is already finalized."""
    return isolated(value) if isinstance(value, str) and not isinstance(value, Markup) else value
