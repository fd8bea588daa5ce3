"""The load's own measurements: requests in flight, groups that were answered, and acknowledged commits."""

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Collection
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TypeVar

from clients.coordinator_client import CoordinatorClient
from kafka_why.connections.address import Address
from tests.faults.campaign.judge.losses import Commit

T = TypeVar("T")
TOPIC = "orders"
PARTITIONS = 6
PAUSE_S = 0.25
RETRY_S = 0.5
CHURN = 0.004
"""The chance at each step that a member leaves and comes back."""
_OFFSETS_APART = 10
"""More than there are members in a group: no two of them commit one offset."""


class Lost(RuntimeError):
    """A request got no answer: its connection ended, or its time ran out."""


@dataclass
class Meter:
    """Any thread may read it; the load's thread alone writes it."""

    in_flight: int = 0
    asked_at_s: dict[str, float] = field(default_factory=dict)
    """By group: when the latest request was sent that has been answered."""
    commits: list[Commit] = field(default_factory=list)
    """Each commit from the moment when it is sent, but those in transactions."""
    transactions: dict[bool, list[tuple[str, int, int]]] = field(
        default_factory=lambda: {True: [], False: []}
    )
    """By whether it was committed: group, partition and offset of each transaction whose end was
    acknowledged.
    """
    changed: threading.Condition = field(default_factory=threading.Condition)

    async def count(self, group: str, answer: Awaitable[T]) -> T:
        """Wait for an answer and count it."""
        asked_at_s = time.monotonic()
        self.in_flight += 1
        try:
            result = await answer
        finally:
            self.in_flight -= 1
        with self.changed:
            self.asked_at_s[group] = max(asked_at_s, self.asked_at_s.get(group, 0.0))
            self.changed.notify_all()
        return result

    def sent(self, group: str, partition: int, offset: int) -> Commit:
        """Note a commit that is about to be sent. Its sender adds the answer."""
        commit = Commit((group, TOPIC, partition), offset, sent_s=time.monotonic())
        self.commits.append(commit)
        return commit

    def acknowledged(self) -> dict[tuple[str, int], int]:
        """Return the last acknowledged offset of each group and partition."""
        acknowledged = [commit for commit in list(self.commits) if commit.is_acknowledged]
        return {(commit.key[0], commit.key[2]): commit.offset for commit in acknowledged}

    def wait_for_answers(self, groups: Collection[str], since_s: float, timeout_s: float) -> list[str]:
        """Wait until each group has the answer to a request that it sent after that time (monotonic).

        Return the groups that have none when the time is over.
        """

        def behind() -> list[str]:
            return [group for group in groups if self.asked_at_s.get(group, 0.0) < since_s]

        with self.changed:
            self.changed.wait_for(lambda: not behind(), timeout_s)
            return behind()


@dataclass
class Member(ABC):
    """One member of a group. It reaches the coordinator through the gateway, or on the topics by `client`."""

    group: str
    number: int
    gateway: Address
    client: CoordinatorClient
    meter: Meter
    random: Random
    offsets: "count[int]" = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = count(_OFFSETS_APART + self.number, _OFFSETS_APART)

    async def live(self) -> None:
        """Act until cancelled."""
        try:
            while True:
                try:
                    await self.live_once()
                except Lost:
                    await asyncio.sleep(RETRY_S)
        finally:
            self.close()

    @abstractmethod
    async def live_once(self) -> None:
        """Act for one membership. Raises Lost."""

    def close(self) -> None:  # noqa: B027 - not every member has something
        """End what is the member's alone."""

    async def pause(self) -> None:
        await asyncio.sleep(PAUSE_S * self.random.uniform(0.5, 1.5))
