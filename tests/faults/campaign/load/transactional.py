"""Members of Kafka's classic groups that commit their offsets in transactions.

They live as the other classic members do (`classic.py`); only a commit is a transaction. Members of even
number are clients of the older transactions, which name the group to the transaction coordinator themselves.
For the others the broker does that, and each transaction has an epoch of its own (KIP-890).
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from bench.load.connection import Connection
from bench.load.frames import (
    ADD_OFFSETS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER,
    OLD_END_TXN,
    OLD_TXN_COMMIT,
    STABLE_FETCH,
    TXN_COMMIT,
    Api,
)
from bench.load.load_result import WrongAnswer
from connections.address import Address
from tests.faults.campaign.load.classic import (
    ANSWER_TIMEOUT_S,
    NONE,
    PARTITIONS,
    RETRY_S,
    TOPIC,
    ClassicMember,
)
from tests.faults.campaign.load.gateway import GatewayTransport
from tests.faults.campaign.load.meter import Lost

T = TypeVar("T")
TRANSACTION_TIMEOUT_MS = 30_000
ABORTED = 0.25
"""The share of the transactions that a member aborts."""
CONCURRENT_TRANSACTIONS = 51
AGAIN = (14, 15, 16, CONCURRENT_TRANSACTIONS)
"""Errors after which a client asks the same again, perhaps another broker."""
_TRIES = 20


class Producer(NamedTuple):
    """A producer as the transaction coordinator knows it."""

    id: int
    epoch: int


class Refused(Exception):
    """An error of the transaction coordinator after which a client begins anew."""


class TransactionCoordinator:
    """A connection to the transaction coordinator of one id, found through the gateway."""

    def __init__(self, gateway: Address, transactional_id: str) -> None:
        self._gateway = gateway
        self._transactional_id = transactional_id
        self._connection: Connection | None = None

    async def ask(self, api: Api, **fields: Any) -> Any:
        """The answer, without an error of `AGAIN`. Raises Lost or Refused."""
        for tries_left in reversed(range(_TRIES)):
            try:
                if self._connection is None:
                    self._connection = await self._find()
                answer = await self._connection.ask(api, transactional_id=self._transactional_id, **fields)
            except (OSError, WrongAnswer) as error:
                self.close()
                raise Lost(str(error)) from error
            if answer.error_code == NONE:
                return answer
            if answer.error_code not in AGAIN or not tries_left:
                raise Refused(str(answer))
            if answer.error_code != CONCURRENT_TRANSACTIONS:
                self.close()
            await asyncio.sleep(RETRY_S)
        raise AssertionError("the last try returns or raises")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _find(self) -> Connection:
        first = await Connection.open(self._gateway)
        try:
            found = await first.ask(FIND_COORDINATOR, key=self._transactional_id, key_type=1)
            tries_left = _TRIES
            while found.error_code in AGAIN and tries_left:  # the broker creates its topic of transactions
                await asyncio.sleep(RETRY_S)
                found = await first.ask(FIND_COORDINATOR, key=self._transactional_id, key_type=1)
                tries_left -= 1
        finally:
            first.close()
        if found.error_code != NONE:
            raise WrongAnswer(f"no transaction coordinator: {found}")
        return await Connection.open(Address(found.host, found.port))


@dataclass
class TransactionalMember(ClassicMember):
    """One member and its producer."""

    transport: GatewayTransport
    gateway: Address | None = None
    _producer: Producer | None = None
    _coordinator: TransactionCoordinator | None = None

    @property
    def transactional_id(self) -> str:
        return f"{self.group}-{self.number}"

    @property
    def is_older(self) -> bool:
        """Whether its transactions have no epochs of their own."""
        return self.number % 2 == 0

    async def _commit(self, generation: int) -> None:
        if self.random.random() < 0.2:
            await self._ask(self._fetch_stable())
            return
        partition, offset = self.number % PARTITIONS, next(self.offsets)
        try:
            error = await self._transact(generation, partition, offset)
        except (Lost, Refused) as raised:
            # The next InitProducerId aborts what is open.
            self._producer = None
            if isinstance(raised, Lost):
                raise
            return
        await self._check(error)

    async def _transact(self, generation: int, partition: int, offset: int) -> int:
        """Commit an offset in a transaction, or abort it. Returns the error of the TxnOffsetCommit."""
        producer = self._producer = self._producer or await self._begin()
        tc = self._reached()
        if self.is_older:
            await self._limited(
                tc.ask(
                    ADD_OFFSETS, producer_id=producer.id, producer_epoch=producer.epoch, group_id=self.group
                )
            )
        error = await self._ask(self._commit_offset(producer, generation, partition, offset))
        is_committed = error == NONE and self.random.random() >= ABORTED
        ended = await self._limited(
            tc.ask(
                OLD_END_TXN if self.is_older else END_TXN,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                committed=is_committed,
            )
        )
        if not self.is_older:
            self._producer = Producer(ended.producer_id, ended.producer_epoch)
        self.meter.ended(self.group, partition, offset, is_committed=is_committed)
        return error

    async def _begin(self) -> Producer:
        answer = await self._limited(
            self._reached().ask(INIT_PRODUCER, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
        )
        return Producer(answer.producer_id, answer.producer_epoch)

    async def _commit_offset(self, producer: Producer, generation: int, partition: int, offset: int) -> int:
        committed = {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}
        answer = await self.transport.ask(
            OLD_TXN_COMMIT if self.is_older else TXN_COMMIT,
            transactional_id=self.transactional_id,
            group_id=self.group,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            generation_id=generation,
            member_id=self.member_id,
            topics=[{"name": TOPIC, "partitions": [{**committed, "committed_metadata": ""}]}],
        )
        return int(answer.topics[0].partitions[0].error_code)

    async def _fetch_stable(self) -> int:
        partition = self.number % PARTITIONS
        topics = [{"name": TOPIC, "partition_indexes": [partition]}]
        answer = await self.transport.ask(
            STABLE_FETCH, group_id=self.group, topics=topics, require_stable=True
        )
        return int(answer.error_code)

    async def _limited(self, answer: Coroutine[Any, Any, T]) -> T:
        """The transaction coordinator's answer. It says nothing about the group's coordinator."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        except TimeoutError as error:
            self._reached().close()
            raise Lost("no answer in time") from error

    async def live(self) -> None:
        """See `ClassicMember`."""
        try:
            await super().live()
        finally:
            self._reached().close()

    def _reached(self) -> TransactionCoordinator:
        if self._coordinator is None:
            assert self.gateway is not None
            self._coordinator = TransactionCoordinator(self.gateway, self.transactional_id)
        return self._coordinator
