"""Members of a group by the consumer protocol (KIP-848). What one is asked to give up it gives up at once."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from bench.load.connection import Connection, expect_no_error
from bench.load.frames import CONSUMER_HEARTBEAT
from bench.load.member import REBALANCE_TIMEOUT_MS
from kafka_why.connections.address import Address

_LEAVE = -1
_MS = 1_000

Partitions = frozenset[tuple[UUID, int]]


def given_by(answer: Any) -> Partitions:
    """Return the partitions of an answer that has an assignment."""
    given = answer.assignment.topic_partitions
    return frozenset((topic.topic_id, index) for topic in given for index in topic.partitions)


def by_topic(partitions: Partitions) -> list[dict[str, Any]]:
    """Return partitions as the `topic_partitions` of a heartbeat."""
    indexes: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        indexes.setdefault(topic_id, []).append(index)
    return [{"topic_id": topic_id, "partitions": found} for topic_id, found in indexes.items()]


@dataclass
class ConsumerGroup:
    """A group's members. It is settled when all have one epoch, and together all `partitions`, each once."""

    topic: str
    partitions: int
    group_id: str = field(default_factory=lambda: f"settling-{uuid4()}")
    members: list["ConsumerMember"] = field(default_factory=list)
    _settled_at_s: float = 0.0
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    async def add(self, address: Address) -> "ConsumerMember":
        """Add a member and connect it; it joins by `live`."""
        member = ConsumerMember(self, len(self.members), await Connection.open(address))
        self.members.append(member)
        self._settled.clear()
        return member

    async def settled_at_s(self) -> float:
        """Wait until the group is settled. Return when the last member was."""
        await self._settled.wait()
        return self._settled_at_s

    def changed(self) -> None:
        """Record that a member has another epoch or other partitions."""
        held = [member.owned for member in self.members]
        is_whole = sum(map(len, held)) == self.partitions == len(frozenset().union(*held))
        epochs = {member.epoch for member in self.members}
        if is_whole and all(held) and len(epochs) == 1:
            self._settled_at_s = time.perf_counter()
            self._settled.set()

    async def leave(self, connection: Connection) -> None:
        """End all memberships with requests over this connection, which must be free. Raises WrongAnswer."""
        for member in self.members:
            member.connection.close()
            member.connection, member.epoch = connection, _LEAVE
            await member.ask()


@dataclass
class ConsumerMember:
    """A member. `owned` are the partitions that it consumes."""

    group: ConsumerGroup
    number: int
    connection: Connection
    epoch: int = 0
    interval_s: float = 0.0
    owned: Partitions = frozenset()
    member_id: str = field(default_factory=lambda: str(uuid4()))

    async def live(self) -> None:
        """Join, and send heartbeats until cancelled. Raises WrongAnswer."""
        await self._beat(
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=[self.group.topic],
            topic_partitions=[],
        )
        # As in a group that is not new, the members' heartbeats are spread over the interval.
        pause_s = self.interval_s * (self.number + 1) / len(self.group.members)
        while True:
            await asyncio.sleep(pause_s)
            await self._beat()
            pause_s = self.interval_s

    async def _beat(self, **fields: Any) -> None:
        answer = await self.ask(**fields)
        self.epoch, self.interval_s = answer.member_epoch, answer.heartbeat_interval_ms / _MS
        if answer.assignment is not None:
            owned = given_by(answer)
            has_lost, self.owned = bool(self.owned - owned), owned
            if has_lost:
                await self._beat(topic_partitions=by_topic(self.owned))
                return
        self.group.changed()

    async def ask(self, **fields: Any) -> Any:
        """Send a heartbeat with the member's epoch. Raises WrongAnswer on an error."""
        return expect_no_error(
            await self.connection.ask(
                CONSUMER_HEARTBEAT,
                group_id=self.group.group_id,
                member_id=self.member_id,
                member_epoch=self.epoch,
                **fields,
            )
        )
