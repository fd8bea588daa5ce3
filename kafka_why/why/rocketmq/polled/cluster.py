"""Polls of a RocketMQ cluster. They only read, at most REQUESTS_PER_S times a second at each server.

Source: consumerProgress, consumerConnection and consumerStatus of RocketMQ's mqadmin.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from itertools import chain
from types import MappingProxyType
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.rocketmq.queues import RETRY_GROUP_TOPIC_PREFIX, MessageQueue
from kafka_why.contract.rocketmq.requests import SubscriptionData
from kafka_why.contract.rocketmq.responses import ResponseCode
from kafka_why.now import now_ms
from kafka_why.numbers import parse_whole_number
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
from kafka_why.rocketmq_group import filter_text
from kafka_why.stored_log import Progress
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
_RECONNECT_S = 10.0
"""A server to which no connection could be made counts as unreachable for so long."""
# A broker waits 10 s for a client's answer, with one of its threads for administration.
_CLIENT_TIMEOUT_S, _MAX_WAITING_CLIENTS = 12.0, 4
_PERM_READ = 4
_MAX_TIME_MS = 10**14  # beyond it no calendar of Python's has a date
_RIGHTS = "(reading needs GET on the group and its topics, and the keys of --rocketmq-acl or the environment)"

T = TypeVar("T")
_Fields = Mapping[str, str]
_NONE: _Fields = MappingProxyType({})


class ClusterUnavailable(ClientError):
    """No name server, or no broker, answers. The message has the reason of each."""


class ServerError(ClientError):
    """A server does not answer, or answers with an error. The text completes a sentence about the server.
    `code` is that of an error answer, else None.
    """

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


def _error_answer(header: Header) -> ServerError:
    is_refusal = header.code == ResponseCode.NO_PERMISSION
    said = f"{'refuses access' if is_refusal else f'answers {header.code}'}: {header.remark}"
    return ServerError(f"{said} {_RIGHTS}" if is_refusal else said, header.code)


def _unreadable(error: Exception) -> ServerError:
    return ServerError(f"gives an answer that cannot be read: {error}")


class _Server:
    """A name server or a broker address: one connection, and turns that hold the rate."""

    def __init__(self, address: str, servers: RocketMqServers) -> None:
        self.address = address
        self._servers = servers
        self._client: RemotingClient | None = None
        self._turn = asyncio.Lock()
        self._next_s = 0.0
        self._failure, self._failed_until_s = "", 0.0

    async def ask(
        self,
        code: RequestCode,
        decode: Callable[[bytes], T],
        fields: _Fields = _NONE,
        timeout_s: float = _TIMEOUT_S,
    ) -> T:
        """Return the decoded body of the answer. Raises ServerError."""
        _, body = await self._invoke(code, fields, timeout_s)
        try:
            return decode(body)
        except MalformedFrame as error:
            raise _unreadable(error) from error

    async def offset(self, code: RequestCode, fields: _Fields) -> int | None:
        """Return the offset of the answer, None if the server has none. Raises ServerError."""
        try:
            header, _ = await self._invoke(code, fields, _TIMEOUT_S)
            return parse_whole_number(header.ext_fields.get("offset", ""))
        except ServerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        except ValueError as error:
            raise _unreadable(error) from error

    async def _invoke(self, code: RequestCode, fields: _Fields, timeout_s: float) -> tuple[Header, bytes]:
        try:
            client = await self._connected()
            header, body = await client.invoke(code, fields, timeout_s=timeout_s)
        except MalformedFrame as error:
            raise _unreadable(error) from error
        except OSError as error:
            raise ServerError(f"does not answer: {str(error) or type(error).__name__}") from error
        if header.code != ResponseCode.SUCCESS:
            raise _error_answer(header)
        return header, body

    async def _connected(self) -> RemotingClient:
        """Wait for this request's turn, and return the connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            if loop.time() < self._failed_until_s:
                raise OSError(self._failure)
            await asyncio.sleep(self._next_s - loop.time())
            self._next_s = loop.time() + 1 / REQUESTS_PER_S
            if self._client is None or self._client.has_failed:
                try:
                    self._client = await RemotingClient.open(
                        self.address,
                        credentials=self._servers.keys,
                        tls=self._servers.tls,
                        timeout_s=_TIMEOUT_S,
                    )
                except OSError as error:
                    self._failure = str(error) or type(error).__name__
                    self._failed_until_s = loop.time() + _RECONNECT_S
                    raise
            return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


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

    async def poll(self, group_id: str, progress: Progress = lambda *_: None) -> GroupPoll:
        """Return the group, its clients and its queues. `progress` gets the number of answers so far and in
        all, first for the clients, then for the offsets.

        Raises ClusterUnavailable, and HistoryUnavailable if the group is unknown.
        """
        at_ms, views = now_ms(), await self.views(group_id)
        poll, notes = GroupPoll(group_id=group_id, at_ms=at_ms, views=views), list[str]()
        if len(poll.client_ids) > MAX_CLIENTS:
            notes.append(f"{count(len(poll.client_ids) - MAX_CLIENTS, 'client')} were not asked")
        poll = replace(poll, clients=await self._clients(poll, progress))
        topics = list(poll.topics) or await self.topics_with_offsets(group_id, notes)
        if not (topics or notes or poll.client_ids):
            raise await self._unknown(group_id)
        queues = [*chain.from_iterable([await self._queues(topic, notes) for topic in topics])]
        if len(queues) > MAX_QUEUES:
            notes.append(f"the offsets of {len(queues) - MAX_QUEUES} queues were not read")
        # The clients of a group that broadcasts keep their offsets themselves.
        asked = [] if poll.is_broadcasting else queues[:MAX_QUEUES]
        offsets = await _gather((self._offsets(group_id, queue, notes) for queue in asked), progress)
        return replace(
            poll,
            queues=queues,
            offsets=[one for one in offsets if one is not None],
            notes=[*dict.fromkeys(notes)],
        )

    async def topics_with_offsets(self, group_id: str, notes: list[str]) -> list[str]:
        """Return the topics for which brokers have offsets of the group. Add failures to `notes`."""
        topics = set[str]()
        for name in self._addresses:
            try:
                code, group = RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": group_id}
                topics.update(await self._broker(name).ask(code, decode_topic_list, group))
            except ServerError as error:
                notes.append(f"for the group's topics broker {name} {error}")
        return sorted(topics)

    async def _unknown(self, group_id: str) -> HistoryUnavailable:
        near = list[str]()
        with suppress(ClusterUnavailable):  # name servers may list no topics
            near = near_names(group_id, await self.group_ids())
        meant = f"; did you mean {', '.join(near)}?" if near else ""
        return HistoryUnavailable(f"no broker has a consumer or an offset of group {group_id}{meant}")

    async def _ask(self, code: RequestCode, decode: Callable[[bytes], T], fields: _Fields = _NONE) -> T:
        """Ask the name server that answered last, else another one.

        Raises ClusterUnavailable, and ServerError if a topic has no route.
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

    def _broker(self, name: str, number: int | None = None) -> _Server:
        """Return a broker address, that of the master without a number. Raises ServerError if it has gone."""
        ids = self._addresses.get(name, {})
        address = ids.get(min(ids, default=0) if number is None else number)
        if address is None:
            raise ServerError("is not registered any more")
        return self._brokers.setdefault(address, _Server(address, self._servers))

    async def _view(self, group_id: str, name: str, number: int) -> BrokerView:
        code, broker = RequestCode.GET_CONSUMER_CONNECTION_LIST, f"{name}/{number}"
        try:
            server = self._broker(name, number)
            found = await server.ask(code, decode_consumer_connection, {"consumerGroup": group_id})
        except ServerError as error:
            is_offline = error.code == ResponseCode.CONSUMER_NOT_ONLINE
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

    async def _clients(self, poll: GroupPoll, progress: Progress) -> list[ClientAnswer]:
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
        found = await _gather((self._client(poll.group_id, *one) for one in through), progress)
        return list({(c.client_id, c.started_ms, c.error and c.broker): c for c in found}.values())

    async def _client(self, group_id: str, client_id: str, broker: str) -> ClientAnswer:
        name, _, number = broker.rpartition("/")
        fields = {"consumerGroup": group_id, "clientId": client_id, "jstackEnable": "false"}
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        async with self._waiting:
            try:
                server = self._broker(name, int(number))
                found = await server.ask(code, decode_running_info, fields, _CLIENT_TIMEOUT_S)
            except ServerError as error:
                return ClientAnswer(
                    client_id=client_id,
                    broker=broker,
                    error=f"{broker} {error}",
                    is_silent=error.code == ResponseCode.CONSUME_MSG_TIMEOUT,
                )
        return _answer(client_id, broker, found)

    async def _queues(self, topic: str, notes: list[str]) -> list[MessageQueue]:
        code, fields = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            route = await self._ask(code, decode_route, fields)
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
        """Return the stored offset and the end of a queue. If its broker does not tell the end, return None,
        and add the reason to `notes`.
        """
        where = {"topic": queue.topic, "queueId": str(queue.queue_id)}
        of_group = {"consumerGroup": group_id, "setZeroIfNotFound": "false"}
        try:
            server = self._broker(queue.broker_name)
            stored = await server.offset(RequestCode.QUERY_CONSUMER_OFFSET, {**of_group, **where})
            end = await server.offset(RequestCode.GET_MAX_OFFSET, where)
        except ServerError as error:
            notes.append(f"for offsets of topic {queue.topic} broker {queue.broker_name} {error}")
            return None
        return None if end is None else QueueOffsets(queue, stored, end)


async def _gather(asked: Iterable[Coroutine[Any, Any, T]], progress: Progress) -> list[T]:
    """Return the results, and report how many there are after each."""
    running, ended = [*asked], 0

    async def counted(one: Coroutine[Any, Any, T]) -> T:
        nonlocal ended
        result = await one
        ended += 1
        progress(ended, len(running))
        return result

    return await asyncio.gather(*map(counted, running))


def _filters(subscriptions: Iterable[TopicSubscription]) -> dict[str, str]:
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
    """Return a client's time, None if it has none or an impossible one."""
    try:
        return parse_whole_number(text, 1, _MAX_TIME_MS)
    except ValueError:
        return None


def _answer(client_id: str, broker: str, found: RunningInfo) -> ClientAnswer:
    given = found.properties
    return ClientAnswer(
        client_id=client_id,
        broker=broker,
        subscriptions=_filters(found.subscription_set),
        held=[
            HeldQueue(queue, _time_ms(str(one.last_consume_timestamp)), one.cached_msg_count)
            for queue, one in chain(found.mq_table.items(), found.mq_pop_table.items())
            if not one.droped
        ],
        message_model=given.get("messageModel"),
        # Java's text of an object: its class, "@" and a number.
        strategy=given.get("allocateMessageQueueStrategy", "").partition("@")[0].rpartition(".")[2] or None,
        version=given.get("PROP_CLIENT_VERSION"),
        pops=bool(found.mq_pop_table),
        started_ms=_time_ms(given.get("PROP_CONSUMER_START_TIMESTAMP", "")),
    )
