"""RocketMQ's consumers on the topics: heartbeats, lists, locks and offsets, in orderly consumption's way."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, TypeVar

from assignors.rocketmq.message_queue import MessageQueue
from clients.coordinator_client import CoordinatorClient
from clients.pending import R
from state.rocketmq.requests import (
    GetConsumerListByGroup,
    LockBatchMq,
    MessageModel,
    RegisterConsumer,
    Request,
    SubscriptionData,
    UnlockBatchMq,
    UnregisterConsumer,
)
from tests.faults.campaign.load.classic import CHURN, PARTITIONS, PAUSE_S, RETRY_S, TOPIC
from tests.faults.campaign.load.meter import Lost, Meter
from tests.faults.campaign.load.topics import commit_request, outcome

T = TypeVar("T")
QUEUES = tuple(MessageQueue(TOPIC, "broker", number) for number in range(PARTITIONS))


@dataclass
class RocketMqMember:
    """One client on a connection of its own."""

    protocol: str
    group: str
    number: int
    client: CoordinatorClient
    meter: Meter
    random: Random
    offsets: count = field(default_factory=lambda: count(1))  # type: ignore[type-arg]
    connections: count = field(default_factory=lambda: count(1))  # type: ignore[type-arg]

    async def live(self) -> None:
        """Act until cancelled."""
        while True:
            connection = f"{self.group}-{self.number}-{self.random.getrandbits(32)}-{next(self.connections)}"
            try:
                await self._consume(connection)
            except Lost:
                await asyncio.sleep(RETRY_S)

    async def _consume(self, connection: str) -> None:
        client_id = f"client-{self.number}"
        while True:
            await self._register(connection, client_id)
            listed = await self._ask(GetConsumerListByGroup(**self._envelope(connection, client_id)))
            mine = self._share(client_id, listed.consumer_id_list)
            await self._ask(LockBatchMq(**self._envelope(connection, client_id), mq_set=mine))
            await self._commit()
            await asyncio.sleep(PAUSE_S * self.random.uniform(0.5, 1.5))
            if self.random.random() < 0.1:
                await self._ask(UnlockBatchMq(**self._envelope(connection, client_id), mq_set=mine))
            if self.random.random() < 4 * CHURN:
                await self._ask(UnregisterConsumer(**self._envelope(connection, client_id)))
                return

    async def _register(self, connection: str, client_id: str) -> None:
        request = RegisterConsumer(
            **self._envelope(connection, client_id),
            message_model=MessageModel.CLUSTERING,
            subscription_data_set=(SubscriptionData(TOPIC),),
        )
        await self._ask(request)

    async def _commit(self) -> None:
        group, partition, offset = f"%OFFSET%{self.group}", self.number % PARTITIONS, next(self.offsets)
        self.meter.sent(group, partition, offset)
        request = commit_request(self.client, group, -1, "", partition, offset)
        answer = await self._counted(outcome(self.client.send(request)))
        if not answer.error_code and not answer.topics[0].partitions[0].error_code:
            self.meter.acknowledged(group, partition, offset)

    def _share(self, client_id: str, clients: tuple[str, ...]) -> tuple[MessageQueue, ...]:
        ids = sorted(set(clients) | {client_id})
        place = ids.index(client_id)
        return QUEUES[place :: len(ids)]

    def _envelope(self, connection: str, client_id: str) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "connection": connection,
            "client_id": client_id,
            "correlation_id": self.client.next_correlation_id(),
            "reply_partition": self.client.reply_partition,
        }

    async def _ask(self, request: Request[R]) -> R:
        return await self._counted(outcome(self.client.send(request)))

    async def _counted(self, answer: Coroutine[Any, Any, T]) -> T:
        return await self.meter.count(self.protocol, self.group, answer)
