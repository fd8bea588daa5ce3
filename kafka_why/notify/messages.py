"""The messages to a receiver, and the outbox in which they wait.

A rebalance has one message, when it has ended. A problem has two: when it began and when it ended. The
sentences are those of `why` and of the page. Nothing is decided here about a group.
"""

import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from hashlib import sha256
from itertools import islice
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from kafka_why.page.findings import FindingKind
from kafka_why.why.model import Rebalance
from kafka_why.why.text import cause_text, details
from kafka_why.wording import Names, visible

MAX_TEXT_CHARS = 500
"""The maximum length of a sentence or a line, which may quote what clients sent."""
MAX_NAME_CHARS = 200
"""The maximum length of a name in a sentence or line, and of an id: a client may choose one of 32,767 bytes.
"""
MAX_LINES = 30
"""The maximum number of lines of a message below its sentence."""
_LONG_WORD = re.compile(rf"\S{{{MAX_NAME_CHARS + 1},}}")
# The parts by which chats and mail programs recognize a link: "://", the dot of `www.`, or the dot in a
# domain with a path.
_LINK_PART = re.compile(r"(?P<scheme_end>://)|(?:(?<=\bwww)\.|(?<=\w)\.(?=[a-z]{2,}/))", re.IGNORECASE)

Link: TypeAlias = Callable[[str | None], str | None]
"""A function that returns the page's URL for a group, or for all groups if it is None. It returns None if
there is no page.
"""


class Status(StrEnum):
    """The status of a message's event."""

    HAPPENED = "happened"  # the event is over, and has only this message
    BEGAN = "began"  # the event lasts for some time, and has a second message, with ENDED
    ENDED = "ended"


def kind_name(kind: FindingKind) -> str:
    """Return the name of a kind of finding: `falling-behind`."""
    return kind.name.lower().replace("_", "-")


REBALANCE = "rebalance"
ALARM = "alarm"
KINDS = (REBALANCE, *map(kind_name, FindingKind), ALARM)
"""The kinds of messages: a rebalance, the page's findings about a group, and an alarm of the coordinator."""


class Message(Struct, frozen=True, kw_only=True):
    """A message. Times are milliseconds since the epoch."""

    id: str  # id of the event, which its BEGAN, ENDED and repeated messages share
    kind: str
    status: Status
    subject: str  # the group, or the beginning of an alarm's sentence
    group: str | None  # None for an alarm
    sentence: str
    lines: list[tuple[str, str]] = []  # of `why`, each with its label
    began_ms: int
    ended_ms: int | None = None  # None while the event lasts
    page: str | None = None  # URL of the group on the page

    @property
    def name(self) -> tuple[str, Status]:
        """The unique name of the message."""
        return self.id, self.status


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of messages by group and duration.

    Patterns of group ids are the shell's: `*`, `?`, `[...]`, and case counts. A coordinator's alarm
    belongs to no group, so patterns do not apply to it.
    """

    groups: tuple[str, ...] = ()  # patterns; () means all groups
    without: tuple[str, ...] = ()  # patterns of excluded groups
    kinds: frozenset[str] = frozenset(KINDS)
    # A shorter rebalance or problem is not sent. A problem under way is sent after this time.
    least_ms: int = 0

    def wants(self, message: Message, now_ms: int) -> bool:
        """Return True if this message should be sent. An event without an end has lasted until `now_ms`."""
        ended_ms = now_ms if message.ended_ms is None else message.ended_ms
        is_selected = message.kind in self.kinds and self._wants_group(message.group)
        return is_selected and ended_ms - message.began_ms >= self.least_ms

    def _wants_group(self, group: str | None) -> bool:
        if group is None:
            return True
        if any(fnmatchcase(group, pattern) for pattern in self.without):
            return False
        return not self.groups or any(fnmatchcase(group, pattern) for pattern in self.groups)


def rebalance_message(group_id: str, r: Rebalance, names: Names, link: Link) -> Message:
    """Return the message about a rebalance that has ended, in the words of `why`."""
    assert r.ended_ms is not None, "a message is about a rebalance that has ended"
    # The incarnation distinguishes groups that had the same id one after another. An observed group's would
    # change the message's id at a restart, because it depends on the first record that was read.
    incarnation = "observed" if r.observed else r.incarnation
    lines = islice(details(r, r.ended_ms, names), MAX_LINES)
    return Message(
        id=f"{REBALANCE}:{group_id}:{incarnation}:{r.ended_ms}:{r.generation_to}",
        kind=REBALANCE,
        status=Status.HAPPENED,
        subject=group_id,
        group=group_id,
        sentence=safe_text(cause_text(r, names)),
        lines=[(label, safe_text(text)) for label, text in lines],
        began_ms=r.began_ms,
        ended_ms=r.ended_ms,
        page=page_link(group_id, link),
    )


def page_link(group_id: str | None, link: Link) -> str | None:
    """Return the URL of a group on the page, or None if there is no page.

    It is the URL of the list of groups if `group_id` is None or too long for a link.
    """
    is_long = group_id is not None and len(group_id) > MAX_NAME_CHARS
    return link(None if is_long else group_id)


def safe_text(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return a text on one line, with control characters escaped and links broken, cut to `max_chars`."""
    with_short_words = _LONG_WORD.sub(lambda word: _shorten(word[0], MAX_NAME_CHARS), visible(text))
    without_links = _LINK_PART.sub(lambda part: "[:]//" if part["scheme_end"] else "[.]", with_short_words)
    return _shorten(without_links, max_chars)


def shortened_id(name: str) -> str:
    """Return an id, cut if it is too long. A digest at the end keeps a cut id unique."""
    return name if len(name) <= MAX_NAME_CHARS else _with_digest(name, name)


def unique_label(name: str) -> str:
    """Return an id as a safe text. If that changes the id, a digest at the end keeps it unique."""
    text = safe_text(name, MAX_NAME_CHARS)
    return text if text == name else _with_digest(text, name)


def _with_digest(text: str, name: str) -> str:
    """Return the text with a digest of `name` at its end, cut to MAX_NAME_CHARS."""
    digest = sha256(name.encode()).hexdigest()[:16]
    return f"{_shorten(text, MAX_NAME_CHARS - len(digest) - 1)}#{digest}"


def _shorten(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."


MAX_WAITING = 1_000
"""The maximum number of messages in the outbox."""


class Position(Struct, frozen=True):
    """The next offset to read of a partition, and the time of the last record read."""

    offset: int
    at_ms: int


Positions: TypeAlias = Mapping[int, Position]
"""The positions by partition."""


class TakenMessages(NamedTuple):
    """The messages removed from the outbox.

    `positions` are where reading can restart, or None if they have not changed. `after_positions` are the
    removed messages that would then be found again.
    """

    positions: Positions | None
    after_positions: list[Message]


class Outbox:
    """A bounded queue of messages and, between them, positions in the events topic. Thread-safe.

    Once all messages before some positions are delivered, reading can restart there. `put` blocks while
    `max_waiting` messages wait: while the receiver is down, reading stops, and the rest remains in the topic.
    A message that is already waiting is not added again.
    """

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._waiting: deque[Message | Positions] = deque()
        self._names: set[tuple[str, Status]] = set()  # of the waiting messages
        self._is_closed = False

    def put(self, messages: Iterable[Message], positions: Positions | None = None) -> bool:
        """Append messages and the positions that they reach. Return False if the outbox was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._names) < self._max_waiting)
            if self._is_closed:
                return False
            for message in messages:
                if message.name not in self._names:
                    self._names.add(message.name)
                    self._waiting.append(message)
            if positions is not None:
                if self._waiting and not isinstance(self._waiting[-1], Message):
                    self._waiting.pop()  # positions that the new ones supersede
                self._waiting.append(positions)
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """Reject further messages. Waiting messages can still be taken."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait until there is a message, or the outbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or bool(self._names), timeout_s)

    def head(self, number: int) -> list[Message]:
        """Return the first messages, at most `number`, without removing them."""
        with self._changed:
            return list(islice((one for one in self._waiting if isinstance(one, Message)), number))

    def take(self, number: int) -> TakenMessages:
        """Remove the first `number` messages, and the positions directly after them."""
        with self._changed:
            positions: Positions | None = None
            after_positions: list[Message] = []
            while self._waiting and (number or not isinstance(self._waiting[0], Message)):
                first = self._waiting.popleft()
                if isinstance(first, Message):
                    number -= 1
                    self._names.remove(first.name)
                    after_positions.append(first)
                else:
                    positions, after_positions = first, []
            self._changed.notify_all()
            return TakenMessages(positions, after_positions)
