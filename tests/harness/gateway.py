"""A gateway on loopback between raw clients, the coordinator's pure core, and a stub broker.

The core is the real one, in this process. Its time moves only if a test moves it. The broker answers Metadata
and ApiVersions, and answers other requests with bodies that the test sets.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import UUID, uuid5

import uvloop
from kafka.protocol.api_key import ApiKey

from gateway.authorization.acls import Acl, Operation, PatternType, Permission, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.limits import NO_RULES, Limits, QuotaRules, Quotas
from gateway.net.server import Gateway, GatewayOptions
from gateway.telemetry.service import ClientTelemetry
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import Address
from gateway.wire import codec
from gateway.wire.framing import FrameBuffer, RequestHeader, expects_response, framed, request_header
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.requests import JoinGroup
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ANONYMOUS, Response
from kafka_why.contract.telemetry import GroupDeliveries, MemberTelemetry
from tests.harness.core_backend import CoreBackend as CoreBackend
from tests.harness.raw_client import PATIENCE_S as PATIENCE_S
from tests.harness.raw_client import RawClient as RawClient
from tests.harness.waiting import as_test, evaluated_options

HOST = "127.0.0.1"
ADVERTISED_PORT = 9092  # the broker advertises it: nothing listens there, and no client may learn it
NODE_ID = 5
TOPICS = {"orders": 3, "prices": 1}
LAYOUT = TopicLayout.named()
_LIMITS = {field.name for field in fields(Limits)}

R = TypeVar("R", bound=Response)
Right = tuple[Operation, ResourceType, str]
"""An operation, and the type and the name of a resource, or a prefix of names (`name*`), or all (`*`)."""


def acls(rights: Iterable[Right]) -> list[Acl]:
    """Return ACLs that give everybody these rights."""
    return [
        Acl(
            kind,
            name[:1] + name[1:].removesuffix("*"),
            PatternType.PREFIXED if name[1:].endswith("*") else PatternType.LITERAL,
            ANONYMOUS,
            "*",
            operation,
            Permission.ALLOW,
        )
        for operation, kind, name in rights
    ]


def topic_id(name: str) -> UUID:
    return uuid5(UUID(int=0), name)


@dataclass
class StubBroker:
    """The only broker of a cluster. It answers a request with the body in `answers` for its API key, or with
    the result of the function in `scripts`, or else with the request's own bytes.

    `topic_errors` are error codes of topics in Metadata, `internal` the topics that it marks as internal.
    Requests of APIs in `unanswered`, or with `silent` all, get no answer. Others wait for `open`. `passed`
    has the headers of the clients' requests that arrived, and `messages` the whole requests.
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
    metadata_requests: int = 0
    silent: bool = False
    unanswered: set[int] = field(default_factory=set)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def requests(self, *api_keys: int) -> list[Any]:
        """Return the clients' requests of these APIs (default: all), decoded."""
        pairs = [(request_header(message), message) for message in self.messages]
        return [codec.decode_request(*pair) for pair in pairs if not api_keys or pair[0].api_key in api_keys]

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
                is_answered = not self.silent and header.api_key not in self.unanswered
                if expects_response(header, message) and is_answered:
                    writer.write(framed(self._answer(header, message)))

    def _answer(self, header: RequestHeader, message: bytes) -> bytes:
        if header.api_key == ApiKey.Metadata:
            return codec.encode_response(header, self._metadata(header, message))
        if header.api_key in self.scripts:
            answer = self.scripts[header.api_key](codec.decode_request(header, message))
            return codec.encode_response(header, answer)
        if header.api_key in self.answers:
            return codec.encode_response(header, self.answers[header.api_key])
        return header.correlation_id.to_bytes(4, "big") + message[header.client_id_end :]

    def _metadata(self, header: RequestHeader, message: bytes) -> codec.Fields:
        self.metadata_requests += 1
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
        topic = {"error_code": 0, "name": name, "topic_id": self._id(name), "partitions": partitions}
        return topic | {"is_internal": name in self.internal}


@dataclass
class WrittenTelemetry:
    """The records of the telemetry topic: clients' metrics, and deliveries of share groups."""

    records: list[MemberTelemetry] = field(default_factory=list)
    deliveries: list[GroupDeliveries] = field(default_factory=list)

    def write(self, record: MemberTelemetry) -> None:
        self.records.append(record)

    def write_deliveries(self, record: GroupDeliveries, number: int) -> None:
        assert number == len(self.deliveries)
        self.deliveries.append(record)


@dataclass
class GatewayFixture:
    """The objects of one test."""

    gateway: Gateway
    core: CoreBackend
    broker: StubBroker
    cluster: Cluster
    quotas: Quotas
    broker_server: asyncio.Server
    evidence: WrittenTelemetry
    authorizer: Authorizer | None = None
    clients: list[RawClient] = field(default_factory=list)
    shared_client: RawClient | None = None

    async def client(
        self,
        port: int | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        client_id: str = "me",
        server_name: str | None = None,
    ) -> RawClient:
        """Open a connection to a port (default: that of the first listener). `server_name` is for TLS."""
        reader, writer = await asyncio.open_connection(
            HOST, port or self.gateway.address.port, ssl=tls, server_hostname=server_name
        )
        client = RawClient(reader, writer, client_id)
        self.clients.append(client)
        return client

    async def ask(self, api_key: int, version: int, **body: Any) -> Any:
        """Send a request on a connection that all calls of this method share. Return the answer."""
        if self.shared_client is None:
            self.shared_client = await self.client()
        return await self.shared_client.ask(api_key, version, **body)

    def allow(self, *rights: Right) -> None:
        """Replace the rights of all clients."""
        assert self.authorizer is not None
        self.authorizer.replace(acls(rights))

    def cached_topics(self) -> int:
        """Return the number of topics cached by name and by id, including those that do not exist."""
        return len(self.cluster._by_name) + len(self.cluster._by_id)

    async def stop_broker(self) -> None:
        """Stop the stub broker: its connections are lost, and new ones are refused."""
        self.broker_server.close()
        for writer in self.broker.writers:
            writer.close()
        await self.broker_server.wait_closed()

    async def broker_port(self) -> int:
        """Return the port of the broker's own listener, as a client learns it."""
        client = await self.client()
        coordinator = await client.ask(ApiKey.FindCoordinator, 0, key="any")
        return int(coordinator.port)


@asynccontextmanager
async def world(
    authorizer: Authorizer | None = None,
    rights: Iterable[Right] | None = None,
    rules: QuotaRules = NO_RULES,
    versions: codec.Fields = MappingProxyType({}),
    **options: Any,
) -> AsyncIterator[GatewayFixture]:
    """Start a gateway and all that it needs, and end them with the block.

    Clients have these `rights` (default: all). When the gateway starts, the broker's ApiVersions has the
    fields `versions`. `options` are those of GatewayOptions.
    """
    if rights is not None:
        authorizer = Authorizer()
        authorizer.replace(acls(rights))
    broker, core = StubBroker(), CoreBackend()
    broker.open.set()
    broker.answers[ApiKey.ApiVersions] = {"api_keys": [], **versions}
    server = await asyncio.start_server(broker.serve, HOST, 0)
    broker.address = Address(HOST, server.sockets[0].getsockname()[1])
    layout = options.pop("layout", LAYOUT)
    gateway_options = GatewayOptions(ClientConfig(str(broker.address)), layout, Address(HOST, 0), **options)
    cluster = _Cluster([broker.address], gateway_options.limits)
    quotas = Quotas(gateway_options.limits, rules)
    evidence, interval_ms = WrittenTelemetry(), gateway_options.telemetry_interval_ms
    telemetry = None if interval_ms is None else ClientTelemetry(interval_ms, evidence.write)
    gateway = Gateway(
        gateway_options,
        cluster,
        core,
        core,
        authorizer=authorizer,
        quotas=quotas,
        telemetry=telemetry,
        write_deliveries=evidence.write_deliveries,
    )
    fixture = GatewayFixture(gateway, core, broker, cluster, quotas, server, evidence, authorizer)
    try:
        await gateway.start()
        yield fixture
    finally:
        for client in fixture.clients:
            client.writer.close()
        await gateway.close()
        server.close()
        for writer in broker.writers:
            writer.close()


class _Cluster(Cluster):
    """Connects to the stub broker's real address. The address that the broker advertises is unreachable."""

    def update_brokers(self, brokers: Any, *, all_of_them: bool = False) -> None:
        bootstrap = self._bootstrap[0]
        super().update_brokers(dict.fromkeys(brokers, bootstrap), all_of_them=all_of_them)


def played(
    test: Callable[..., Awaitable[None]] | None = None, *, expose_internal_topics: Any = True, **options: Any
) -> Callable[..., Any]:
    """Decorate a coroutine as a test. Its first argument is a new GatewayFixture, the others are parameters
    and fixtures as of any test.

    `options` are those of `world`, GatewayOptions or Limits. Instead of a value an option may be a function,
    which is called with the test's arguments that it names. By default there are no internal topics, so that
    the gateway does not look up their ids.
    """
    options["expose_internal_topics"] = expose_internal_topics
    if test is None:
        return partial(played, **options)

    async def play(arguments: dict[str, Any]) -> None:
        evaluated = evaluated_options(options, arguments)
        if limits := {name: evaluated.pop(name) for name in options.keys() & _LIMITS}:
            evaluated["limits"] = Limits(**limits)
        async with world(**evaluated) as fixture:
            await test(fixture, **arguments)

    # In an event loop of uvloop, as `gateway.service` does.
    return as_test(test, lambda arguments: uvloop.run(play(arguments)), skipped=1)


COMMIT, OFFSET_FETCH, JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST = 8, 9, 11, 12, 13, 14, 15, 16
DELETE_GROUPS, OFFSET_DELETE = 42, 47
BEAT: dict[str, Any] = {"group_id": "g", "generation_id": 1, "member_id": "nobody"}
"""The fields of a heartbeat of an unknown member, which gets UNKNOWN_MEMBER_ID."""


def join_fields(member_id: str = "", **more: Any) -> dict[str, Any]:
    return {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"subscription"}],
        **more,
    }


async def stable(world: GatewayFixture, client: RawClient, **more: Any) -> str:
    """Form group g with one member, in generation 1, and return its member id."""
    member_id = str((await client.ask(JOIN, 9, **join_fields(**more))).member_id)
    await client.send(JOIN, 9, **join_fields(member_id, **more))
    await world.core.wait_for(lambda: sum(isinstance(r, JoinGroup) for r in world.core.asked) == 2)
    world.core.advance(3_000)
    _, joined = await client.receive()
    assert (joined.error_code, joined.generation_id, joined.leader) == (0, 1, member_id)
    synced = await client.ask(
        SYNC,
        5,
        group_id="g",
        generation_id=1,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": member_id, "assignment": b"everything"}],
    )
    assert (synced.error_code, synced.assignment) == (0, b"everything")
    return member_id


def commit_fields(member_id: str, *offsets: tuple[str, int, int], by_id: bool = False) -> dict[str, Any]:
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": 1 if member_id else -1,
        "member_id": member_id,
        "topics": [
            {
                **({"topic_id": topic_id(name)} if by_id else {"name": name}),
                "partitions": [
                    {"partition_index": p, "committed_offset": offset, "committed_metadata": "note"}
                ],
            }
            for name, p, offset in offsets
        ],
    }


def outcomes(response: Any) -> list[tuple[Any, int, int]]:
    """Return the (topic, partition, error code) triples of an answer."""
    return [
        (topic.name or topic.topic_id, p.partition_index, p.error_code)
        for topic in response.topics
        for p in topic.partitions
    ]


def topic_partition(name: str) -> dict[str, Any]:
    return {"name": name, "partitions": [{"partition_index": 0}]}
