"""Text for people: strings of clients escaped for a terminal, lines with labels, tables, short lists, names.

Unprintable characters are escaped, because a control character could move the cursor or change earlier text.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cached_property
from typing import Any

from kafka_why.contract.kafka.history import HistoryEntry
from kafka_why.contract.kafka.snapshot import ConsumerMemberSnapshot
from kafka_why.contract.protocols.subscriptions import (
    PROTOCOL_TYPE,
    MemberId,
    ProtocolError,
    TopicPartition,
    by_topic,
    decode_assignment,
)

_NOT_PRINTABLE = re.compile(r"[^ -~]")


class VisibleText(str):
    """Text without unprintable characters, except the line feeds of its own lines."""

    __slots__ = ()

    def __str__(self) -> "VisibleText":
        """Return the text itself, so that an error with this message keeps its lines."""
        return self


def visible(text: str) -> VisibleText:
    """Return the text on one line, with unprintable characters escaped.

    A `VisibleText` is returned unchanged.
    """
    if isinstance(text, VisibleText):
        return text
    return VisibleText(text if text.isprintable() else _NOT_PRINTABLE.sub(_escape_match, text))


def visible_text(lines: Iterable[str], between: str = "\n") -> VisibleText:
    """Join lines, each escaped by `visible`, so that a client's line feed starts no new line."""
    return VisibleText(between.join(map(visible, lines)))


def visible_lines(text: str) -> VisibleText:
    """Escape a text whose line feeds are our own, such as a traceback."""
    return visible_text(text.split("\n"))


def _escape_match(match: re.Match[str]) -> str:
    character = match.group()  # not ASCII, or unprintable
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def duration_text(ms: int) -> str:
    """Return a text such as `250 ms`, `61.2 s`, `12 min 5 s` or `5 h 3 min`."""
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 120_000:
        return f"{ms / 1000:.1f} s"
    minutes, rest_ms = divmod(ms, 60_000)
    if minutes < 120:
        return f"{minutes} min {rest_ms // 1000} s"
    return f"{minutes // 60} h {minutes % 60} min"


class Clock:
    """A formatter of times in one time zone, by default this machine's."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone

    def at(self, at_ms: int) -> datetime:
        return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone(self._zone)

    def time(self, at_ms: int) -> str:
        """Return a time: `2026-11-21 03:11:07.120`."""
        return self.at(at_ms).isoformat(" ", "milliseconds")[:23]

    def zone(self, at_ms: int) -> str:
        """Return the zone's name at that time."""
        return self.at(at_ms).strftime("%Z")


_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION_PART = r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ms|min|s|m|h|d)"


def parse_since(text: str, now_ms: int) -> int:
    """Return the milliseconds since the epoch of `2h` ago, or of an ISO time such as `2026-11-21T03:00`.

    `90m` and `1h30m` are durations, too. An ISO time is local unless it names its zone. Raises ValueError.
    """
    if re.fullmatch(f"(?:{_DURATION_PART})+", text):
        ago_ms = sum(float(number) * _UNIT_MS[unit] for number, unit in re.findall(_DURATION_PART, text))
        return max(now_ms - int(ago_ms), 0)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is neither a duration such as 2h nor an ISO time") from error


MAX_LISTED = 6  # words in a line
MAX_MEMBERS = 8  # lines about members
INDENT = "    "
_MAX_CLIENTS = 3

Lines = Iterator[tuple[str, str]]
"""Lines of text, each with its label, or "" to continue the line before."""


def columns(lines: Lines) -> Iterator[str]:
    """Yield each line after its label. Labels are padded to the longest one."""
    rows = list(lines)
    width = max((len(label) for label, _ in rows), default=0)
    for label, text in rows:
        yield f"{label:<{width}}  {text}"


def tally(label: str, counts: Sequence[tuple[int, str, Mapping[str, int]]]) -> Lines:
    """Yield lines such as `12 x member joined  worker-1 9, worker-2 3`.

    Each of `counts` has a number, what is counted, and the number for each client.
    """
    digits = max((len(str(number)) for number, _, _ in counts), default=0)
    width = max((len(kind) for _, kind, _ in counts), default=0)
    texts = []
    for number, kind, by_client in counts:
        clients = [f"{name} {times}" if times > 1 else name for name, times in by_client.items()]
        texts.append(f"{number:>{digits}} x {kind:<{width}}  {shortened(clients, _MAX_CLIENTS)}")
    return listing(label, texts)


def listing(label: str, texts: Iterable[str], left_out: int = 0, noun: str = "") -> Lines:
    """Yield each text, with the label before the first one. If `left_out` is not 0, yield it last."""
    for index, text in enumerate(texts):
        yield "" if index else label, text
    if left_out > 0:
        yield "", f"and {count(left_out, f'more {noun}') if noun else f'{left_out} more'}"


def member_listing(label: str, texts: Sequence[tuple[str, str]]) -> Lines:
    """Yield the names and texts of the first MAX_MEMBERS members, and the number of the others."""
    shown = texts[:MAX_MEMBERS]
    width = max((len(name) for name, _ in shown), default=0)
    rows = (f"{name:<{width}}  {text}" for name, text in shown)
    return listing(label, rows, len(texts) - MAX_MEMBERS, "member")


def shortened(words: Sequence[str], most: int = MAX_LISTED) -> str:
    """Return a text such as `a, b, 3 more`, with at most `most` words."""
    more = f", {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def partitions_text(partitions: Mapping[str, Sequence[int]]) -> str:
    """Return partitions by topic: `orders 0-3 7, prices 1`."""
    return shortened([f"{topic} {number_list(numbers)}" for topic, numbers in partitions.items()])


def count(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 member` or `2 members`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """Return a text such as `once` or `2 times`."""
    return "once" if number == 1 else f"{number} times"


def trigger_text(trigger: str) -> str:
    """Return a trigger (a request, deadline or scan) without its time, which the rebalance shows anyway."""
    return re.sub(r" at \d+$", "", trigger)


# The UUID that a coordinator appends to the client id. The group is its first eight characters.
_UUID_SUFFIX = re.compile(r"-([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
# A client of the consumer protocol generates its own id, a UUID. Kafka's client writes it in URL-safe Base64,
# librdkafka in standard Base64.
_BARE_UUID = re.compile(r"[A-Za-z0-9_+/-]{22}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_bare(member_id: MemberId) -> bool:
    """Return True if the id is only a UUID, which does not identify the client."""
    return _BARE_UUID.fullmatch(member_id) is not None


def clients_of(entries: Iterable[HistoryEntry]) -> dict[MemberId, str]:
    """Return, by member id, the instance id or else the client id of members whose id is only a UUID."""
    clients = {
        event.member_id: client
        for event in entries
        if event.member_id is not None and (client := event.group_instance_id or event.client_id)
    }
    return {member_id: client for member_id, client in clients.items() if is_bare(member_id)}


def lasting_name(member_id: MemberId, clients: Mapping[MemberId, str]) -> str:
    """Return a member's name that stays the same when its client restarts."""
    return clients[member_id] if member_id in clients else _UUID_SUFFIX.sub("", member_id)


class Names:
    """Short names for the member ids of one group: the client id or instance id without the UUID after it.

    `clients` is the result of `clients_of`. If two ids would get the same name, the names include the first
    eight characters of the UUID.
    """

    def __init__(self, member_ids: Iterable[MemberId], clients: Mapping[MemberId, str] | None = None) -> None:
        ids = sorted(set(member_ids), key=len, reverse=True)
        long = {
            m: f"{clients[m]}-{m[:8]}" if clients and m in clients else _UUID_SUFFIX.sub(r"-\1", m)
            for m in ids
        }
        short = {m: lasting_name(m, clients or {}) for m in ids}
        members_with_name = Counter(short.values())
        self._names = {m: short[m] if members_with_name[short[m]] == 1 else long[m] for m in ids}
        self._ids = ids  # the longest first

    def of(self, member_id: MemberId) -> str:
        """Return the short name, or the id itself if it is unknown."""
        return self._names.get(member_id, member_id)

    def put_in(self, text: str) -> str:
        """Return the text with names instead of ids."""
        return self._any_id.sub(lambda match: self.of(match[0]), text) if self._names else text

    @cached_property
    def _any_id(self) -> re.Pattern[str]:
        # The longest id comes first, because a shorter one may be its beginning.
        return re.compile("|".join(map(re.escape, self._ids)))


MISSING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    heading: str
    min_width: int = 15  # in characters; wider values widen the column


def render_table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> VisibleText:
    """Format the heading and the rows, one per line. Unprintable characters are escaped, and None is `-`."""
    cells = [[MISSING if value is None else visible(str(value)) for value in row] for row in rows]
    lines = [[column.heading for column in columns], *cells]
    widths = [
        max(column.min_width, *(len(line[number]) for line in lines)) for number, column in enumerate(columns)
    ]
    return visible_text(
        " ".join((cell.ljust(width) for cell, width in zip(line, widths, strict=True))).rstrip()
        for line in lines
    )


def partition_list(partitions: Iterable[TopicPartition]) -> str:
    """Return a text such as `orders 0-3 7, prices 1`."""
    return topics_text(by_topic(partitions))


def number_list(numbers: Iterable[int]) -> str:
    """Return the numbers with runs joined: `0-3 7`."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


# The partitions that a member has, as a line of text.


def progress(member: ConsumerMemberSnapshot) -> str:
    """Return the partitions of a member of a group with epochs, such as `orders 0-3; gives up orders 4`."""
    awaited = member.awaited()
    parts = [topics_text(member.assigned) or "-"]
    parts += [f"gives up {topics_text(member.revoking)}"] if member.revoking else []
    parts += [f"waits for {topics_text(awaited)}"] if awaited else []
    return "; ".join(parts)


def topics_text(partitions: Mapping[str, Iterable[int]]) -> str:
    """Return a text such as `orders 0-3 7, prices 1`."""
    return ", ".join(f"{topic} {number_list(numbers)}" for topic, numbers in partitions.items())


def holdings(assignment: bytes, protocol_type: str | None) -> str:
    """Return the partitions of an assignment, such as `orders 0-3 7, prices 1`, or `-` if it has none.

    For an assignment that is not of Kafka's consumers, return its size.
    """
    if not assignment:
        return "-"
    if protocol_type != PROTOCOL_TYPE:
        return f"{len(assignment)} bytes"
    try:
        partitions = decode_assignment(assignment).partitions
    except ProtocolError as error:
        return f"unreadable: {error}"
    return partition_list(partitions) or "-"
