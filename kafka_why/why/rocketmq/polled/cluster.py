"""Polls a RocketMQ cluster, and changes nothing in it.

Source: consumerProgress, consumerConnection and consumerStatus of RocketMQ's mqadmin.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from itertools import chain
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.rocketmq.requests import (
    RETRY_GROUP_TOPIC_PREFIX,
    MessageQueue,
    ResponseCode,
    SubscriptionData,
)
from kafka_why.now import now_ms
from kafka_why.numbers import parse_whole_number
from kafka_why.remoting.answers import (
    RunningInfo,
    TopicSubscription,
    decode_cluster,
    decode_consumer_connection,
    decode_route,
    decode_running_info,
    decode_topic_list,
)
from kafka_why.remoting.codes import RequestCode
from kafka_why.rocketmq_group import filter_text
from kafka_why.stored_log import Progress
from kafka_why.topic_reader import ClientError
from kafka_why.why.history import HistoryUnavailable, did_you_mean
from kafka_why.why.rocketmq.polled.model import (
    BrokerView,
    ClientAnswer,
    GroupPoll,
    HeldQueue,
    PolledConnection,
    QueueOffsets,
)
from kafka_why.why.rocketmq.polled.server import NO_FIELDS, Fields, Server, ServerError
from kafka_why.wording import count

MAX_CLIENTS = 200
"""The maximum number of clients that a poll queries."""
MAX_QUEUES = 400
"""The maximum number of queues whose offsets a poll reads."""
# A broker waits up to 10 s for a client's answer, and uses one of its few administration threads.
_CLIENT_TIMEOUT_S, _MAX_WAITING_CLIENTS = 12.0, 4
_PERM_READ = 4
_MAX_TIME_MS = 10**14  # Python's datetime has no later dates

T = TypeVar("T")


class ClusterUnavailable(ClientError):
    """The error when a poll fails, for example because no name server answers."""


class ClusterPoller:
    """A poller of the RocketMQ cluster of some name servers. For `async with`, in one event loop."""

    def __init__(self, servers: RocketMqServers) -> None:
        self._servers = servers
        self._name_servers = [Server(address, servers) for address in servers.addresses]
        self._brokers: dict[str, Server] = {}  # by address
        self._addresses: dict[str, dict[int, str]] = {}  # by broker name and id, as of the last `views`
        self._client_requests = asyncio.Semaphore(_MAX_WAITING_CLIENTS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in (*self._name_servers, *self._brokers.values()):
            await server.close()

    async def group_ids(self) -> list[str]:
        """Return the ids of all consumer groups that have a retry topic. Raises ClusterUnavailable."""
        topics = await self._ask_name_server(
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, decode_topic_list
        )
        return sorted(
            topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
            for topic in topics
            if topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        )

    async def views(self, group_id: str) -> list[BrokerView]:
        """Return each broker's view of the group. Raises ClusterUnavailable if no broker answers."""
        cluster = await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO, decode_cluster)
        self._addresses = {
            name: data.broker_addrs for name, data in cluster.broker_addr_table.items() if data.broker_addrs
        }
        brokers = [(name, number) for name, ids in sorted(self._addresses.items()) for number in sorted(ids)]
        views = await asyncio.gather(*(self._view(group_id, *broker) for broker in brokers))
        errors = [f"broker {view.broker} {view.error}" for view in views if view.error is not None]
        if len(errors) == len(views):
            raise ClusterUnavailable("; ".join(errors) or f"no broker is registered at {self._servers}")
        return views

    async def poll(self, group_id: str, progress: Progress = lambda *_: None) -> GroupPoll:
        """Return the group, its clients and its queues.

        `progress` is called with the number of answers so far and the total, first for the clients, then for
        the offsets. Raises ClusterUnavailable, or HistoryUnavailable if the group is unknown.
        """
        at_ms, views = now_ms(), await self.views(group_id)
        poll, notes = GroupPoll(group_id=group_id, at_ms=at_ms, views=views), list[str]()
        if len(poll.client_ids) > MAX_CLIENTS:
            notes.append(f"{count(len(poll.client_ids) - MAX_CLIENTS, 'client')} were not asked")
        poll = replace(poll, clients=await self._clients(poll, progress))
        topics = list(poll.topics) or await self.topics_with_offsets(group_id, notes)
        if not (topics or notes or poll.client_ids):
            raise await self._unknown_group_error(group_id)
        queues = [queue for topic in topics for queue in await self._queues(topic, notes)]
        if len(queues) > MAX_QUEUES:
            notes.append(f"the offsets of {len(queues) - MAX_QUEUES} queues were not read")
        # In a group that broadcasts, clients store their offsets locally.
        stored_queues = [] if poll.is_broadcasting else queues[:MAX_QUEUES]
        offsets = await _gather((self._offsets(group_id, queue, notes) for queue in stored_queues), progress)
        return replace(
            poll,
            queues=queues,
            offsets=[one for one in offsets if one is not None],
            notes=[*dict.fromkeys(notes)],
        )

    async def topics_with_offsets(self, group_id: str, notes: list[str]) -> list[str]:
        """Return the topics for which brokers store offsets of the group. Failures are added to `notes`."""
        topics = set[str]()
        for name in self._addresses:
            try:
                code, group = RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": group_id}
                topics.update(await self._broker(name).ask(code, decode_topic_list, group))
            except ServerError as error:
                notes.append(f"for the group's topics broker {name} {error}")
        return sorted(topics)

    async def _unknown_group_error(self, group_id: str) -> HistoryUnavailable:
        question = ""
        with suppress(ClusterUnavailable):  # name servers may list no topics
            question = did_you_mean(group_id, await self.group_ids())
        return HistoryUnavailable(f"no broker has a consumer or an offset of group {group_id}{question}")

    async def _ask_name_server(
        self, code: RequestCode, decode: Callable[[bytes], T], fields: Fields = NO_FIELDS
    ) -> T:
        """Send a request to the name server that answered last or, if it fails, to the others.

        Raises ClusterUnavailable, or ServerError if a topic has no route.
        """
        errors = []
        for server in list(self._name_servers):
            try:
                return await server.ask(code, decode, fields)
            except ServerError as error:
                if (code, error.code) == (RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST):
                    raise
                errors.append(f"name server {server.address} {error}")
                self._name_servers.remove(server)
                self._name_servers.append(server)
        raise ClusterUnavailable("; ".join(errors))

    def _broker(self, name: str, number: int | None = None) -> Server:
        """Return the broker with this name and id, by default the master.

        Raises ServerError if it is no longer registered.
        """
        ids = self._addresses.get(name, {})
        address = ids.get(min(ids, default=0) if number is None else number)
        if address is None:
            raise ServerError("is not registered any more")
        return self._brokers.setdefault(address, Server(address, self._servers))

    async def _view(self, group_id: str, name: str, number: int) -> BrokerView:
        """Return the view of the broker with this name and id. An error is a field of the view."""
        code, broker = RequestCode.GET_CONSUMER_CONNECTION_LIST, f"{name}/{number}"
        try:
            server = self._broker(name, number)
            answer = await server.ask(code, decode_consumer_connection, {"consumerGroup": group_id})
        except ServerError as error:
            is_offline = error.code == ResponseCode.CONSUMER_NOT_ONLINE
            return BrokerView(broker=broker, error=None if is_offline else str(error))
        return BrokerView(
            broker=broker,
            connections=sorted(
                PolledConnection(c.client_id or "", c.client_addr or "", c.language or "", c.version)
                for c in answer.connection_set
            ),
            message_model=answer.message_model,
            consume_type=answer.consume_type,
            subscriptions=_filters_by_topic(answer.subscription_table.values()),
        )

    async def _clients(self, poll: GroupPoll, progress: Progress) -> list[ClientAnswer]:
        """Query each client through the broker to which it has the most connections.

        A broker passes the request to one client with the id, so a duplicate id is queried through all its
        brokers.
        """
        duplicates = poll.duplicates()
        targets = [
            (client_id, view.broker)
            for client_id in poll.client_ids[:MAX_CLIENTS]
            for view in poll.views
            if any(connection.client_id == client_id for connection in view.connections)
            and (client_id in duplicates or view.broker == poll.connections(client_id)[0])
        ]
        answers = await _gather((self._client(poll.group_id, *target) for target in targets), progress)
        # Several brokers may have passed the request to the same client: its id and start are then the same.
        distinct = {(a.client_id, a.started_ms, a.broker if a.error else None): a for a in answers}
        return list(distinct.values())

    async def _client(self, group_id: str, client_id: str, broker: str) -> ClientAnswer:
        name, _, number = broker.rpartition("/")
        fields = {"consumerGroup": group_id, "clientId": client_id, "jstackEnable": "false"}
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        async with self._client_requests:
            try:
                server = self._broker(name, int(number))
                info = await server.ask(code, decode_running_info, fields, _CLIENT_TIMEOUT_S)
            except ServerError as error:
                return ClientAnswer(
                    client_id=client_id,
                    broker=broker,
                    error=f"{broker} {error}",
                    is_silent=error.code == ResponseCode.CONSUME_MSG_TIMEOUT,
                )
        return _client_answer(client_id, broker, info)

    async def _queues(self, topic: str, notes: list[str]) -> list[MessageQueue]:
        """Return the readable queues of a topic. A failure is added to `notes`, except for a retry topic."""
        code, fields = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            route = await self._ask_name_server(code, decode_route, fields)
        except ServerError as error:
            if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
                notes.append(f"for topic {topic} the name server {error}")
            return []
        return [
            MessageQueue(topic, data.broker_name, number)
            for data in route.queue_datas
            if data.perm & _PERM_READ
            for number in range(data.read_queue_nums)
        ]

    async def _offsets(self, group_id: str, queue: MessageQueue, notes: list[str]) -> QueueOffsets | None:
        """Return the stored offset and the end of a queue, or None if the end is unknown.

        Failures are added to `notes`.
        """
        of_queue = {"topic": queue.topic, "queueId": str(queue.queue_id)}
        of_group = {"consumerGroup": group_id, "setZeroIfNotFound": "false"}
        try:
            server = self._broker(queue.broker_name)
            stored = await server.offset(RequestCode.QUERY_CONSUMER_OFFSET, {**of_group, **of_queue})
            end = await server.offset(RequestCode.GET_MAX_OFFSET, of_queue)
        except ServerError as error:
            notes.append(f"for offsets of topic {queue.topic} broker {queue.broker_name} {error}")
            return None
        return None if end is None else QueueOffsets(queue, stored, end)


async def _gather(coroutines: Iterable[Coroutine[Any, Any, T]], progress: Progress) -> list[T]:
    """Run the coroutines, and call `progress` after each. Return the results in their order."""
    to_run, completed = [*coroutines], 0

    async def run_and_count(coroutine: Coroutine[Any, Any, T]) -> T:
        nonlocal completed
        result = await coroutine
        completed += 1
        progress(completed, len(to_run))
        return result

    return await asyncio.gather(*map(run_and_count, to_run))


def _filters_by_topic(subscriptions: Iterable[TopicSubscription]) -> dict[str, str]:
    """Return the filter of each topic as text."""
    return {
        one.topic: filter_text(
            SubscriptionData(
                one.topic,
                one.sub_string or "*",
                expression_type=one.expression_type or "TAG",
                tags_set=one.tags_set or (),
            )
        )
        for one in subscriptions
    }


def _time_ms(text: str) -> int | None:
    """Parse a time in a client's answer, or return None if it is missing or impossible."""
    try:
        return parse_whole_number(text, 1, _MAX_TIME_MS)
    except ValueError:
        return None


def _client_answer(client_id: str, broker: str, info: RunningInfo) -> ClientAnswer:
    properties = info.properties
    return ClientAnswer(
        client_id=client_id,
        broker=broker,
        subscriptions=_filters_by_topic(info.subscription_set),
        held=[
            HeldQueue(queue, _time_ms(str(one.last_consume_timestamp)), one.cached_msg_count)
            for queue, one in chain(info.mq_table.items(), info.mq_pop_table.items())
            if not one.droped
        ],
        message_model=properties.get("messageModel"),
        # Java's default text of an object is its class, "@" and a number.
        strategy=properties.get("allocateMessageQueueStrategy", "").partition("@")[0].rpartition(".")[2]
        or None,
        version=properties.get("PROP_CLIENT_VERSION"),
        pops=bool(info.mq_pop_table),
        started_ms=_time_ms(properties.get("PROP_CONSUMER_START_TIMESTAMP", "")),
    )
