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
    """The members of a classic group, which has formed when all have assignments of one generation."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.members: list[Member] = []
        # By generation and member id, as the leader computed them. Each member compares its own.
        self.assignments: dict[tuple[int, str], bytes] = {}
        self._formed_at_s = 0.0
        self._formed = asyncio.Event()

    async def add(self, address: Address) -> "Member":
        """Add a member and connect it. It joins when `join` or `live` is called."""
        member = Member(self, len(self.members), await Connection.open(address))
        self.members.append(member)
        self._formed.clear()
        return member

    async def formed_at_s(self) -> float:
        """Wait until all members are in one generation. Return when the last was (`time.perf_counter`)."""
        await self._formed.wait()
        return self._formed_at_s

    def on_synced(self) -> None:
        """Check whether the group has formed, after a member got its assignment."""
        generations = {member.generation for member in self.members}
        if len(generations) == 1 and None not in generations:
            self._formed_at_s = time.perf_counter()
            self._formed.set()

    async def leave(self, connection: Connection) -> None:
        """End all memberships with a request over this connection, which must be free. Raises WrongAnswer."""
        leaving = [{"member_id": member.member_id, "reason": None} for member in self.members]
        answer = expect_no_error(await connection.ask(LEAVE, group_id=self.group_id, members=leaving))
        for outcome in answer.members:
            expect_no_error(outcome)

    def close(self) -> None:
        """Close the members' connections."""
        for member in self.members:
            member.connection.close()


@dataclass
class Member:
    """A member with one connection, over which it sends one request at a time."""

    protocol: ClassVar[str] = "range"  # the name of the assignor

    group: LoadGroup
    number: int  # from 0, in the order in which members were added
    connection: Connection
    member_id: str = ""  # empty until the coordinator has given one
    generation: int | None = field(default=None, init=False)  # of its assignment; None: it has none

    async def live(self) -> None:
        """Join, and rejoin when a heartbeat response requires it, until cancelled. Raises WrongAnswer."""
        while True:
            await self.join()
            await self._heartbeat_until_rebalance()

    async def join(self) -> None:
        """Join until there is an assignment. Raises WrongAnswer."""
        self.generation = None
        if not self.member_id:
            answer = await self._send_join()
            if answer.error_code != MEMBER_ID_REQUIRED:
                raise WrongAnswer(f"the response to a member without id is {answer}")
            self.member_id = answer.member_id
        while self.generation is None:
            await self._sync(expect_no_error(await self._send_join()))

    async def _send_join(self) -> Any:
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
        """Sync after the JoinGroup response `joined`. If the group rebalances again, get no assignment."""
        generation: int = joined.generation_id
        if joined.leader == self.member_id:
            for member_id, assignment in self.assign(joined.members).items():
                self.group.assignments[generation, member_id] = assignment
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
        if bytes(answer.assignment) != self.group.assignments[generation, self.member_id]:
            raise WrongAnswer(f"{self.member_id} has another member's assignment")
        self.generation = generation
        self.on_assignment(bytes(answer.assignment))
        self.group.on_synced()

    def subscription(self) -> bytes:
        """Return the metadata with which the member joins."""
        return _SUBSCRIPTION

    def assign(self, members: Sequence[Any]) -> dict[str, bytes]:
        """Return the leader's assignments by member id."""
        return {member.member_id: _assignment(index) for index, member in enumerate(members)}

    def on_assignment(self, assignment: bytes) -> None:
        """Do nothing. A subclass can handle the assignment of a new generation here."""

    def _assignments(self, joined: Any) -> list[dict[str, Any]]:
        """Return the assignments to send. `joined` names members only if this is the leader."""
        assignments = self.group.assignments
        return [
            {"member_id": m.member_id, "assignment": assignments[joined.generation_id, m.member_id]}
            for m in joined.members
        ]

    async def _heartbeat_until_rebalance(self) -> None:
        """Send heartbeats until a response requires a rejoin.

        The first heartbeats are spread over the interval, as in a group that has run for some time.
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


def _assignment(index: int) -> bytes:
    first = index * _PARTITIONS_EACH
    numbers = range(first, first + _PARTITIONS_EACH)
    return encode_assignment(Assignment(tuple(TopicPartition(_TOPIC, number) for number in numbers)))
