"""The queue of messages that wait for the receiver."""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from kafka_why.notify.messages import Message, Status

MAX_WAITING = 1_000


class Position(Struct, frozen=True):
    """The next offset to read of a partition of the events topic, and the time of the record before it."""

    offset: int
    at_ms: int


Positions: TypeAlias = Mapping[int, Position]
"""The positions by partition."""


class Taken(NamedTuple):
    """The result of removing messages from the outbox. `positions` are the last positions before which all
    messages were removed, or None. `beyond` are the removed messages after these positions.
    """

    positions: Positions | None
    beyond: list[Message]


class Outbox:
    """A bounded queue of messages, with markers of positions in the topic between them. Once all messages
    before a marker are delivered, reading can restart at its positions.

    `put` blocks while `max_waiting` messages wait. So reading stops while the receiver is down, and the rest
    remains in the topic. A message that is already waiting is not added again. Thread-safe.
    """

    def __init__(self, max_waiting: int = MAX_WAITING) -> None:
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._waiting: deque[Message | Positions] = deque()
        self._names: set[tuple[str, Status]] = set()
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
                self._put_positions(positions)
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

    def take(self, number: int) -> Taken:
        """Remove the first `number` messages, and the positions directly after them."""
        with self._changed:
            positions: Positions | None = None
            beyond: list[Message] = []
            while self._waiting and (number or not isinstance(self._waiting[0], Message)):
                first = self._waiting.popleft()
                if isinstance(first, Message):
                    number -= 1
                    self._names.remove(first.name)
                    beyond.append(first)
                else:
                    positions, beyond = first, []
            self._changed.notify_all()
            return Taken(positions, beyond)

    def _put_positions(self, positions: Positions) -> None:
        if self._waiting and not isinstance(self._waiting[-1], Message):
            self._waiting.pop()
        self._waiting.append(positions)
