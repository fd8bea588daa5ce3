"""Numbers in text from outside: command lines, files, settings, headers and the addresses of HTTP requests.

Python's `int` and `float` accept more than other programs do: digits of every script, underscores, blanks,
`inf` and `nan`, and any length.
"""

import re

INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_WHOLE = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>[0-9]+)")  # without leading zeros, which may be many
# Seconds of this size still fit every timer.
_DECIMAL = re.compile(r"[+-]?([0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9})")
_MAX_DIGITS = len(str(INT64_MAX))
_MAX_SHOWN_CHARS = 40


class OutOfRange(ValueError):
    """The error of a number that is too small or too great."""


def parse_whole_number(text: str, at_least: int = INT64_MIN, at_most: int = INT64_MAX) -> int:
    """Parse ASCII digits with an optional sign to a number from `at_least` to `at_most`.

    Raises OutOfRange, or ValueError if the text is no whole number.
    """
    match = _WHOLE.fullmatch(text)
    if match is None:
        raise ValueError(f"{shortened(text)!r} is not a whole number")
    sign, digits = match.groups()
    if len(digits) > _MAX_DIGITS or not at_least <= int(sign + digits) <= at_most:
        raise OutOfRange(f"{shortened(text)} is not between {at_least} and {at_most}")
    return int(sign + digits)


def is_whole_number(text: str) -> bool:
    """Return True if the text consists of ASCII digits."""
    return text.isascii() and text.isdecimal()


def parse_decimal(text: str) -> float:
    """Parse up to nine ASCII digits before and after a point, with an optional sign. Raises ValueError."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"{shortened(text)!r} is not a number such as 2 or 0.5")
    return float(text)


def shortened(text: str) -> str:
    """Return the text for an error message, cut if it is long."""
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 3]}..."
