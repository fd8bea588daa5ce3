"""Times and durations as text."""

import re
from datetime import UTC, datetime, tzinfo


def duration_text(ms: int) -> str:
    """`250 ms`, `61.2 s`, `12 min 5 s`, `5 h 3 min`."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    minutes, rest_ms = divmod(ms, 60_000)
    if minutes < 120:
        return f"{minutes} min {rest_ms // 1000} s"
    return f"{minutes // 60} h {minutes % 60} min"


class Clock:
    """Formats times in one zone; None is the machine's own."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone

    def at(self, at_ms: int) -> datetime:
        return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(self._zone)

    def time(self, at_ms: int) -> str:
        """`2026-11-21 03:11:07.120`."""
        return self.at(at_ms).isoformat(" ", "milliseconds")[:23]

    def zone(self, at_ms: int) -> str:
        """Return the zone's name at that time."""
        return self.at(at_ms).strftime("%Z")


# `--since`: a time, or a duration before now.


_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ms|min|s|m|h|d)"


def parse_since(text: str, now_ms: int) -> int:
    """Parse `2h`, `90m`, `1h30m`, or an ISO time such as `2026-11-21T03:00` (local unless it names its zone).

    Returns milliseconds since the epoch, for a duration at least 0. Raises ValueError.
    """
    if re.fullmatch(f"(?:{_PART})+", text):
        ago_ms = sum(float(number) * _UNIT_MS[unit] for number, unit in re.findall(_PART, text))
        return max(now_ms - int(ago_ms), 0)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is neither a duration such as 2h nor an ISO time") from error
