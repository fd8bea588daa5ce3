"""Times and durations as text."""

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
