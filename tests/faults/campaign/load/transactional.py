"""Members of Kafka's classic groups that commit their offsets in transactions.

They live as the other classic members do (`classic.py`); only a commit is a transaction. Members of even
number are clients of the older transactions, which name the group to the transaction coordinator themselves.
For the others the broker does that, and each transaction has an epoch of its own (KIP-890).
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

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
from kafka_why.connections.address import Address
from tests.faults.campaign.load.classic import NONE, ClassicMember, Wire, commit_error, committed, limited
from tests.faults.campaign.load.meter import PARTITIONS, RETRY_S, TOPIC, Lost

TRANSACTION_TIMEOUT_MS = 30_000
ABORTED = 0.25
"""The share of the transactions that a member aborts."""
CONCURRENT_TRANSACTIONS = 51
AGAIN = (14, 15, 16, CONCURRENT_TRANSACTIONS)
"""Errors after which a client asks the same again, perhaps another broker."""
_TRIES = 20


class Producer(NamedTuple):
    """A producer as the transaction coordinator knows it."""

    producer_id: int
    producer_epoch: int


class Refused(Exception):
    """An error of the transaction coordinator after which a client begins anew."""


class TransactionCoordinator(Wire):
    """A connection to the transaction coordinator of one id, found through the gateway."""

    def __init__(self, gateway: Address, transactional_id: str) -> None:
        super().__init__(gateway)
        self._transactional_id = transactional_id

    async def transact(self, api: Api, **fields: Any) -> Any:
        """Return the answer, without an error of `AGAIN`. Raises Lost or Refused."""
        for _ in range(_TRIES):
            answer = await limited(self, self.ask(api, transactional_id=self._transactional_id, **fields))
            if answer.error_code == NONE:
                return answer
            if answer.error_code not in AGAIN:
                raise Refused(str(answer))
            if answer.error_code != CONCURRENT_TRANSACTIONS:
                self.close()
            await asyncio.sleep(RETRY_S)
        raise Refused(f"{api} was tried {_TRIES} times")

    async def open(self) -> Connection:
        first = await super().open()
        try:
            find = partial(first.ask, FIND_COORDINATOR, key=self._transactional_id, key_type=1)
            found = await find()
            for _ in range(_TRIES):
                if found.error_code not in AGAIN:
                    break
                await asyncio.sleep(RETRY_S)  # the broker creates its topic of transactions
                found = await find()
        finally:
            first.close()
        if found.error_code != NONE:
            raise WrongAnswer(f"no transaction coordinator: {found}")
        return await Connection.open(Address(found.host, found.port))


@dataclass
class TransactionalMember(ClassicMember):
    """One member and its producer."""

    producer: Producer | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._transactional_id = f"{self.group}-{self.number}"
        self._coordinator = TransactionCoordinator(self.gateway, self._transactional_id)
        # Its transactions have no epochs of their own.
        self._is_older = self.number % 2 == 0

    def close(self) -> None:
        super().close()
        self._coordinator.close()

    async def commit(self) -> None:
        partition = self.number % PARTITIONS
        if self.random.random() < 0.2:
            topics = [{"name": TOPIC, "partition_indexes": [partition]}]
            await self.ask(STABLE_FETCH, topics=topics, require_stable=True)
            return
        try:
            error = await self._transact(partition, next(self.offsets))
        except (Lost, Refused) as raised:
            # The next InitProducerId aborts what is open.
            self.producer = None
            if isinstance(raised, Lost):
                raise
            return
        await self.check(error)

    async def _transact(self, partition: int, offset: int) -> int:
        """Commit an offset in a transaction, or abort it. Return the error of the TxnOffsetCommit."""
        transact = self._coordinator.transact
        if self.producer is None:
            began = await transact(INIT_PRODUCER, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS)
            self.producer = Producer(began.producer_id, began.producer_epoch)
        producer = self.producer._asdict()
        if self._is_older:
            await transact(ADD_OFFSETS, **producer, group_id=self.group)
        answer = await self.ask(
            OLD_TXN_COMMIT if self._is_older else TXN_COMMIT,
            transactional_id=self._transactional_id,
            **producer,
            generation_id=self.generation,
            member_id=self.member_id,
            topics=committed(partition, offset),
        )
        error = commit_error(answer)
        is_committed = error == NONE and self.random.random() >= ABORTED
        ended = await transact(OLD_END_TXN if self._is_older else END_TXN, **producer, committed=is_committed)
        if not self._is_older:
            self.producer = Producer(ended.producer_id, ended.producer_epoch)
        self.meter.transactions[is_committed].append((self.group, partition, offset))
        return error
