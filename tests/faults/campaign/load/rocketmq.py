"""RocketMQ's consumers on the topics: heartbeats, lists, locks and offsets, in orderly consumption's way."""

import asyncio
from typing import Any

from kafka_why.contract.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit
from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.contract.rocketmq.requests import (
    GetConsumerListByGroup,
    LockBatchMq,
    MessageModel,
    RegisterConsumer,
    SubscriptionData,
    UnlockBatchMq,
    UnregisterConsumer,
)
from kafka_why.topic_reader import ClientError
from tests.faults.campaign.load.meter import CHURN, PARTITIONS, TOPIC, Lost, Member

QUEUES = tuple(MessageQueue(TOPIC, "broker", number) for number in range(PARTITIONS))
COMMIT_VERSION = 8


class RocketMqMember(Member):
    """One client on a connection of its own. Members share the CoordinatorClient, which writes packs."""

    async def live_once(self) -> None:
        client_id, connection = f"client-{self.number}", f"{self.group}-{self.random.getrandbits(64)}"

        def envelope() -> dict[str, Any]:
            return {
                "group_id": self.group,
                "connection": connection,
                "client_id": client_id,
                "correlation_id": self.client.next_correlation_id(),
                "reply_partition": self.client.reply_partition,
            }

        while self.random.random() >= 4 * CHURN:
            await self._ask(
                RegisterConsumer(
                    **envelope(),
                    message_model=MessageModel.CLUSTERING,
                    subscription_data_set=(SubscriptionData(TOPIC),),
                )
            )
            listed = await self._ask(GetConsumerListByGroup(**envelope()))
            ids = sorted({*listed.consumer_id_list, client_id})
            mine = QUEUES[ids.index(client_id) :: len(ids)]
            await self._ask(LockBatchMq(**envelope(), mq_set=mine))
            await self._commit()
            await self.pause()
            if self.random.random() < 0.1:
                await self._ask(UnlockBatchMq(**envelope(), mq_set=mine))
        await self._ask(UnregisterConsumer(**envelope()))

    async def _commit(self) -> None:
        group, partition, offset = f"%OFFSET%{self.group}", self.number % PARTITIONS, next(self.offsets)
        commit = self.meter.sent(group, partition, offset)
        answer = await self._ask(
            OffsetCommit(
                **self.client.header(group, COMMIT_VERSION),
                generation_id=-1,
                member_id="",
                topics=[CommittedTopic(TOPIC, [CommittedPartition(partition, offset)])],
            )
        )
        commit.answer(answer.error_code or answer.topics[0].partitions[0].error_code)

    async def _ask(self, request: Any) -> Any:
        async def answer() -> Any:
            try:
                return await asyncio.wrap_future(self.client.send(request))
            except ClientError as error:
                raise Lost(str(error)) from error

        return await self.meter.count(self.group, answer())
