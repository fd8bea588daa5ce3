"""`--since`: a time, or a duration before now."""

import re
from datetime import datetime

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
