"""What stands in a command of a scenario: words and `name=value` options, times as `3s`, ids as `@m1`."""

import re
import shlex

from state.messages import Protocol

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000}


def split(command: str) -> tuple[list[str], dict[str, str]]:
    """The words of a command and its options."""
    words, options = [], {}
    for part in shlex.split(command):
        name, equals, value = part.partition("=")
        if equals:
            options[name] = value
        else:
            words.append(part)
    return words, options


def milliseconds(text: str) -> int:
    """`3s`, `250ms`, `5m` or a bare number of milliseconds."""
    match = re.fullmatch(r"(-?\d+)(ms|s|m)?", text)
    if match is None:
        raise ValueError(f"{text!r} is no time")
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]


def time_text(at_ms: int) -> str:
    """The other way round, as short as it is exact."""
    return f"{at_ms // 1_000}s" if at_ms % 1_000 == 0 else f"{at_ms}ms"


def protocols(text: str) -> list[Protocol]:
    """`range:meta,roundrobin`: names, each with metadata or without."""
    pairs = [part.partition(":") for part in text.split(",") if part]
    return [Protocol(name, metadata.encode()) for name, _, metadata in pairs]
