"""A gateway on loopback between raw clients, the coordinator's pure core, and a stub broker.

The core is the real one, in this process. Its time moves only if a test moves it. The broker answers Metadata
and ApiVersions, and answers other requests with bodies that the test sets.
"""

import asyncio
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast
from uuid import UUID, uuid5

import uvloop

from clients.coordinator_client import Header
from gateway.apis import FIND_COORDINATOR
from gateway.apis.api_versions import API_VERSIONS
from gateway.authorization.authorizer import Authorizer
from gateway.coordinator.backend import failed
from gateway.coordinator.fresh_groups import listed_of
from gateway.net.advertised import Template
from gateway.net.server import NO_INTERNAL_TOPICS, NO_SECURITY, Gateway
from gateway.quotas.quotas import NO_RULES, Quotas
from gateway.quotas.rules import QuotaRules
from gateway.security.authentication import Security
from gateway.upstream.cluster import METADATA, Cluster
from gateway.upstream.connections import Address
from gateway.upstream.internal_topics import InternalTopics
from gateway.wire import codec
from gateway.wire.framing import FrameBuffer, RequestHeader, expects_response, framed, request_header
from gateway.wire.limits import Limits
from state.config import CoordinatorConfig
from state.errors import ErrorCode
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.requests import AnyAnswered, DescribeGroup, RegexResolved
from state.kafka.responses import DEAD, DescribeGroupResponse, ListedGroup
from state.kafka.snapshot import GroupSnapshot, snapshot
from state.messages import Response
from state.timeline import Row, Timeline
from tests.harness.raw_client import PATIENCE_S as PATIENCE_S
from tests.harness.raw_client import RawClient as RawClient

HOST = "127.0.0.1"
ADVERTISED_PORT = (
    9092  # the port that the broker advertises: nothing listens there, and no client may learn it
)
NODE_ID = 5
TOPICS = {"orders": 3, "prices": 1}

R = TypeVar("R", bound=Response)


def topic_id(name: str) -> UUID:
    return uuid5(UUID(int=0), name)


class CoreBackend:
    """The pure core as the gateway's backend. `asked` are the requests that reached the core.

    If `away`, the coordinator does not answer. `unread` are groups that are not read yet. If
    `view_is_behind`, groups are shown as they were when the view was last read to its end; the view never
    reaches its end while it is `stuck`. With `has_replica` it lists the groups that have changed since then
    at once. `held` are groups whose responses wait for an event.
    """

    def __init__(self) -> None:
        self.away = False
        self.answered_at_s = -math.inf
        self.unread = False
        self.view_is_behind = False
        self.stuck = False
        self.has_replica = False
        self.held: dict[str, asyncio.Event] = {}
        self._view: list[GroupSnapshot] = []
        self.now_ms = 0
        self.config = CoordinatorConfig()
        self.asked: list[AnyAnswered] = []
        self.more = asyncio.Condition()
        self._timelines: dict[str, Timeline] = {}
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._numbers = count()

    @property
    def waiting(self) -> int:
        """Return the requests without an answer."""
        return len(self._waiting)

    def header(
        self, group_id: str, api_version: int, client_id: str, client_host: str, principal: str
    ) -> Header:
        return Header(
            group_id=group_id,
            correlation_id=str(next(self._numbers)),
            reply_partition=0,
            api_version=api_version,
            client_id=client_id,
            client_host=client_host,
            principal=principal,
        )

    def send(self, request: AnyAnswered, answer: type[R], timeout_ms: int | None = None) -> asyncio.Future[R]:
        return asyncio.ensure_future(self.ask(request, answer, timeout_ms))

    async def ask(self, request: AnyAnswered, answer: type[R], timeout_ms: int | None = None) -> R:
        if self.away:
            return failed(request, answer, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self.has_replica and isinstance(request, DescribeGroup) and request.lists_changed is True:
            self.asked.append(request)
            return cast(R, self._changed(request))
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        name = request.correlation_id
        self._waiting[name] = future
        if request.group_id not in self._timelines:
            self._timelines[request.group_id] = Timeline(request.group_id, None, self.config)
        self._timelines[request.group_id].apply(Row(self.now_ms, f"requests-0-{name}", request))
        self._settle()
        async with self.more:
            self.asked.append(request)
            self.more.notify_all()
        try:
            response = await future
            if request.group_id in self.held:
                await self.held[request.group_id].wait()
        finally:
            self._waiting.pop(name, None)
        assert isinstance(response, answer)
        return response

    def _changed(self, request: DescribeGroup) -> DescribeGroupResponse:
        """The early answer of a replica."""
        shown = {group.group_id: group for group in self._view}
        now = {group.group_id: group for group in self._current()}
        changed = [listed_of(group) for name, group in now.items() if shown.get(name) != group]
        changed += [ListedGroup(name, DEAD) for name in shown.keys() - now.keys()]
        return DescribeGroupResponse(
            group_id=request.group_id,
            correlation_id=request.correlation_id,
            request="requests-0-0",
            error_code=ErrorCode.NONE,
            changed=changed,
        )

    def tell(self, told: RegexResolved) -> None:
        """Apply what the topic watcher sends a group."""
        name = f"requests-0-{next(self._numbers)}"
        self._timelines[told.group_id].apply(Row(self.now_ms, name, told))
        self._settle()

    def advance(self, ms: int) -> None:
        """Advance the time, and fire the deadlines that become due."""
        self.now_ms += ms
        for timeline in self._timelines.values():
            timeline.fire_until(self.now_ms)
        self._settle()

    def groups(self) -> list[GroupSnapshot] | None:
        if self.unread:
            return None
        return list(self._view) if self.view_is_behind else self._current()

    def configured(self) -> list[str] | None:
        if self.unread:
            return None
        return [
            group_id for group_id, t in sorted(self._timelines.items()) if getattr(t.group, "configs", {})
        ]

    async def reach_end(self, timeout_s: float) -> bool:
        if self.stuck:
            await asyncio.sleep(timeout_s)
            return False
        self._view = self._current()
        return True

    def _current(self) -> list[GroupSnapshot]:
        return [
            snapshot(t.group)
            for _, t in sorted(self._timelines.items())
            if isinstance(t.group, (ClassicGroup, ConsumerGroup))
        ]

    async def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait until that many matching requests arrived."""
        async with asyncio.timeout(PATIENCE_S), self.more:
            await self.more.wait_for(holds)

    def _settle(self) -> None:
        for timeline in self._timelines.values():
            for effects in timeline.take_effects():
                for reply in effects.replies:
                    future = self._waiting.pop(reply.response.correlation_id, None)
                    if future is not None and not future.done():
                        future.set_result(reply.response)


@dataclass
class StubBroker:
    """A broker of one node. `answers` are bodies by api key; a request without one is answered by its own
    bytes. `scripts` make the body of a request.

    `topic_errors` are error codes of topics in Metadata, `internal` the topics that it marks as internal.
    `passed` are the requests that arrived, except the gateway's own. `messages` are the whole messages.
    """

    address: Address = field(init=False)
    topics: dict[str, int] = field(default_factory=lambda: dict(TOPICS))
    topic_errors: dict[str, int] = field(default_factory=dict)
    internal: set[str] = field(default_factory=set)
    ids: dict[str, UUID] = field(default_factory=lambda: {name: topic_id(name) for name in TOPICS})
    answers: dict[int, codec.Fields] = field(default_factory=dict)
    scripts: dict[int, Callable[[Any], codec.Fields]] = field(default_factory=dict)
    passed: list[RequestHeader] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    metadata_asked: int = 0
    silent: bool = False
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with suppress(ConnectionError, asyncio.CancelledError):
            await self._serve(reader, writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = FrameBuffer(2**31 - 1)
        while data := await reader.read(65_536):
            for message in buffer.feed(data):
                header = request_header(message)
                if header.client_id != "gateway":
                    self.passed.append(header)
                    self.messages.append(message)
                    await self.open.wait()
                if expects_response(header, message) and not self.silent:
                    writer.write(framed(self._answer(header, message)))

    def _answer(self, header: RequestHeader, message: bytes) -> bytes:
        if header.api_key == METADATA:
            return codec.encode_response(header, self._metadata(header, message))
        if header.api_key in self.scripts:
            answer = self.scripts[header.api_key](codec.decode_request(header, message))
            return codec.encode_response(header, answer)
        if header.api_key in self.answers:
            return codec.encode_response(header, self.answers[header.api_key])
        return header.correlation_id.to_bytes(4, "big") + message[header.client_id_end :]

    def _metadata(self, header: RequestHeader, message: bytes) -> codec.Fields:
        self.metadata_asked += 1
        request = codec.decode_request(header, message)
        by_id = {self._id(name): name for name in self.topics}
        names = list(self.topics)
        if request.topics is not None:
            names = [by_id.get(t.topic_id, t.name) for t in request.topics]
        return {
            "brokers": [{"node_id": NODE_ID, "host": "broker.invalid", "port": ADVERTISED_PORT}],
            "cluster_id": "c",
            "controller_id": NODE_ID,
            "topics": [self._topic(name) for name in names],
        }

    def _id(self, name: str) -> UUID:
        return self.ids.get(name, topic_id(name))

    def _topic(self, name: str | None) -> codec.Fields:
        if name in self.topic_errors:
            return {"error_code": self.topic_errors[name], "name": name, "partitions": []}
        if name not in self.topics:
            return {"error_code": 3, "name": name, "partitions": []}
        partitions = [{"partition_index": p, "leader_id": NODE_ID} for p in range(self.topics[name])]
        found = {"error_code": 0, "name": name, "topic_id": self._id(name), "partitions": partitions}
        return found | {"is_internal": name in self.internal}


@dataclass
class World:
    """The objects of one test."""

    gateway: Gateway
    core: CoreBackend
    broker: StubBroker
    cluster: Cluster
    quotas: Quotas
    broker_server: asyncio.Server
    authorizer: Authorizer | None = None
    clients: list[RawClient] = field(default_factory=list)

    async def client(
        self,
        port: int | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        client_id: str = "me",
        server_name: str | None = None,
    ) -> RawClient:
        """Open a connection, to the first listener unless a port is given. `server_name` is for TLS."""
        reader, writer = await asyncio.open_connection(
            HOST, port or self.gateway.address.port, ssl=tls, server_hostname=server_name
        )
        client = RawClient(reader, writer, client_id)
        self.clients.append(client)
        return client

    async def stop_broker(self) -> None:
        """End the stub broker: no one can connect to it any more."""
        self.broker_server.close()
        await self.broker_server.wait_closed()

    async def broker_port(self) -> int:
        """Return the port of the broker's own listener, as a client learns it."""
        client = await self.client()
        found = await client.ask(FIND_COORDINATOR, 0, key="any")
        return int(found.port)


@asynccontextmanager
async def world(
    limits: Limits,
    security: Security,
    internal_topics: InternalTopics = NO_INTERNAL_TOPICS,
    authorizer: Authorizer | None = None,
    rules: QuotaRules = NO_RULES,
    templates: Sequence[Template] = (),
    *,
    consumer_protocol: bool = True,
) -> AsyncIterator[World]:
    """Start a world and end it."""
    broker, core = StubBroker(), CoreBackend()
    broker.open.set()
    broker.answers[API_VERSIONS] = {"api_keys": []}
    server = await asyncio.start_server(broker.serve, HOST, 0)
    broker.address = Address(HOST, server.sockets[0].getsockname()[1])
    cluster, quotas = _Cluster([broker.address], limits), Quotas(limits, rules)
    gateway = Gateway(
        Address(HOST, 0),
        cluster,
        core,
        core,
        limits=limits,
        security=security,
        internal_topics=internal_topics,
        authorizer=authorizer,
        templates=templates,
        quotas=quotas,
        consumer_protocol=consumer_protocol,
    )
    playing = World(gateway, core, broker, cluster, quotas, server, authorizer)
    try:
        await gateway.start()
        yield playing
    finally:
        for client in playing.clients:
            client.writer.close()
        await gateway.close()
        server.close()
        for writer in broker.writers:
            writer.close()


class _Cluster(Cluster):
    """Connects to the stub broker's real address. The address that the broker advertises is unreachable."""

    def learn(self, brokers: Any, *, all_of_them: bool = False) -> None:
        bootstrap = self._bootstrap[0]
        super().learn(dict.fromkeys(brokers, bootstrap), all_of_them=all_of_them)


def played(
    test: Callable[[World], Awaitable[None]] | None = None,
    *,
    security: Security = NO_SECURITY,
    internal_topics: InternalTopics = NO_INTERNAL_TOPICS,
    authorizer: Callable[[], Authorizer] | None = None,
    rules: QuotaRules = NO_RULES,
    templates: Sequence[Template] = (),
    consumer_protocol: bool = True,
    **limits: Any,
) -> Callable[..., Any]:
    """Make a test of a coroutine that gets its own world. `authorizer` makes that world's authorizer."""
    if test is None:
        return partial(
            played,
            security=security,
            internal_topics=internal_topics,
            authorizer=authorizer,
            rules=rules,
            templates=templates,
            consumer_protocol=consumer_protocol,
            **limits,
        )

    async def play() -> None:
        mine = None if authorizer is None else authorizer()
        started = world(
            Limits(**limits),
            security,
            internal_topics,
            mine,
            rules,
            templates,
            consumer_protocol=consumer_protocol,
        )
        async with started as playing:
            await test(playing)

    def run() -> None:
        uvloop.run(play())  # as `gateway.service` does

    run.__name__ = run.__qualname__ = test.__name__
    run.__doc__ = test.__doc__
    return run
