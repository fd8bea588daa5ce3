"""What the load knows of itself: what is in flight, who was answered since when, and what was committed."""

import threading
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


class Lost(RuntimeError):
    """A request got no answer: its connection ended, or its time ran out."""


@dataclass
class Meter:
    """Any thread may read it; the load's thread alone writes it."""

    in_flight: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    """Answers by protocol."""
    lost: Counter[str] = field(default_factory=Counter)
    """Requests without an answer by protocol. A later answer may be on the topics."""
    asked_at_s: dict[str, float] = field(default_factory=dict)
    """By group: when the latest request was sent that has been answered."""
    committed: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """By group and partition: the last offset that was acknowledged, and the last one that was sent."""
    transactions: dict[bool, list[tuple[str, int, int]]] = field(
        default_factory=lambda: {True: [], False: []}
    )
    """By whether it was committed: group, partition and offset of each transaction whose end was
    acknowledged.
    """
    changed: threading.Condition = field(default_factory=threading.Condition)

    async def count(self, protocol: str, group: str, answer: Awaitable[T]) -> T:
        """Wait for an answer and count it."""
        asked_at_s = time.monotonic()
        self.in_flight += 1
        try:
            result = await answer
        except Lost:
            self.lost[protocol] += 1
            raise
        finally:
            self.in_flight -= 1
        self.answered[protocol] += 1
        with self.changed:
            self.asked_at_s[group] = max(asked_at_s, self.asked_at_s.get(group, 0.0))
            self.changed.notify_all()
        return result

    def sent(self, group: str, partition: int, offset: int) -> None:
        """A commit is about to be sent."""
        acknowledged, _ = self.committed.get((group, partition), (-1, -1))
        self.committed[group, partition] = (acknowledged, offset)

    def acknowledged(self, group: str, partition: int, offset: int) -> None:
        """A commit was answered without an error."""
        _, sent = self.committed[group, partition]
        self.committed[group, partition] = (offset, sent)

    def ended(self, group: str, partition: int, offset: int, *, is_committed: bool) -> None:
        """The end of a transaction with this offset was acknowledged."""
        self.transactions[is_committed].append((group, partition, offset))

    def wait_for_answers(self, groups: list[str], since_s: float, timeout_s: float) -> list[str]:
        """Wait until each group has the answer to a request that it sent after that time (monotonic).

        Returns the groups that have none when the time is over.
        """

        def behind() -> list[str]:
            return [group for group in groups if self.asked_at_s.get(group, 0.0) < since_s]

        with self.changed:
            self.changed.wait_for(lambda: not behind(), timeout_s)
            return behind()
