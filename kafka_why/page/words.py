"""Numbers and times in words, for people. Durations are as in `why`."""

from datetime import UTC, datetime

from kafka_why.why.wording import duration_text


def thousands(number: int) -> str:
    """Return a number such as `48 210`, with thin spaces that do not break a line."""
    return f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def ago(at_ms: int | None, now_ms: int) -> str:
    """Return the age of a time, such as `3 min 5 s ago`, or "never" for None."""
    return "never" if at_ms is None else f"{duration_text(max(now_ms - at_ms, 0))} ago"


def iso(at_ms: int) -> str:
    """Return a time such as `2026-11-23T20:31:37.120Z`, which the page's script shows in the reader's
    zone.
    """
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_time(at_ms: int) -> str:
    """Return a time such as `20:31:37`, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%S")
