"""Members of Kafka's classic groups: they join, share the partitions, heartbeat, commit, leave and come back.

How a request reaches the coordinator is a `Transport`: through the gateway, or straight on the topics.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from assignors.kafka.api import Assignment, Subscription, TopicPartition
from assignors.kafka.consumer_protocol import encode_assignment, encode_subscription
from tests.faults.campaign.load.meter import Lost, Meter

T = TypeVar("T")
TOPIC = "orders"
PARTITIONS = 6
SESSION_MS = 10_000
REBALANCE_MS = 60_000
ANSWER_TIMEOUT_S = 30.0
JOIN_TIMEOUT_S = 75.0
PAUSE_S = 0.25
RETRY_S = 0.5
CHURN = 0.004
"""The chance at each step that a member leaves and comes back."""
SUBSCRIPTION = encode_subscription(Subscription((TOPIC,)))

NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 0, 25, 27, 79
REJOIN = (22, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS)


class Joined(NamedTuple):
    """The answer to a JoinGroup. `members` is empty unless this member is the leader."""

    error: int
    member_id: str
    generation: int
    leader: str
    members: Sequence[str]


class Transport(Protocol):
    """Sends a member's requests, one at a time. Every method raises Lost."""

    async def join(self, group: str, member_id: str) -> Joined: ...
    async def sync(
        self, group: str, generation: int, member_id: str, assignments: Mapping[str, bytes]
    ) -> tuple[int, bytes]: ...
    async def heartbeat(self, group: str, generation: int, member_id: str) -> int: ...
    async def commit(
        self, group: str, generation: int, member_id: str, partition: int, offset: int
    ) -> int: ...
    async def fetch(self, group: str, partition: int) -> int: ...
    async def leave(self, group: str, member_id: str) -> int: ...
    def close(self) -> None: ...


def shares(members: Sequence[str]) -> dict[str, bytes]:
    """The leader's assignment: the partitions in turn."""
    by_member: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for partition in range(PARTITIONS):
        by_member[members[partition % len(members)]].append(TopicPartition(TOPIC, partition))
    return {member: encode_assignment(Assignment(tuple(part))) for member, part in by_member.items()}


class Rejoin(Exception):
    """The member has to join again. `forgets` says that its id is not known any more."""

    def __init__(self, error: int) -> None:
        super().__init__(str(error))
        self.forgets = error == UNKNOWN_MEMBER_ID


@dataclass
class ClassicMember:
    """One member. `owned` are partitions whose offsets it commits while it is the group's only committer."""

    churn: ClassVar[float] = CHURN

    protocol: str
    group: str
    number: int
    transport: Transport
    meter: Meter
    random: Random
    offsets: count = field(default_factory=lambda: count(1))  # type: ignore[type-arg]
    member_id: str = ""

    async def live(self) -> None:
        """Act until cancelled."""
        try:
            while True:
                await self._live_once()
        finally:
            self.transport.close()

    async def _live_once(self) -> None:
        """Join, and stay as long as the membership lasts."""
        try:
            generation = await self._enter()
            await self._stay(generation)
        except Rejoin as rejoin:
            if rejoin.forgets:
                self.member_id = ""
        except Lost:
            await asyncio.sleep(RETRY_S)

    async def _enter(self) -> int:
        """Join until there is an assignment. Returns the generation."""
        while True:
            joined = await self._ask(self.transport.join(self.group, self.member_id), JOIN_TIMEOUT_S)
            if joined.error == MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
                continue
            await self._check(joined.error)
            if joined.error != NONE:
                continue
            dealt = shares(sorted(joined.members)) if joined.leader == self.member_id else {}
            sync = self.transport.sync(self.group, joined.generation, self.member_id, dealt)
            error, _ = await self._ask(sync, JOIN_TIMEOUT_S)
            await self._check(error)
            if error == NONE:
                return joined.generation

    async def _stay(self, generation: int) -> None:
        while True:
            await asyncio.sleep(PAUSE_S * self.random.uniform(0.5, 1.5))
            draw = self.random.random()
            if draw < self.churn:
                await self._leave()
                return
            if draw < 0.45:
                await self._commit(generation)
            elif draw < 0.5:
                await self._fetch()
            else:
                await self._heartbeat(generation)

    async def _heartbeat(self, generation: int) -> None:
        heartbeat = self.transport.heartbeat(self.group, generation, self.member_id)
        await self._check(await self._ask(heartbeat))

    async def _fetch(self) -> None:
        await self._ask(self.transport.fetch(self.group, self.number % PARTITIONS))

    async def _commit(self, generation: int) -> None:
        # A partition of its own, so that the offsets of one partition grow in the order of the log.
        partition, offset = self.number % PARTITIONS, next(self.offsets)
        self.meter.sent(self.group, partition, offset)
        error = await self._ask(
            self.transport.commit(self.group, generation, self.member_id, partition, offset)
        )
        if error == NONE:
            self.meter.acknowledged(self.group, partition, offset)
        await self._check(error)

    async def _leave(self) -> None:
        await self._ask_to_leave()
        await asyncio.sleep(self.random.uniform(0, 2))

    async def _ask_to_leave(self) -> None:
        await self._ask(self.transport.leave(self.group, self.member_id))
        self.member_id = ""

    async def _check(self, error: int) -> None:
        """Do what a client does after an error: join again, or pause and try again."""
        if error in REJOIN:
            raise Rejoin(error)
        if error != NONE:
            await asyncio.sleep(RETRY_S)

    async def _ask(self, answer: Coroutine[Any, Any, T], timeout_s: float = ANSWER_TIMEOUT_S) -> T:
        async def limited() -> T:
            try:
                async with asyncio.timeout(timeout_s):
                    return await answer
            except TimeoutError as error:
                self.transport.close()  # its answer could come later, and be taken for another's
                raise Lost("no answer in time") from error

        return await self.meter.count(self.protocol, self.group, limited())
