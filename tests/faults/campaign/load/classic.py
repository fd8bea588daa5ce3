"""Members of Kafka's classic groups, through the gateway: they join, share the partitions, heartbeat, commit,
leave and come back.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from bench.load.connection import Connection
from bench.load.frames import COMMIT, FETCH, HEARTBEAT, JOIN, LEAVE, SYNC, Api
from bench.load.load_result import WrongAnswer
from kafka_why.connections.address import Address
from kafka_why.contract.protocols.subscriptions import (
    Assignment,
    Subscription,
    TopicPartition,
    encode_assignment,
    encode_subscription,
)
from tests.faults.campaign.load.meter import CHURN, PARTITIONS, RETRY_S, TOPIC, Lost, Member

T = TypeVar("T")
SESSION_MS = 10_000
REBALANCE_MS = 60_000
ANSWER_TIMEOUT_S = 30.0
JOIN_TIMEOUT_S = 75.0
SUBSCRIPTION = encode_subscription(Subscription((TOPIC,)))

NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED = 0, 25, 27, 79
REJOIN = (22, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS)


class Wire:
    """Kafka's wire protocol, one request at a time. It connects again with the next request."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection: Connection | None = None

    async def ask(self, api: Api, **fields: Any) -> Any:
        """Return the answer. Raises Lost."""
        try:
            if self._connection is None:
                self._connection = await self.open()
            return await self._connection.ask(api, **fields)
        except (OSError, WrongAnswer) as error:
            self.close()
            raise Lost(str(error)) from error

    async def open(self) -> Connection:
        return await Connection.open(self.address)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


async def limited(wire: Wire, answer: Coroutine[Any, Any, T], timeout_s: float = ANSWER_TIMEOUT_S) -> T:
    """Wait for an answer over this connection. Raises Lost."""
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError as error:
        wire.close()  # its answer could come later, and be taken for another's
        raise Lost("no answer in time") from error


def committed(partition: int, offset: int) -> list[dict[str, Any]]:
    """Return the topics of a commit of one offset."""
    one = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}
    return [{"name": TOPIC, "partitions": [{**one, "committed_metadata": ""}]}]


def commit_error(answer: Any) -> int:
    """Return the error code of a commit of one offset."""
    return int(answer.topics[0].partitions[0].error_code)


def shares(members: Sequence[str]) -> dict[str, bytes]:
    """Return the leader's assignment: the partitions in turn."""
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
class ClassicMember(Member):
    """One member. `generation` is its generation, or its epoch by the consumer protocol."""

    churn: ClassVar[float] = CHURN
    commit_api: ClassVar[Api] = COMMIT

    member_id: str = ""
    generation: int = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wire = Wire(self.gateway)

    def close(self) -> None:
        self.wire.close()

    async def live_once(self) -> None:
        """Join, and stay as long as the membership lasts."""
        try:
            await self.enter()
            await self._stay()
        except Rejoin as rejoin:
            if rejoin.forgets:
                self.member_id = ""

    async def enter(self) -> None:
        """Join until there is an assignment."""
        while True:
            joined = await self.ask(
                JOIN,
                timeout_s=JOIN_TIMEOUT_S,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": SUBSCRIPTION}],
            )
            if joined.error_code == MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
                continue
            await self.check(joined.error_code)
            if joined.error_code != NONE:
                continue
            self.generation = joined.generation_id
            is_leader = joined.leader == self.member_id
            dealt = shares(sorted(it.member_id for it in joined.members)) if is_leader else {}
            synced = await self.ask(
                SYNC,
                timeout_s=JOIN_TIMEOUT_S,
                generation_id=self.generation,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[{"member_id": one, "assignment": share} for one, share in dealt.items()],
            )
            await self.check(synced.error_code)
            if synced.error_code == NONE:
                return

    async def _stay(self) -> None:
        while True:
            await self.pause()
            draw = self.random.random()
            if draw < self.churn:
                await self.leave()
                await asyncio.sleep(self.random.uniform(0, 2))
                return
            if draw < 0.45:
                await self.commit()
            elif draw < 0.5:
                await self.fetch()
            else:
                await self.heartbeat()

    async def heartbeat(self) -> None:
        answer = await self.ask(HEARTBEAT, generation_id=self.generation, member_id=self.member_id)
        await self.check(answer.error_code)

    async def fetch(self) -> None:
        await self.ask(FETCH, topics=[{"name": TOPIC, "partition_indexes": [self.number % PARTITIONS]}])

    async def commit(self) -> None:
        # A partition of its own, so that the offsets of one partition grow in the order of the log.
        await self.commit_of(self.number % PARTITIONS)

    async def commit_of(self, partition: int) -> None:
        """Commit the next offset of a partition."""
        offset = next(self.offsets)
        commit = self.meter.sent(self.group, partition, offset)
        answer = await self.ask(
            self.commit_api,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=committed(partition, offset),
        )
        error = commit_error(answer)
        commit.answer(error)
        await self.check(error)

    async def leave(self) -> None:
        await self.ask(LEAVE, members=[{"member_id": self.member_id, "reason": None}])
        self.member_id = ""

    async def check(self, error: int) -> None:
        """Do what a client does after an error: join again, or pause and try again."""
        if error in REJOIN:
            raise Rejoin(error)
        if error != NONE:
            await asyncio.sleep(RETRY_S)

    async def ask(self, api: Api, *, timeout_s: float = ANSWER_TIMEOUT_S, **fields: Any) -> Any:
        """Return the coordinator's answer to a request about the group. Raises Lost."""
        return await self.count(self.wire.ask(api, group_id=self.group, **fields), timeout_s)

    async def count(self, answer: Coroutine[Any, Any, T], timeout_s: float = ANSWER_TIMEOUT_S) -> T:
        return await self.meter.count(self.group, limited(self.wire, answer, timeout_s))
