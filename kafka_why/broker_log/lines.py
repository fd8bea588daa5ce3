"""Parses a line of a broker's log, in any layout: its time, its broker and its message.

In any layout, the message of a group coordinator begins with a prefix of Kafka's, such as `[GroupCoordinator
1]: `. The time is before the prefix. Only the logger and the thread may follow the message. In a JSON line
the message is a field.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

MARK = b"[Group"
"""Every line with a message about a group contains these bytes."""
MAX_LINE_BYTES = 32 * 1024
"""A longer line is cut here."""

ToMs = Callable[[datetime], int]
"""A function that converts a time without a zone to milliseconds since the epoch."""

_NESTED_AT_MOST = 3
_PREFIX = re.compile(
    r"\[Group(?:Coordinator (?:id=)?|MetadataManager brokerId=)(?P<broker>-?\d+)"
    r"(?: topic=__consumer_offsets partition=\d+)?\]:? "
)
# A layout may append the logger and the thread to the message: ` (kafka.coordinator.group.GroupCoordinator)
# [thread]`.
_LOGGER = re.compile(r" \([\w.$]*(?:Group\w*|CoordinatorRuntime|ClassicGroup)\$?\)(?: \[[^\[\]]{1,200}\])?$")
_TIME = re.compile(
    r"(?<!\d)(?P<day>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?(?!\d)"
)
_MESSAGES = ("message", "msg", "log")
_TIMES = ("@timestamp", "timestamp", "time", "ts", "timeMillis", "instant")
_SECONDS_MAX = 100_000_000_000  # a larger number is one of milliseconds


class LogLine(NamedTuple):
    """A message of a group coordinator."""

    message: str
    broker: int
    at_ms: int | None  # None if the line has no readable time
    has_zone: bool  # of the time


def parse_line(line: bytes, to_ms: ToMs) -> LogLine | None:
    """Return the coordinator's message in `line`, or None if it has none."""
    return _parse(line[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r\n"), to_ms, _NESTED_AT_MOST)


def _parse(text: str, to_ms: ToMs, nested: int) -> LogLine | None:
    found = _PREFIX.search(text)
    if found is None:
        return None
    brace = text.find('{"', 0, found.start())
    if brace >= 0 and nested and text.rstrip().endswith("}"):
        fields = _json(text[brace:])
        if fields is not None:
            return _parse_json(fields, text[:brace], to_ms, nested)
    at_ms, has_zone = _time_in(text[: found.start()], to_ms)
    message = _LOGGER.sub("", text[found.end() :], count=1)
    return LogLine(message, int(found["broker"]), at_ms, has_zone)


def _json(text: str) -> dict[str, Any] | None:
    try:
        fields = msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        return None
    return fields if isinstance(fields, dict) else None


def _parse_json(fields: dict[str, Any], head: str, to_ms: ToMs, nested: int) -> LogLine | None:
    texts = (text for name in _MESSAGES if isinstance(text := fields.get(name), str))
    inner = next(
        (line for text in texts if (line := _parse(text.rstrip("\r\n"), to_ms, nested - 1)) is not None), None
    )
    if inner is None or inner.has_zone:
        return inner
    # A time with a zone in another field takes precedence.
    values = (fields[name] for name in _TIMES if name in fields)
    times = [found for value in values if (found := _time_of(value, to_ms))[0] is not None]
    times.append(_time_in(head, to_ms))
    at_ms, has_zone = next((found for found in times if found[1]), times[0])
    return (
        inner
        if at_ms is None or (not has_zone and inner.at_ms is not None)
        else inner._replace(at_ms=at_ms, has_zone=has_zone)
    )


def _time_of(value: Any, to_ms: ToMs) -> tuple[int | None, bool]:
    if isinstance(value, str):
        return _time_in(value, to_ms)
    if isinstance(value, int | float):
        return int(value * 1000 if value < _SECONDS_MAX else value), True
    if isinstance(value, dict) and isinstance(seconds := value.get("epochSecond"), int):
        nanos = value.get("nanoOfSecond", 0)
        return seconds * 1000 + (nanos // 1_000_000 if isinstance(nanos, int) else 0), True
    return None, False


def _time_in(text: str, to_ms: ToMs) -> tuple[int | None, bool]:
    # The first time with a zone, else the last time.
    last: re.Match[str] | None = None
    for last in _TIME.finditer(text):
        if last["zone"]:
            break
    if last is None:
        return None, False
    fraction = (last["fraction"] or "").ljust(3, "0")[:3]
    zone = (last["zone"] or "").replace("Z", "+00:00")
    try:
        at = datetime.fromisoformat(f"{last['day']}T{last['time']}.{fraction}{zone}")
        return (to_ms(at) if at.tzinfo is None else _epoch_ms(at)), at.tzinfo is not None
    except (ValueError, OverflowError, OSError):
        return None, False


def _epoch_ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
