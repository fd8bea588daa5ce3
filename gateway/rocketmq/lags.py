"""The lag of each queue of the coordinator's groups, polled from the brokers for the gateway's metrics.

Source: consumerProgress of RocketMQ's mqadmin.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from gateway.log_text import RateLimitedWarning
from gateway.rocketmq.brokers import BrokerAddress
from gateway.rocketmq.facts import ClusterFacts
from gateway.rocketmq.metrics import RocketmqCounts
from gateway.rocketmq.peers import RocketMqGroupsView
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.contract.rocketmq.requests import MessageModel
from kafka_why.remoting.codes import RequestCode
from kafka_why.why.rocketmq.polled.server import REQUESTS_PER_S, Server, ServerError

INTERVAL_S = 30.0
"""The pause between two rounds of polls. A round looks up topics for at most this time."""

GroupQueue = tuple[str, MessageQueue]
TopicQueues = dict[str, tuple[MessageQueue, ...]]

log = structlog.get_logger()


class QueueLags:
    """Polls brokers for the offsets of at most `max_queues` queues, of as many topics at most.

    Each broker gets at most 10 requests a second, so a round over many queues takes longer. A round replaces
    the lags of the one before, and its time is limited, so that lags in the metrics are never much older.
    """

    def __init__(
        self,
        servers: RocketMqServers,
        groups: RocketMqGroupsView,
        facts: ClusterFacts,
        counts: RocketmqCounts,
        max_queues: int,
    ) -> None:
        self._access = servers
        self._groups = groups
        self._facts = facts
        self._counts = counts
        self._max_queues = max_queues
        self._servers: dict[str, Server] = {}
        self._warning = RateLimitedWarning("the lags at a broker are not known", "rounds")

    async def follow(self, brokers: Callable[[], Iterable[BrokerAddress]]) -> None:
        """Poll until cancelled, and keep the results in the counts."""
        try:
            while self._max_queues:
                try:
                    await self.poll(brokers())
                except Exception as error:
                    self._counts.lags = {}
                    log.error("the lags of groups are not known", exc_info=error)
                await asyncio.sleep(INTERVAL_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connections to the brokers."""
        for server in self._servers.values():
            await server.close()

    async def poll(self, brokers: Iterable[BrokerAddress]) -> None:
        """Poll the offsets of all queues once."""
        masters = {one.name: one.address for one in sorted(brokers, key=lambda one: -one.id)}
        for address in self._servers.keys() - masters.values():
            await self._servers.pop(address).close()
        queues, groups_left_out = await self._queues()
        by_broker: defaultdict[str, list[GroupQueue]] = defaultdict(list)
        for group_id, queue in queues:
            if queue.broker_name in masters:
                by_broker[masters[queue.broker_name]].append((group_id, queue))
        found = await asyncio.gather(*(self._lags(*one) for one in by_broker.items()))
        self._counts.lags = {it: lag for lags in found for it, lag in lags.items()}
        self._counts.lag_groups_left_out = groups_left_out

    async def _queues(self) -> tuple[list[GroupQueue], int]:
        """Return the queues to poll, and the number of groups of which some are left out."""
        found: list[GroupQueue] = []
        by_topic: TopicQueues = {}
        left_out = 0
        until_s = asyncio.get_running_loop().time() + INTERVAL_S
        for group in await asyncio.to_thread(self._groups.groups):
            # The clients of a group that broadcasts keep their offsets themselves.
            if group.message_model is not MessageModel.CLUSTERING:
                continue
            if len(found) >= self._max_queues:
                left_out += 1
                continue
            topics = sorted(group.subscriptions)
            is_complete = await self._look_up(topics, by_topic, until_s)
            found += [(group.group_id, it) for topic in topics for it in by_topic.get(topic, ())]
            left_out += not is_complete or len(found) > self._max_queues
        return found[: self._max_queues], left_out

    async def _look_up(self, topics: Iterable[str], by_topic: TopicQueues, until_s: float) -> bool:
        """Add the queues of these topics. Return False if some are left out."""
        loop = asyncio.get_running_loop()
        for topic in topics:
            if topic in by_topic:
                continue
            # Clients choose the topics, and some may not exist.
            if len(by_topic) >= self._max_queues or loop.time() >= until_s:
                return False
            try:
                async with asyncio.timeout_at(until_s):
                    by_topic[topic] = await self._facts.fetch_topic_queues(topic) or ()
            except TimeoutError:
                return False
        return True

    async def _lags(self, address: str, queues: Collection[GroupQueue]) -> Mapping[GroupQueue, int]:
        """Return the lags of those of these queues for which the broker of this address answers in time."""
        found: dict[GroupQueue, int] = {}
        usual_s = 2 * len(queues) / REQUESTS_PER_S
        try:
            async with asyncio.timeout(INTERVAL_S + 2 * usual_s):
                await self._poll_broker(address, queues, found)
        except TimeoutError:
            self._warning.add(broker=address, error="it answers too slowly")
        return found

    async def _poll_broker(
        self, address: str, queues: Iterable[GroupQueue], found: dict[GroupQueue, int]
    ) -> None:
        server = self._servers.setdefault(address, Server(address, self._access))
        for group_id, queue in queues:
            where = {"topic": queue.topic, "queueId": str(queue.queue_id)}
            of_group = {"consumerGroup": group_id, "setZeroIfNotFound": "false"}
            try:
                stored = await server.offset(RequestCode.QUERY_CONSUMER_OFFSET, {**of_group, **where})
                end = await server.offset(RequestCode.GET_MAX_OFFSET, where)
            except ServerError as error:
                self._warning.add(broker=address, group_id=group_id, topic=queue.topic, error=str(error))
                if error.code is None:
                    break  # the broker does not answer
                continue
            if stored is not None and end is not None:
                found[group_id, queue] = max(end - stored, 0)
