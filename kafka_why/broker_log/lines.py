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

_MAX_JSON_LEVELS = 3
_PREFIX = re.compile(
    r"\[Group(?:Coordinator (?:id=)?|MetadataManager brokerId=)(?P<broker>-?\d+)"
    r"(?: topic=__consumer_offsets partition=\d+)?\]:? "
)
# A layout may append the logger and the thread to the message: ` (kafka.coordinator.group.GroupCoordinator)
# [thread]`.
_LOGGER_SUFFIX = re.compile(
    r" \([\w.$]*(?:Group\w*|CoordinatorRuntime|ClassicGroup)\$?\)(?: \[[^\[\]]{1,200}\])?$"
)
_TIME = re.compile(
    r"(?<!\d)(?P<day>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?(?!\d)"
)
# The names that fields of JSON lines have for the message and for the time.
_MESSAGE_FIELDS = ("message", "msg", "log")
_TIME_FIELDS = ("@timestamp", "timestamp", "time", "ts", "timeMillis", "instant")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MAX = 100_000_000_000  # a larger number is one of milliseconds


class LogLine(NamedTuple):
    """A message of a group coordinator."""

    message: str
    broker: int
    at_ms: int | None  # None if the line has no readable time
    has_zone: bool  # True if the line's time names its zone


class _Time(NamedTuple):
    """A time in a line."""

    at_ms: int | None  # None if it cannot be read
    has_zone: bool


_NO_TIME = _Time(None, has_zone=False)


def parse_line(line: bytes, to_ms: ToMs) -> LogLine | None:
    """Return the coordinator's message in `line`, or None if it has none."""
    return _parse(line[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r\n"), to_ms, _MAX_JSON_LEVELS)


def _parse(text: str, to_ms: ToMs, json_levels: int) -> LogLine | None:
    """Return the message in `text`, which may be nested in up to `json_levels` JSON documents."""
    prefix = _PREFIX.search(text)
    if prefix is None:
        return None
    brace = text.find('{"', 0, prefix.start())
    if brace >= 0 and json_levels > 0 and text.rstrip().endswith("}"):
        fields = _json_object(text[brace:])
        if fields is not None:
            return _parse_json(fields, text[:brace], to_ms, json_levels)
    time = _time_in_text(text[: prefix.start()], to_ms)
    message = _LOGGER_SUFFIX.sub("", text[prefix.end() :], count=1)
    return LogLine(message, int(prefix["broker"]), time.at_ms, time.has_zone)


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def _parse_json(fields: dict[str, Any], head: str, to_ms: ToMs, json_levels: int) -> LogLine | None:
    """Return the message in one of the fields of a JSON document. `head` is the text before the document."""
    texts = (fields.get(name) for name in _MESSAGE_FIELDS)
    lines = (_parse(text.rstrip("\r\n"), to_ms, json_levels - 1) for text in texts if isinstance(text, str))
    line = next((line for line in lines if line is not None), None)
    if line is None or line.has_zone:
        return line
    times = [_time_of_field(fields[name], to_ms) for name in _TIME_FIELDS if name in fields]
    times.append(_time_in_text(head, to_ms))
    # The document's time replaces the message's own only if it has a zone, or if the message has no time.
    times = [time for time in times if time.has_zone or (line.at_ms is None and time.at_ms is not None)]
    if not times:
        return line
    best = next((time for time in times if time.has_zone), times[0])
    return line._replace(at_ms=best.at_ms, has_zone=best.has_zone)


def _time_of_field(value: Any, to_ms: ToMs) -> _Time:
    """Return a time in a field of a JSON line: a text, seconds or milliseconds, or Log4j's `instant`."""
    if isinstance(value, str):
        return _time_in_text(value, to_ms)
    if isinstance(value, int | float):
        return _Time(int(value * 1000 if value < _SECONDS_MAX else value), has_zone=True)
    if isinstance(value, dict) and isinstance(seconds := value.get("epochSecond"), int):
        nanos = value.get("nanoOfSecond", 0)
        millis = nanos // 1_000_000 if isinstance(nanos, int) else 0
        return _Time(seconds * 1000 + millis, has_zone=True)
    return _NO_TIME


def _time_in_text(text: str, to_ms: ToMs) -> _Time:
    """Return the first time that has a zone, or else the last time."""
    match: re.Match[str] | None = None
    for match in _TIME.finditer(text):
        if match["zone"]:
            break
    if match is None:
        return _NO_TIME
    millis = (match["fraction"] or "").ljust(3, "0")[:3]
    zone = (match["zone"] or "").replace("Z", "+00:00")
    try:
        moment = datetime.fromisoformat(f"{match['day']}T{match['time']}.{millis}{zone}")
        if moment.tzinfo is None:
            return _Time(to_ms(moment), has_zone=False)
        return _Time((moment - _EPOCH) // timedelta(milliseconds=1), has_zone=True)
    except (ValueError, OverflowError, OSError):
        return _NO_TIME
