"""Polls of a RocketMQ cluster. They only read, at most REQUESTS_PER_S times a second at each server.

Source: consumerProgress, consumerConnection and consumerStatus of RocketMQ's mqadmin.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from typing import Self, TypeVar

from msgspec.structs import replace

from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.rocketmq.queues import RETRY_GROUP_TOPIC_PREFIX, MessageQueue
from kafka_why.contract.rocketmq.responses import ResponseCode
from kafka_why.now import now_ms
from kafka_why.remoting.answers import (
    RunningInfo,
    TopicSubscription,
    decode_consumer_connection,
    decode_running_info,
    decode_topic_list,
)
from kafka_why.remoting.client import RemotingClient
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import Header
from kafka_why.remoting.routes import decode_cluster, decode_route
from kafka_why.remoting.strict_json import MalformedFrame
from kafka_why.topic_reader import ClientError
from kafka_why.why.history import HistoryUnavailable, near_names
from kafka_why.why.rocketmq.polled.model import (
    BrokerView,
    ClientAnswer,
    GroupPoll,
    HeldQueue,
    PolledConnection,
    QueueOffsets,
)
from kafka_why.why.wording import count

REQUESTS_PER_S = 10
MAX_CLIENTS = 200
"""Clients that are asked in a poll."""
MAX_QUEUES = 400
"""Queues whose offsets are read in a poll."""
_TIMEOUT_S = 5.0
# A broker waits 10 s for a client's answer, with one of its threads for administration.
_CLIENT_TIMEOUT_S, _MAX_WAITING_CLIENTS = 12.0, 4
_PERM_READ = 4
_RIGHTS = "(reading needs GET on the group and its topics, and the keys of --rocketmq-acl or the environment)"

T = TypeVar("T")


class ClusterUnavailable(ClientError):
    """No name server answers, or the brokers refuse what is read. The message says what to do."""


class _ErrorAnswer(ClientError):
    """An answer with another code than 0. Its text completes a sentence about the server."""

    def __init__(self, header: Header) -> None:
        is_refusal = header.code == ResponseCode.NO_PERMISSION
        said = f"{'refuses access' if is_refusal else f'answers {header.code}'}: {header.remark}"
        super().__init__(f"{said} {_RIGHTS}" if is_refusal else said)
        self.code = header.code


class _Server:
    """A name server or a broker address: one connection, and turns that hold the rate."""

    def __init__(self, address: str, servers: RocketMqServers) -> None:
        self.address = address
        self._servers = servers
        self._client: RemotingClient | None = None
        self._turn = asyncio.Lock()
        self._next_s = 0.0

    async def ask(
        self, code: RequestCode, decode: Callable[[bytes], T], timeout_s: float = _TIMEOUT_S, **fields: str
    ) -> tuple[Header, T]:
        """Return the header and the decoded body of the answer. Raises _ErrorAnswer, OSError."""
        try:
            client = await self._connected()
            header, body = await client.invoke(code, fields, timeout_s=timeout_s)
            if header.code != ResponseCode.SUCCESS:
                raise _ErrorAnswer(header)
            return header, decode(body)
        except (OSError, MalformedFrame) as error:
            if not isinstance(error, TimeoutError):  # a late answer does no harm
                await self.close()
            raise OSError(f"does not answer: {str(error) or type(error).__name__}") from error

    async def _connected(self) -> RemotingClient:
        """Wait for this request's turn, and return the connection."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._next_s - loop.time())
            self._next_s = loop.time() + 1 / REQUESTS_PER_S
            if self._client is None:
                self._client = await RemotingClient.open(
                    self.address,
                    credentials=self._servers.keys,
                    tls=self._servers.tls,
                    timeout_s=_TIMEOUT_S,
                )
            return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


class ClusterPoller:
    """A RocketMQ cluster, read through its name servers, in an `async with` block of one event loop."""

    def __init__(self, servers: RocketMqServers) -> None:
        self._servers = servers
        self._name_servers = [_Server(address, servers) for address in servers.addresses]
        self._brokers: dict[str, _Server] = {}
        self._addresses: dict[str, dict[int, str]] = {}  # by name and id, as of the last views
        self._waiting = asyncio.Semaphore(_MAX_WAITING_CLIENTS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in (*self._name_servers, *self._brokers.values()):
            await server.close()

    async def group_ids(self) -> list[str]:
        """Return the consumer groups, by their topics for retries. Raises ClusterUnavailable."""
        topics = await self._ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, decode_topic_list)
        return sorted(
            topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
            for topic in topics
            if topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        )

    async def views(self, group_id: str) -> list[BrokerView]:
        """Return the group as each broker address has it. Raises ClusterUnavailable."""
        cluster = await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, decode_cluster)
        self._addresses = {
            name: d.broker_addrs for name, d in cluster.broker_addr_table.items() if d.broker_addrs
        }
        brokers = [(name, number) for name, ids in sorted(self._addresses.items()) for number in sorted(ids)]
        found = await asyncio.gather(*(self._view(group_id, *broker) for broker in brokers))
        errors = [f"broker {view.broker} {view.error}" for view in found if view.error is not None]
        if len(errors) == len(found):
            raise ClusterUnavailable("; ".join(errors) or f"no broker is registered at {self._servers}")
        return found

    async def poll(self, group_id: str) -> GroupPoll:
        """Return the group, its clients and its queues.

        Raises ClusterUnavailable, and HistoryUnavailable if the group is unknown.
        """
        at_ms, views = now_ms(), await self.views(group_id)
        poll = GroupPoll(group_id=group_id, at_ms=at_ms, views=views)
        notes = []
        if len(poll.client_ids) > MAX_CLIENTS:
            notes.append(f"{count(len(poll.client_ids) - MAX_CLIENTS, 'client')} were not asked")
        poll = replace(poll, clients=await self._clients(poll))
        topics = list(poll.topics) or await self._topics_of_offline(group_id)
        queues = [*chain.from_iterable([await self._queues(topic, notes) for topic in topics])]
        if len(queues) > MAX_QUEUES:
            notes.append(f"the offsets of {len(queues) - MAX_QUEUES} queues were not read")
        offsets = await asyncio.gather(*(self._offsets(group_id, q) for q in queues[:MAX_QUEUES]))
        names = {queue.broker_name for queue in queues}
        return replace(
            poll,
            views=[view for view in views if view.connections or view.broker.rpartition("/")[0] in names],
            queues=queues,
            offsets=[one for one in offsets if one is not None],
            notes=notes,
        )

    async def _ask(self, code: RequestCode, decode: Callable[[bytes], T], **fields: str) -> T:
        """Ask the name server that answered last, else another one. Raises ClusterUnavailable."""
        errors = []
        for server in list(self._name_servers):
            try:
                return (await server.ask(code, decode, _TIMEOUT_S, **fields))[1]
            except OSError as error:
                errors.append(f"{server.address} {error}")
                self._name_servers.append(self._name_servers.pop(0))
        raise ClusterUnavailable(f"no name server answers: {'; '.join(errors)}")

    def _broker(self, name: str, number: int | None = None) -> _Server:
        """Return a broker address, that of the master without a number. Raises OSError if it has gone."""
        ids = self._addresses.get(name, {})
        address = ids.get(min(ids, default=0) if number is None else number)
        if address is None:
            raise OSError("is not registered any more")
        return self._brokers.setdefault(address, _Server(address, self._servers))

    async def _view(self, group_id: str, name: str, number: int) -> BrokerView:
        code, broker = RequestCode.GET_CONSUMER_CONNECTION_LIST, f"{name}/{number}"
        try:
            server = self._broker(name, number)
            _, found = await server.ask(code, decode_consumer_connection, consumerGroup=group_id)
        except (OSError, _ErrorAnswer) as error:
            is_offline = isinstance(error, _ErrorAnswer) and error.code == ResponseCode.CONSUMER_NOT_ONLINE
            return BrokerView(broker=broker, error=None if is_offline else str(error))
        return BrokerView(
            broker=broker,
            connections=sorted(
                PolledConnection(c.client_id or "", c.client_addr or "", c.language or "", c.version)
                for c in found.connection_set
            ),
            message_model=found.message_model,
            consume_type=found.consume_type,
            subscriptions=_filters(found.subscription_table.values()),
        )

    async def _clients(self, poll: GroupPoll) -> list[ClientAnswer]:
        """Ask each client through the broker with most of its connections, those that share an id through all
        brokers, because a broker passes the request to any one of them.
        """
        duplicates = poll.duplicates()
        through = [
            (client_id, view.broker)
            for client_id in poll.client_ids[:MAX_CLIENTS]
            for view in poll.views
            if any(connection.client_id == client_id for connection in view.connections)
            and (client_id in duplicates or view.broker == poll.connections(client_id)[0])
        ]
        found = await asyncio.gather(*(self._client(poll.group_id, *one) for one in through))
        return list({(c.client_id, c.started_ms, c.error and c.broker): c for c in found}.values())

    async def _client(self, group_id: str, client_id: str, broker: str) -> ClientAnswer:
        name, _, number = broker.rpartition("/")
        fields = {"consumerGroup": group_id, "clientId": client_id, "jstackEnable": "false"}
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        async with self._waiting:
            try:
                server = self._broker(name, int(number))
                _, found = await server.ask(code, decode_running_info, _CLIENT_TIMEOUT_S, **fields)
            except (OSError, _ErrorAnswer) as error:
                is_silent = isinstance(error, _ErrorAnswer) and error.code == ResponseCode.CONSUME_MSG_TIMEOUT
                return ClientAnswer(
                    client_id=client_id, broker=broker, error=f"{broker} {error}", is_silent=is_silent
                )
        return _answer(client_id, broker, found)

    async def _queues(self, topic: str, notes: list[str]) -> list[MessageQueue]:
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        try:
            route = await self._ask(code, decode_route, topic=topic, acceptStandardJsonOnly="true")
        except _ErrorAnswer as error:
            if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
                notes.append(f"for topic {topic} the name server {error}")
            return []
        return [
            MessageQueue(topic, data.broker_name, number)
            for data in route.queue_datas
            if data.perm & _PERM_READ
            for number in range(data.read_queue_nums)
        ]

    async def _offsets(self, group_id: str, queue: MessageQueue) -> QueueOffsets | None:
        """Return the stored offset and the end of a queue, None if its broker does not tell them."""
        where = {"topic": queue.topic, "queueId": str(queue.queue_id)}
        of_group = {"consumerGroup": group_id, "setZeroIfNotFound": "false"}
        stored = None
        with suppress(OSError, _ErrorAnswer, LookupError, ValueError):
            server = self._broker(queue.broker_name)
            with suppress(_ErrorAnswer):  # that there is none
                header, _ = await server.ask(
                    RequestCode.QUERY_CONSUMER_OFFSET, bytes, _TIMEOUT_S, **of_group, **where
                )
                stored = int(header.ext_fields["offset"])
            header, _ = await server.ask(RequestCode.GET_MAX_OFFSET, bytes, _TIMEOUT_S, **where)
            return QueueOffsets(queue, stored, int(header.ext_fields["offset"]))
        return None

    async def _topics_of_offline(self, group_id: str) -> list[str]:
        """Return the topics that a group without consumers has offsets of. Raises HistoryUnavailable."""
        known = await self.group_ids()
        if group_id not in known:
            near = near_names(group_id, known)
            meant = f"; did you mean {', '.join(near)}?" if near else ""
            raise HistoryUnavailable(f"group {group_id} is unknown to the cluster{meant}")
        topics = set[str]()
        for name in self._addresses:
            with suppress(OSError, _ErrorAnswer):
                code = RequestCode.QUERY_TOPICS_BY_CONSUMER
                topics.update((await self._broker(name).ask(code, decode_topic_list, group=group_id))[1])
        return sorted(topics)


def _filters(subscriptions: Iterable[TopicSubscription]) -> dict[str, str]:
    return {one.topic: one.sub_string or "*" for one in subscriptions}


def _answer(client_id: str, broker: str, found: RunningInfo) -> ClientAnswer:
    given = found.properties
    started = given.get("PROP_CONSUMER_START_TIMESTAMP", "")
    return ClientAnswer(
        client_id=client_id,
        broker=broker,
        subscriptions=_filters(found.subscription_set),
        held=[
            HeldQueue(queue, one.last_consume_timestamp or None, one.cached_msg_count)
            for queue, one in chain(found.mq_table.items(), found.mq_pop_table.items())
            if not one.droped
        ],
        message_model=given.get("messageModel"),
        # Java's text of an object: its class, "@" and a number.
        strategy=given.get("allocateMessageQueueStrategy", "").partition("@")[0].rpartition(".")[2] or None,
        version=given.get("PROP_CLIENT_VERSION"),
        pops=bool(found.mq_pop_table),
        started_ms=int(started) if started.isdecimal() else None,
    )
