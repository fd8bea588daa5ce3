"""The gateway's view of the cluster behind it: brokers, topics and partitions."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, Self, TypeVar
from uuid import UUID

from kafka.protocol.api_key import ApiKey

from gateway.fairness import CapacityLimiter
from gateway.limits import Limits
from gateway.upstream.connections import CLIENT_ID, PLAIN_TEXT, Address, BrokerAccess, Upstream, UpstreamLost
from gateway.wire import codec, offload
from gateway.wire.codec import GatewayError
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import is_topic_name

# The first version that finds topics by id (KIP-516).
_METADATA_VERSION = 12

TOPIC_AGE_MAX_S = 30.0
# The time for which the gateway caches that a topic does not exist. So a new topic is found within this time.
_MISSING_AGE_MAX_S = 1.0
# Above this number of answers, stale answers are removed, because clients may request any names.
_CACHED_MAX = 10_000
# The maximum numbers of keys in one Metadata request: of the caller, and of other callers. A request with all
# of them takes about 15 ms of the event loop.
_OWN_KEYS_MAX = 500
_OTHERS_KEYS_MAX = 1_000
_NO_TOPIC = frozenset({GatewayError.UNKNOWN_TOPIC_OR_PARTITION, GatewayError.INVALID_TOPIC_EXCEPTION})

K = TypeVar("K")  # a name or an id
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """An existing topic. Its partitions are numbered from 0."""

    name: str
    topic_id: UUID | None
    partitions: int
    is_internal: bool = False


@dataclass(frozen=True, slots=True)
class AllTopics:
    """The topics of the cluster by name. `at_ms` is the system time of the request."""

    topics: Mapping[str, ClusterTopic]
    at_ms: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """A broker's answer about a name or an id."""

    topic: ClusterTopic | None  # None if it is absent, or the broker returned another error
    at_s: float  # when the answer arrived, by `time.monotonic`
    number: int  # the request's number
    is_absent: bool = False  # no topic has the name or id


class _Lookup(dict[K, _Answer]):
    """The latest answers by key: a name or an id. `request` builds a key's entry in a Metadata request."""

    def __init__(self, request: Callable[[K], codec.Fields]) -> None:
        super().__init__()
        self.request = request
        self.awaited: dict[K, None] = {}  # keys for which callers wait; they share one request

    def is_stale(self, key: K, age_max_s: float) -> bool:
        """Return True if the key has to be requested."""
        answer = self.get(key)
        if answer is None:
            return True
        return time.monotonic() - answer.at_s > (_MISSING_AGE_MAX_S if answer.topic is None else age_max_s)

    def has_answer_since(self, key: K, number: int) -> bool:
        """Return True if a request after the one with this number has answered the key."""
        return key in self and self[key].number > number

    def cached(self, keys: Iterable[K], age_max_s: float) -> dict[K, ClusterTopic] | None:
        """Return the existing topics of these keys, or None if one of them has to be requested."""
        topics = {}
        for key in keys:
            if self.is_stale(key, age_max_s):
                return None
            if (topic := self[key].topic) is not None:
                topics[key] = topic
        return topics

    def forget_stale(self) -> None:
        """If there are many answers, remove the stale ones, and then the oldest without a topic."""
        if len(self) > _CACHED_MAX:
            for key in [key for key in self if self.is_stale(key, TOPIC_AGE_MAX_S)]:
                del self[key]
            # Answers without a topic are limited further, because clients choose their names.
            absent = [key for key, answer in self.items() if answer.topic is None]
            for key in absent[: max(0, len(absent) - _CACHED_MAX)]:
                del self[key]


class Cluster:
    """A client of the brokers that requests metadata and caches it.

    One request runs at a time. Callers that wait meanwhile share the next request and its failure, so the
    number of requests does not grow with the number of callers. If the topics of all callers do not fit into
    one request, tenants take turns.

    `nodes` has the address of every broker ever seen, by id. `live` has the ids in the latest metadata.
    `access` authenticates the gateway's own principal.
    """

    def __init__(
        self, bootstrap: Sequence[Address], limits: Limits, access: BrokerAccess = PLAIN_TEXT
    ) -> None:
        self.nodes: dict[int, Address] = {}
        self.live: list[int] = []
        self._bootstrap = list(bootstrap)
        self.limits = limits
        self.access = access
        self._upstream: Upstream | None = None
        self._turn = CapacityLimiter(1)
        self._numbers = count(1)
        self._by_name = _Lookup[str](lambda name: {"name": name, "topic_id": None})
        self._by_id = _Lookup[UUID](lambda topic_id: {"name": None, "topic_id": topic_id})
        self._all: tuple[AllTopics, float] | None = None  # and when they were requested, monotonic
        self._last_number = 0  # the number of the last request
        self._began_s: float | None = None  # when the running request began
        self._last_failure: tuple[int, UpstreamLost] | None = None
        """The number of the last request that failed, and its error."""

    @classmethod
    def of(cls, client_config: ClientConfig, limits: Limits) -> Self:
        """Return the cluster of a client's settings. Raises ClientConfigError, and ValueError for malformed
        servers.
        """
        bootstrap = [Address.parse(text) for text in client_config.bootstrap_servers.split(",")]
        return cls(bootstrap, limits, BrokerAccess.of(client_config.kafka_python_settings()))

    async def refresh(self) -> None:
        """Read the list of brokers. Raises UpstreamLost."""
        seen_number = self._last_number
        async with self._turn:
            with self._running(seen_number):
                await self._metadata([])

    def update_brokers(self, brokers: Mapping[int, Address], *, all_of_them: bool = False) -> None:
        """Store addresses from a broker's response. With `all_of_them`, `brokers` are all live brokers."""
        self.nodes.update(brokers)
        if all_of_them:
            self.live = sorted(brokers)

    async def connect(self, address: Address) -> Upstream:
        """Open a connection to a broker, with the gateway's own principal. Raises UpstreamLost."""
        return await Upstream.open(address, self.limits, self.access)

    async def ask(self, api_key: int, api_version: int, body: codec.Fields) -> Any:
        """Send a request to any broker that answers, and return its response. Raises UpstreamLost."""
        seen_number = self._last_number
        async with self._turn:
            with self._running(seen_number):
                return await self._ask(api_key, api_version, body)

    def waited_s(self) -> float:
        """Return the seconds since the current request began, or 0 if no request runs."""
        return 0.0 if self._began_s is None else time.monotonic() - self._began_s

    def addresses(self) -> list[Address]:
        """Return the addresses of the live brokers in a random order, and then those of the bootstrap
        servers.

        So clients are spread over the brokers, and do not all wait for a broker that hangs.
        """
        live = random.sample(self.live, len(self.live))
        return [*(self.nodes[node_id] for node_id in live), *self._bootstrap]

    async def topics(
        self, names: Iterable[str], age_max_s: float = TOPIC_AGE_MAX_S
    ) -> dict[str, ClusterTopic]:
        """Return the existing topics of these names, by metadata no older than `age_max_s`. Raises
        UpstreamLost.
        """
        # Invalid names are not requested, because other callers share the request and its failure.
        return await self._find(self._by_name, filter(is_topic_name, names), age_max_s)

    async def describe_topics(self, names: Iterable[str], age_max_s: float) -> dict[str, ClusterTopic | None]:
        """Return the topic of each name, or None if a broker answered that it is absent. Raises UpstreamLost.

        A name with another error is omitted. The metadata is no older than `age_max_s`.
        """
        unique_names = list(dict.fromkeys(names))
        topics: dict[str, ClusterTopic | None] = dict(await self.topics(unique_names, age_max_s))
        return topics | {name: None for name in unique_names if name not in topics and self._is_absent(name)}

    async def all_topics(self, age_max_s: float) -> AllTopics:
        """Return all topics of the cluster, by metadata no older than `age_max_s`. Raises UpstreamLost."""
        if self._all is not None and time.monotonic() - self._all[1] <= age_max_s:
            return self._all[0]
        seen_number = self._last_number
        async with self._turn:
            if self._all is None or time.monotonic() - self._all[1] > age_max_s:
                with self._running(seen_number):
                    requested_s, at_ms = time.monotonic(), time.time_ns() // 1_000_000
                    topics = await self._metadata(topics=None)
                self._all = AllTopics({topic.name: topic for topic in topics}, at_ms), requested_s
            return self._all[0]

    def cached_topics(self, names: Iterable[str], age_max_s: float) -> dict[str, ClusterTopic] | None:
        """Return the result of `topics`, or None if that needs a request to a broker."""
        return self._by_name.cached(filter(is_topic_name, names), age_max_s)

    def cached_topics_by_id(
        self, topic_ids: Iterable[UUID], age_max_s: float
    ) -> dict[UUID, ClusterTopic] | None:
        """Return the result of `topics_by_id`, or None if that needs a request to a broker."""
        return self._by_id.cached(topic_ids, age_max_s)

    async def topics_by_id(
        self, topic_ids: Iterable[UUID], age_max_s: float = TOPIC_AGE_MAX_S
    ) -> dict[UUID, ClusterTopic]:
        """Return the existing topics of these ids, by metadata no older than `age_max_s`. Raises
        UpstreamLost.
        """
        return await self._find(self._by_id, topic_ids, age_max_s)

    def forget_topics(self, names: Iterable[str]) -> None:
        """Request these topics again at the next query, because they may have been created."""
        for name in self._by_name.keys() & names:
            self._by_name[name] = replace(self._by_name[name], at_s=float("-inf"))

    def _is_absent(self, name: str) -> bool:
        """Return True if a broker answered that the topic is absent, or if no topic can have the name."""
        return not is_topic_name(name) or (name in self._by_name and self._by_name[name].is_absent)

    def close(self) -> None:
        """Close the connection."""
        if self._upstream is not None:
            self._upstream.close()
            self._upstream = None

    async def _find(self, lookup: _Lookup[K], keys: Iterable[K], age_max_s: float) -> dict[K, ClusterTopic]:
        """Return the existing topics of these keys."""
        remaining_keys, topics = iter(keys), dict[K, ClusterTopic]()
        while part := list(islice(remaining_keys, _OWN_KEYS_MAX)):
            topics |= await self._find_part(lookup, part, age_max_s)
            if len(part) == _OWN_KEYS_MAX:
                # Other tasks run between the parts.
                await asyncio.sleep(0)
        return topics

    async def _find_part(
        self, lookup: _Lookup[K], keys: Iterable[K], age_max_s: float
    ) -> dict[K, ClusterTopic]:
        """Return the existing topics of at most _OWN_KEYS_MAX keys, and request the stale ones first."""
        unique_keys = list(dict.fromkeys(keys))
        stale = dict.fromkeys(key for key in unique_keys if lookup.is_stale(key, age_max_s))
        if stale:
            lookup.awaited.update(stale)
            seen_number = self._last_number
            async with self._turn:
                # Another caller may have requested some of them meanwhile.
                to_request = [
                    key
                    for key in stale
                    if lookup.is_stale(key, age_max_s) and not lookup.has_answer_since(key, seen_number)
                ]
                # While this caller waited, `forget_stale` may have removed answers that were fresh.
                to_request += [key for key in unique_keys if key not in lookup and key not in stale]
                if to_request:
                    await self._request(lookup, to_request, seen_number)
        topics = {key: lookup[key].topic for key in unique_keys}
        if stale:
            lookup.forget_stale()
        return {key: topic for key, topic in topics.items() if topic is not None}

    async def _request(self, lookup: _Lookup[K], own_keys: Iterable[K], seen_number: int) -> None:
        """Request metadata of a caller's own keys, and of keys that other callers await."""
        keys = dict.fromkeys([*own_keys, *islice(lookup.awaited, _OTHERS_KEYS_MAX)])
        for key in keys:
            lookup.awaited.pop(key, None)
        with self._running(seen_number):
            await self._metadata([lookup.request(key) for key in keys])
        for key in keys:
            # A key without a topic in the response gets an answer, too, so that it is not requested at once.
            if not lookup.has_answer_since(key, self._last_number - 1):
                lookup[key] = _Answer(topic=None, at_s=time.monotonic(), number=self._last_number)

    @contextmanager
    def _running(self, seen_number: int) -> Iterator[None]:
        """Mark a request as running.

        `seen_number` is the number of the last request when the caller began to wait. Raises UpstreamLost if
        a later request has failed, because the caller's request would probably fail, too, and other callers
        would wait for it.
        """
        failed_number, failure = self._last_failure or (0, None)
        if failure is not None and failed_number > seen_number:
            # Each caller raises an error of its own, with the same text.
            raise type(failure)(*failure.args)
        self._last_number += 1
        self._began_s = time.monotonic()
        try:
            yield
        except UpstreamLost as error:
            self._last_failure = self._last_number, error
            raise
        finally:
            self._began_s = None

    async def _metadata(self, topics: list[codec.Fields] | None) -> list[ClusterTopic]:
        """Request these topics and cache the answers. If `topics` is None, request all topics. Return the
        existing topics.
        """
        request = {"topics": topics, "allow_auto_topic_creation": False}
        answer = await self._ask(ApiKey.Metadata, _METADATA_VERSION, request)
        brokers = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        self.update_brokers(brokers, all_of_them=True)
        existing = []
        for topic in answer.topics:
            if topic.error_code == 0:
                partitions = len(topic.partitions)
                existing.append(ClusterTopic(topic.name, topic.topic_id, partitions, topic.is_internal))
            elif topic.error_code in _NO_TOPIC and topic.name:
                self._by_name[topic.name] = _Answer(None, time.monotonic(), self._last_number, is_absent=True)
        if topics is not None:  # `_all` caches all topics
            for found in existing:
                entry = _Answer(found, time.monotonic(), self._last_number)
                self._by_name[found.name] = entry
                if found.topic_id is not None:
                    self._by_id[found.topic_id] = entry
        return existing

    async def _ask(self, api_key: int, api_version: int, body: codec.Fields) -> Any:
        """Send a request to the broker that answered last, else to any broker. Raises UpstreamLost."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            with suppress(UpstreamLost):
                return await self._ask_on(upstream, api_key, api_version, body)

        async def ask_at(address: Address) -> Any:
            return await self._ask_on(await self.connect(address), api_key, api_version, body)

        return await at_any(self.addresses(), ask_at)

    async def _ask_on(self, upstream: Upstream, api_key: int, api_version: int, body: codec.Fields) -> Any:
        """Send a request on this connection, and keep the connection for the next request."""
        encode = codec.encode_frequent if api_key == ApiKey.Metadata else codec.encode_request
        decode = offload.decode_frequent if api_key == ApiKey.Metadata else offload.decode_response
        answer = await upstream.request(encode(api_key, api_version, next(self._numbers), CLIENT_ID, body))
        self._upstream = upstream  # for the next request, because this broker answers
        return await decode(api_key, api_version, answer)


async def at_any(servers: Iterable[S], act: Callable[[S], Awaitable[T]]) -> T:
    """Return the result of `act` at the first server that answers. Raises the last OSError."""
    last_error: OSError = UpstreamLost("no broker is known")
    for server in servers:
        try:
            return await act(server)
        except OSError as error:
            last_error = error
    raise last_error


# The coordinator's own topics. The gateway shows them to clients as internal topics, like Kafka's
# __consumer_offsets. Clients may not change them, because a record on the requests topic can be a request of
# any member.


class InternalTopics:
    """The coordinator's own topics, `own`.

    `names` are the topics that clients see as internal: all of `own`, or none with `exposed`. Even then, the
    pattern of a subscription matches no topic of `own`.
    """

    def __init__(self, own: Iterable[str] = (), *, exposed: bool = False) -> None:
        self.own = frozenset(own)
        self.names = frozenset() if exposed else self.own
        # All ids that the topics have ever had. Kafka never reuses an id.
        self._ids: frozenset[UUID] = frozenset()

    async def ids(self, cluster: Cluster) -> frozenset[UUID]:
        """Return the topics' ids from metadata. Raises UpstreamLost if no broker has ever answered."""
        try:
            topics = await cluster.topics(self.names)
        except UpstreamLost:
            if not self._ids:
                raise
        else:
            self._ids |= {topic.topic_id for topic in topics.values() if topic.topic_id is not None}
        return self._ids
