"""Members of a group that uses the consumer protocol (KIP-848). They give up revoked partitions at once."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from bench.load.connection import Connection, expect_no_error
from bench.load.frames import CONSUMER_HEARTBEAT
from bench.load.member import REBALANCE_TIMEOUT_MS
from kafka_why.connections.address import Address

_LEAVE_EPOCH = -1
_MS = 1_000

Partitions = frozenset[tuple[UUID, int]]


def assigned_by(answer: Any) -> Partitions:
    """Return the partitions in a heartbeat response, which must have an assignment."""
    topics = answer.assignment.topic_partitions
    return frozenset((topic.topic_id, index) for topic in topics for index in topic.partitions)


def by_topic(partitions: Partitions) -> list[dict[str, Any]]:
    """Return partitions as the `topic_partitions` of a heartbeat."""
    indexes: dict[UUID, list[int]] = {}
    for topic_id, index in sorted(partitions):
        indexes.setdefault(topic_id, []).append(index)
    return [{"topic_id": topic_id, "partitions": of_topic} for topic_id, of_topic in indexes.items()]


@dataclass
class ConsumerGroup:
    """The members of a group. It is settled when all own partitions in one epoch, and each has one owner."""

    topic: str
    partitions: int
    group_id: str = field(default_factory=lambda: f"settling-{uuid4()}")
    members: list["ConsumerMember"] = field(default_factory=list)
    _settled_at_s: float = 0.0
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    async def add(self, address: Address) -> "ConsumerMember":
        """Add a member and connect it. It joins when `live` is called."""
        member = ConsumerMember(self, len(self.members), await Connection.open(address))
        self.members.append(member)
        self._settled.clear()
        return member

    async def settled_at_s(self) -> float:
        """Wait until the group is settled, and return when it became so (`time.perf_counter`)."""
        await self._settled.wait()
        return self._settled_at_s

    def on_member_changed(self) -> None:
        """Check whether the group is settled, after a member's epoch or partitions have changed."""
        owned = [member.owned for member in self.members]
        # Both are equal only if no partition has two owners.
        has_one_owner_each = sum(map(len, owned)) == self.partitions == len(frozenset().union(*owned))
        epochs = {member.epoch for member in self.members}
        if has_one_owner_each and all(owned) and len(epochs) == 1:
            self._settled_at_s = time.perf_counter()
            self._settled.set()

    async def leave(self, connection: Connection) -> None:
        """End all memberships with requests over this connection, which must be free. Raises WrongAnswer."""
        for member in self.members:
            member.connection.close()
            member.connection, member.epoch = connection, _LEAVE_EPOCH
            await member.ask()


@dataclass
class ConsumerMember:
    """A member."""

    group: ConsumerGroup
    number: int  # from 0, in the order of joining
    connection: Connection
    epoch: int = 0
    interval_s: float = 0.0  # the heartbeat interval that the coordinator requires
    owned: Partitions = frozenset()  # the partitions that it consumes
    member_id: str = field(default_factory=lambda: str(uuid4()))

    async def live(self) -> None:
        """Join, and send heartbeats until cancelled. Raises WrongAnswer."""
        await self._heartbeat(
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=[self.group.topic],
            topic_partitions=[],
        )
        # Spread the members' heartbeats over the interval, as in a group that has run for some time.
        pause_s = self.interval_s * (self.number + 1) / len(self.group.members)
        while True:
            await asyncio.sleep(pause_s)
            await self._heartbeat()
            pause_s = self.interval_s

    async def _heartbeat(self, **fields: Any) -> None:
        """Send a heartbeat, and take over an assignment in the response. Give up revoked partitions."""
        answer = await self.ask(**fields)
        self.epoch, self.interval_s = answer.member_epoch, answer.heartbeat_interval_ms / _MS
        if answer.assignment is not None:
            owned = assigned_by(answer)
            must_revoke, self.owned = bool(self.owned - owned), owned
            if must_revoke:
                await self._heartbeat(topic_partitions=by_topic(self.owned))
                return
        self.group.on_member_changed()

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
