"""Group members on the wire: they join, heartbeat and rejoin as Kafka's consumers do."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from bench.load.connection import (
    MEMBER_ID_REQUIRED,
    REBALANCE_IN_PROGRESS,
    Connection,
    expect_no_error,
)
from bench.load.frames import HEARTBEAT, JOIN, LEAVE, SYNC
from bench.load.load_result import WrongAnswer
from kafka_why.connections.address import Address
from kafka_why.contract.protocols.subscriptions import (
    PROTOCOL_TYPE,
    Assignment,
    Subscription,
    TopicPartition,
    encode_assignment,
    encode_subscription,
)

SESSION_TIMEOUT_MS = 600_000  # long, so that no member expires during another measurement
REBALANCE_TIMEOUT_MS = 300_000  # max.poll.interval.ms of Kafka's clients
HEARTBEAT_INTERVAL_S = 3.0  # heartbeat.interval.ms of Kafka's clients

_TOPIC = "orders"
_PARTITIONS_EACH = 12
_SUBSCRIPTION = encode_subscription(Subscription((_TOPIC,)))


class LoadGroup:
    """A group's members, and the leaders' assignments, so that each member can check its own."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.members: list[Member] = []
        self.dealt: dict[tuple[int, str], bytes] = {}
        self._formed_at_s = 0.0
        self._formed = asyncio.Event()

    async def add(self, address: Address) -> "Member":
        """Add a member and connect it; it joins by `enter` or `live`."""
        member = Member(self, len(self.members), await Connection.open(address))
        self.members.append(member)
        self._formed.clear()
        return member

    async def formed_at_s(self) -> float:
        """Wait until all members have an assignment in one generation. Return the time of the last one."""
        await self._formed.wait()
        return self._formed_at_s

    def synced(self) -> None:
        """Record that a member has its assignment."""
        generations = {member.generation for member in self.members}
        if len(generations) == 1 and None not in generations:
            self._formed_at_s = time.perf_counter()
            self._formed.set()

    async def leave(self, connection: Connection) -> None:
        """End all memberships with a request over this connection, which must be free. Raises WrongAnswer."""
        leaving = [{"member_id": member.member_id, "reason": None} for member in self.members]
        answer = expect_no_error(await connection.ask(LEAVE, group_id=self.group_id, members=leaving))
        for left in answer.members:
            expect_no_error(left)

    def close(self) -> None:
        """Close the members' connections."""
        for member in self.members:
            member.connection.close()


@dataclass
class Member:
    """A member. `generation` is that of its assignment, or None while it has none."""

    protocol: ClassVar[str] = "range"

    group: LoadGroup
    number: int
    connection: Connection
    member_id: str = ""
    generation: int | None = field(default=None, init=False)

    async def live(self) -> None:
        """Join, and rejoin when a heartbeat response requires it, until cancelled. Raises WrongAnswer."""
        while True:
            await self.enter()
            await self._stay()

    async def enter(self) -> None:
        """Join until there is an assignment. Raises WrongAnswer."""
        self.generation = None
        if not self.member_id:
            answer = await self._ask_to_join()
            if answer.error_code != MEMBER_ID_REQUIRED:
                raise WrongAnswer(f"the response to a member without id is {answer}")
            self.member_id = answer.member_id
        while self.generation is None:
            await self._sync(expect_no_error(await self._ask_to_join()))

    async def _ask_to_join(self) -> Any:
        return await self.connection.ask(
            JOIN,
            group_id=self.group.group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[{"name": self.protocol, "metadata": self.subscription()}],
        )

    async def _sync(self, joined: Any) -> None:
        generation: int = joined.generation_id
        if joined.leader == self.member_id:
            for member_id, assignment in self.plan(joined.members).items():
                self.group.dealt[generation, member_id] = assignment
        answer = await self.connection.ask(
            SYNC,
            **self._membership(generation),
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self.protocol,
            assignments=self._assignments(joined),
        )
        if answer.error_code == REBALANCE_IN_PROGRESS:
            return
        expect_no_error(answer)
        if bytes(answer.assignment) != self.group.dealt[generation, self.member_id]:
            raise WrongAnswer(f"{self.member_id} has another member's assignment")
        self.generation = generation
        self.on_assignment(bytes(answer.assignment))
        self.group.synced()

    def subscription(self) -> bytes:
        """Return the metadata with which the member joins."""
        return _SUBSCRIPTION

    def plan(self, members: Sequence[Any]) -> dict[str, bytes]:
        """Return the leader's assignments by member id."""
        return {member.member_id: _assignment(place) for place, member in enumerate(members)}

    def on_assignment(self, assignment: bytes) -> None:
        """Take the assignment of a new generation."""

    def _assignments(self, joined: Any) -> list[dict[str, Any]]:
        """Return the leader's assignments; `joined` names members only for the leader."""
        dealt = self.group.dealt
        return [
            {"member_id": m.member_id, "assignment": dealt[joined.generation_id, m.member_id]}
            for m in joined.members
        ]

    async def _stay(self) -> None:
        """Send heartbeats until a response requires a rejoin.

        The members' first heartbeats are spread evenly over the interval, as in a group that is not new.
        """
        pause_s = HEARTBEAT_INTERVAL_S * (self.number + 1) / len(self.group.members)
        while True:
            await asyncio.sleep(pause_s)
            assert self.generation is not None
            answer = await self.connection.ask(HEARTBEAT, **self._membership(self.generation))
            if answer.error_code == REBALANCE_IN_PROGRESS:
                return
            expect_no_error(answer)
            pause_s = HEARTBEAT_INTERVAL_S

    def _membership(self, generation: int) -> dict[str, Any]:
        return {
            "group_id": self.group.group_id,
            "generation_id": generation,
            "member_id": self.member_id,
        }


def _assignment(place: int) -> bytes:
    first = place * _PARTITIONS_EACH
    numbers = range(first, first + _PARTITIONS_EACH)
    return encode_assignment(Assignment(tuple(TopicPartition(_TOPIC, number) for number in numbers)))
