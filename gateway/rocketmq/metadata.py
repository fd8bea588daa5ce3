"""Metadata of the RocketMQ cluster for requests to the coordinator: the configurations of groups, and the
queues of topics. The gateway requests them on separate connections.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from ssl import SSLContext
from typing import Generic, TypeVar

import structlog

from gateway.log_text import RateLimitedWarning
from gateway.rocketmq.brokers import BrokerAddress
from gateway.rocketmq.metrics import RocketmqCounts
from gateway.rocketmq.peers import RocketMqGroupsView
from gateway.upstream.cluster import at_any
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.rocketmq.requests import (
    MessageModel,
    MessageQueue,
    ResponseCode,
    SubscriptionGroupConfig,
)
from kafka_why.remoting.answers import (
    RequestModeSetting,
    decode_group_config,
    decode_request_modes,
    decode_route,
)
from kafka_why.remoting.bodies import QUEUES_MAX
from kafka_why.remoting.client import RemotingClient
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import Header
from kafka_why.remoting.strict_json import MalformedFrame
from kafka_why.why.rocketmq.polled.server import REQUESTS_PER_S, Server, ServerError

VALID_S = 30.0
"""The time for which metadata is cached, the same as between a RocketMQ client's polls of routes."""
TIMEOUT_S = 1.0
"""The time for which a client's request waits for metadata."""
SERVER_TIMEOUT_S = 5.0
"""The time in which a server has to answer. A late answer is cached for the next request."""
ENTRIES_MAX = 20_000
"""The maximum number of cached entries of a kind, because clients choose the names."""

_READABLE = 4
"""PermName.PERM_READ"""

ROUTE_CHANGES = frozenset((RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER))
METADATA_CHANGES = ROUTE_CHANGES | {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
}
"""The requests after which metadata may have changed."""

_ACL_SETTINGS = frozenset(("authenticationEnabled=true", "authorizationEnabled=true", "aclEnable=true"))
"""The settings that switch on ACL 2.0 or 1.0. Source: AuthConfig.java, and BrokerConfig.java of 5.2."""

_FAILURES = (OSError, TimeoutError, MalformedFrame)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")


class TimedCache(Generic[K, V]):
    """A cache of the results of `fetch`, for VALID_S. None and errors are not cached."""

    def __init__(self, fetch: Callable[[K], Awaitable[V | None]]) -> None:
        self._fetch = fetch
        self._fetched: dict[K, tuple[float, asyncio.Future[V | None]]] = {}
        """When a fetch began, and its future."""

    async def get(self, key: K) -> V | None:
        """Return the value of a key, or None if `fetch` returns none. Concurrent calls share one fetch.

        Raises the errors of `fetch`, and TimeoutError after TIMEOUT_S.
        """
        began_s, fetching = self._fetched.get(key, (0.0, None))
        if fetching is None or time.monotonic() - began_s > VALID_S:
            fetching = asyncio.ensure_future(self._fetch(key))
            self._fetched[key] = time.monotonic(), fetching
            fetching.add_done_callback(lambda done: self._on_fetched(key, done))
        async with asyncio.timeout(TIMEOUT_S):
            return await asyncio.shield(fetching)

    def clear(self) -> None:
        """Forget all values."""
        self._fetched.clear()

    def _on_fetched(self, key: K, done: "asyncio.Future[V | None]") -> None:
        """Forget a fetch without a value, and the oldest entries if there are too many."""
        has_value = not done.cancelled() and done.exception() is None and done.result() is not None
        _, latest = self._fetched.get(key, (0.0, None))
        if not has_value and latest is done:
            del self._fetched[key]
        while len(self._fetched) > ENTRIES_MAX:
            del self._fetched[next(iter(self._fetched))]


class RocketMqMetadata:
    """The cached metadata of one cluster. If it is not available, a warning is logged, and a default is
    returned.
    """

    def __init__(
        self,
        name_servers: Sequence[str],
        credentials: tuple[str, str] | None = None,
        tls: SSLContext | None = None,
    ) -> None:
        self._name_servers = name_servers
        self._credentials = credentials
        self._tls = tls
        self._clients: dict[str, asyncio.Future[RemotingClient]] = {}
        self._group_configs = TimedCache(self._fetch_group_config)
        self._topic_queues = TimedCache(self._fetch_topic_queues)
        self._has_acls = TimedCache(self._fetch_has_acls)
        self._warning = RateLimitedWarning("metadata of the RocketMQ cluster is not known", "requests")

    async def group_config(self, address: str, group_id: str) -> SubscriptionGroupConfig | None:
        """Return the configuration of a group at the broker of this address, or None if the broker has no
        such group.

        If the broker does not answer, return the default.
        """
        code, default = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupConfig()
        return await self._or_default(
            default, self._group_configs.get((address, group_id)), code, broker=address
        )

    async def topic_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return the readable queues of a topic at all its brokers, or None if its route is not known.

        The answer can be from the cache.
        """
        return await self._or_default(None, self._topic_queues.get(topic), RequestCode.GET_ROUTEINFO_BY_TOPIC)

    async def fetch_topic_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """Return the readable queues of a topic as `topic_queues` does, but never from the cache.

        Call this only where no client's request waits for the answer.
        """
        return await self._or_default(
            None, self._fetch_topic_queues(topic), RequestCode.GET_ROUTEINFO_BY_TOPIC
        )

    async def has_acls(self, address: str) -> bool:
        """Return False if the broker of this address is known to have no ACLs, else True."""
        code = RequestCode.GET_BROKER_CONFIG
        return await self._or_default(True, self._has_acls.get(address), code, broker=address) is not False

    async def request_modes(self, address: str) -> dict[str, dict[str, RequestModeSetting]]:
        """Return the request modes (pull or pop) that the broker of this address has stored, by topic and
        group.
        """
        code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
        return await self._or_default({}, self._fetch_request_modes(address, code), code, broker=address)

    async def _or_default(self, default: T, value: Awaitable[T], code: RequestCode, **where: str) -> T:
        """Return the value, or the default if the value's request, which has this code, fails."""
        try:
            return await value
        except _FAILURES as error:
            self._warning.add(error=repr(error), code=code.name, **where)
            return default

    def forget(self, code: int) -> None:
        """Forget the metadata that a request with this code has changed."""
        if code in ROUTE_CHANGES:
            self._topic_queues.clear()
        else:
            self._group_configs.clear()

    async def close(self) -> None:
        """Close the connections."""
        opening, self._clients = self._clients, {}
        for client in await asyncio.gather(*opening.values(), return_exceptions=True):
            if isinstance(client, RemotingClient):  # not the error of a failed attempt to connect
                await client.close()

    async def _fetch_group_config(self, key: tuple[str, str]) -> SubscriptionGroupConfig | None:
        """Return a group's configuration, or None if the broker has no such group."""
        address, group_id = key
        header, body = await self._invoke(
            address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group_id}
        )
        if header.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            return None
        _expect_success(header)
        return decode_group_config(body)

    async def _fetch_request_modes(
        self, address: str, code: RequestCode
    ) -> dict[str, dict[str, RequestModeSetting]]:
        header, body = await self._invoke(address, code, {})
        return decode_request_modes(body) if header.code == ResponseCode.SUCCESS else {}

    async def _fetch_has_acls(self, address: str) -> bool:
        """Return True if the broker has ACLs, or refuses to return its settings."""
        header, body = await self._invoke(address, RequestCode.GET_BROKER_CONFIG, {})
        if header.code != ResponseCode.SUCCESS:
            return True
        return not _ACL_SETTINGS.isdisjoint(body.decode().split("\n"))

    async def _fetch_topic_queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        code, fields = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
        header, body = await at_any(self._name_servers, lambda server: self._invoke(server, code, fields))
        if header.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        _expect_success(header)
        readable = [queues for queues in decode_route(body).queue_datas if queues.perm & _READABLE]
        if (count := sum(queues.read_queue_nums for queues in readable)) > QUEUES_MAX:
            raise MalformedFrame(f"topic {topic} has {count} queues")
        return tuple(
            MessageQueue(topic, queues.broker_name, queue_id)
            for queues in readable
            for queue_id in range(queues.read_queue_nums)
        )

    async def _invoke(self, address: str, code: int, ext_fields: dict[str, str]) -> tuple[Header, bytes]:
        """Send a request, on a new connection if the open one has ended."""
        is_open = address in self._clients
        client = await self._client(address)
        try:
            return await client.invoke(code, ext_fields)
        except ConnectionError:
            self._clients.pop(address, None)
            await client.close()
            if not is_open:  # a new connection has failed, too
                raise
        # The server has closed the idle connection.
        return await (await self._client(address)).invoke(code, ext_fields)

    async def _client(self, address: str) -> RemotingClient:
        """Return the connection to a server. Concurrent calls share one attempt to connect."""
        opening = self._clients.get(address)
        if opening is None:
            opening = self._clients[address] = asyncio.ensure_future(
                RemotingClient.open(
                    address, credentials=self._credentials, tls=self._tls, timeout_s=SERVER_TIMEOUT_S
                )
            )
        try:
            return await asyncio.shield(opening)
        except OSError:
            if self._clients.get(address) is opening:
                del self._clients[address]
            raise


def _expect_success(header: Header) -> None:
    if header.code != ResponseCode.SUCCESS:
        raise MalformedFrame(f"the answer has code {header.code}: {header.remark}")


# The lag of each queue of the coordinator's groups, polled from the brokers for the gateway's metrics.


INTERVAL_S = 30.0
"""The pause between two rounds of polls. A round looks up topics for at most this time."""

GroupQueue = tuple[str, MessageQueue]
TopicQueues = dict[str, tuple[MessageQueue, ...]]

log = structlog.get_logger()


class QueueLags:
    """A poller of the offsets of at most `max_queues` queues, which looks up at most `max_queues` topics.

    Each broker gets at most 10 requests a second, so the time of a round grows with the number of queues. The
    time is limited, because the metrics keep the lags of a round until the next round ends.
    """

    def __init__(
        self,
        servers: RocketMqServers,
        groups: RocketMqGroupsView,
        metadata: RocketMqMetadata,
        counts: RocketmqCounts,
        max_queues: int,
    ) -> None:
        self._name_servers = servers
        self._groups = groups
        self._metadata = metadata
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
        # The last entry of a name remains, which is the one of the lowest id.
        by_descending_id = sorted(brokers, key=lambda broker: -broker.id)
        masters = {broker.name: broker.address for broker in by_descending_id}
        for address in self._servers.keys() - masters.values():
            await self._servers.pop(address).close()
        queues, groups_left_out = await self._queues()
        by_broker: defaultdict[str, list[GroupQueue]] = defaultdict(list)
        for group_id, queue in queues:
            if queue.broker_name in masters:
                by_broker[masters[queue.broker_name]].append((group_id, queue))
        lags_of_brokers = await asyncio.gather(
            *(self._lags(address, queues_there) for address, queues_there in by_broker.items())
        )
        self._counts.lags = {queue: lag for lags in lags_of_brokers for queue, lag in lags.items()}
        self._counts.lag_groups_left_out = groups_left_out

    async def _queues(self) -> tuple[list[GroupQueue], int]:
        """Return the queues to poll, and the number of groups with queues that are left out."""
        queues: list[GroupQueue] = []
        by_topic: TopicQueues = {}
        groups_left_out = 0
        until_s = asyncio.get_running_loop().time() + INTERVAL_S
        for group in await asyncio.to_thread(self._groups.groups):
            # The clients of a group that broadcasts keep their offsets themselves.
            if group.message_model is not MessageModel.CLUSTERING:
                continue
            if len(queues) >= self._max_queues:
                groups_left_out += 1
                continue
            topics = sorted(group.subscriptions)
            is_complete = await self._look_up(topics, by_topic, until_s)
            queues += [(group.group_id, queue) for topic in topics for queue in by_topic.get(topic, ())]
            groups_left_out += not is_complete or len(queues) > self._max_queues
        return queues[: self._max_queues], groups_left_out

    async def _look_up(self, topics: Iterable[str], by_topic: TopicQueues, until_s: float) -> bool:
        """Add the queues of these topics to `by_topic`. Return False if some topics are left out."""
        loop = asyncio.get_running_loop()
        for topic in topics:
            if topic in by_topic:
                continue
            # Topics are limited as well as queues, because clients may name topics that do not exist.
            if len(by_topic) >= self._max_queues or loop.time() >= until_s:
                return False
            try:
                async with asyncio.timeout_at(until_s):
                    by_topic[topic] = await self._metadata.fetch_topic_queues(topic) or ()
            except TimeoutError:
                return False
        return True

    async def _lags(self, address: str, queues: Collection[GroupQueue]) -> Mapping[GroupQueue, int]:
        """Return the lags of these queues, except those that the broker does not answer in time."""
        lags: dict[GroupQueue, int] = {}
        # There are two requests for each queue.
        usual_s = 2 * len(queues) / REQUESTS_PER_S
        try:
            async with asyncio.timeout(INTERVAL_S + 2 * usual_s):
                await self._poll_broker(address, queues, lags)
        except TimeoutError:
            self._warning.add(broker=address, error="it answers too slowly")
        return lags

    async def _poll_broker(
        self, address: str, queues: Iterable[GroupQueue], lags: dict[GroupQueue, int]
    ) -> None:
        """Poll the offsets of queues of one broker, and add the lags to `lags`."""
        server = self._servers.setdefault(address, Server(address, self._name_servers))
        for group_id, queue in queues:
            queue_fields = {"topic": queue.topic, "queueId": str(queue.queue_id)}
            group_fields = {"consumerGroup": group_id, "setZeroIfNotFound": "false"}
            try:
                stored = await server.offset(
                    RequestCode.QUERY_CONSUMER_OFFSET, {**group_fields, **queue_fields}
                )
                end = await server.offset(RequestCode.GET_MAX_OFFSET, queue_fields)
            except ServerError as error:
                self._warning.add(broker=address, group_id=group_id, topic=queue.topic, error=str(error))
                if error.code is None:
                    break  # the broker does not answer
                continue
            if stored is not None and end is not None:
                lags[group_id, queue] = max(end - stored, 0)
