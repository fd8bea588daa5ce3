"""A gateway for RocketMQ's clients on loopback between raw clients and a server that the test controls. That
server is name server and broker in one, and answers every other request with its own code and body.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import uvloop

from gateway.rocketmq.backend import AskBroker, ConnectedClient
from gateway.rocketmq.brokers import BrokerAddress
from gateway.rocketmq.metrics import RocketmqCounts
from gateway.rocketmq.options import RocketmqOptions
from gateway.rocketmq.server import RocketmqGateway
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import Header, decode_header, encode_frame, response_to
from tests.harness.coroutines import as_test
from tests.harness.raw_client import PATIENCE_S

HOST = "127.0.0.1"
NEWEST, OLD = 513, 400
Frame = tuple[Header, bytes]


class RawPeer:
    """One end of a connection: sends frames, and reads those of the other end one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._numbers = count(1)

    def send(self, code: int, body: bytes = b"", **header: Any) -> int:
        """Send a request, and return its opaque."""
        opaque = header.pop("opaque", None) or next(self._numbers)
        self.writer.write(encode_frame(Header(code, opaque, **{"version": NEWEST, **header}), body))
        return int(opaque)

    def answer(self, request: Header, code: int = 0, body: bytes = b"") -> None:
        self.writer.write(encode_frame(response_to(request, code), body))

    async def receive(self) -> Frame:
        """Return the next frame. Raises asyncio.IncompleteReadError at the end of the connection."""
        async with asyncio.timeout(PATIENCE_S):
            data = await self.reader.readexactly(int.from_bytes(await self.reader.readexactly(4)))
        word = int.from_bytes(data[:4])
        end = 4 + (word & 0xFFFFFF)
        return decode_header(word, data[4:end]), data[end:]

    async def ask(self, code: int, body: bytes = b"", **header: Any) -> Frame:
        """Send a request, and return its answer, which is the next frame."""
        opaque = self.send(code, body, **header)
        answer = await self.receive()
        assert answer[0].opaque == opaque
        return answer

    async def is_closed(self) -> bool:
        """Wait for the end of the connection. Return False if a frame comes before."""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionResetError):
                return await self.reader.read(1) == b""
        return True


@dataclass
class StubServer:
    """The server behind the gateway. `brokers` are the cluster's, `peers` the ends of its connections with a
    PROXY line in `lines`, or of all if it expects none. With `is_manual` the test itself reads them.
    """

    tls: ssl.SSLContext | None = None
    expects_line: bool = True
    is_manual: bool = False
    port: int = 0
    brokers: dict[str, dict[int, str]] = field(default_factory=dict)
    requests: list[Frame] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    peers: "asyncio.Queue[RawPeer]" = field(default_factory=asyncio.Queue)
    unanswered: set[int] = field(default_factory=set)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port, ssl=self.tls, limit=2**16)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        peer = RawPeer(reader, writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            begin = await reader.readexactly(6)
            if begin == b"PROXY ":
                self.lines.append(begin + await reader.readline())
            else:
                reader._buffer[:0] = begin  # type: ignore[attr-defined]
            if begin == b"PROXY " or not self.expects_line:
                self.peers.put_nowait(peer)
                if self.is_manual:
                    return
            while True:
                self._respond(peer, *await peer.receive())

    def _respond(self, peer: RawPeer, header: Header, body: bytes) -> None:
        self.requests.append((header, body))
        if header.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            peer.answer(header, body=self.cluster())
        elif header.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            peer.answer(header, body=body or self.route())
        elif not header.is_response and not header.is_one_way and header.code not in self.unanswered:
            peer.answer(header, header.code, body)

    def _datas(self) -> list[str]:
        """Return the brokers as a name server does: the ids are no texts."""
        datas = []
        for name, addresses in self.brokers.items():
            shown = ",".join(f'{number}:"{address}"' for number, address in addresses.items())
            datas.append(f'{{"brokerAddrs":{{{shown}}},"brokerName":"{name}","cluster":"c"}}')
        return datas

    def cluster(self) -> bytes:
        table = ",".join(f'"{name}":{data}' for name, data in zip(self.brokers, self._datas(), strict=True))
        return f'{{"brokerAddrTable":{{{table}}},"clusterAddrTable":{{}}}}'.encode()

    def route(self) -> bytes:
        return f'{{"brokerDatas":[{",".join(self._datas())}],"queueDatas":[]}}'.encode()


Answer = Callable[[Header, bytes, AskBroker], Awaitable[bytes | None]]


@dataclass
class StubSession:
    """A session that handles the codes of `answers`."""

    connection: str
    broker: BrokerAddress
    client_address: str
    send: Callable[[bytes], None]
    close: Callable[[str], None]
    answers: dict[int, Answer]
    reasons: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)

    def frame_max_bytes(self, code: int) -> int:
        return 2**20 if code in self.answers else 0

    async def answer(self, request: Header, body: bytes, ask_broker: AskBroker) -> bytes | None:
        return await self.answers[request.code](request, body, ask_broker)

    async def end(self, reason: str) -> None:
        self.reasons.put_nowait(reason)


@dataclass
class StubSessions:
    """Makes sessions, and keeps them."""

    answers: dict[int, Answer] = field(default_factory=dict)
    made: list[StubSession] = field(default_factory=list)
    gateway_start: str = "s1"

    async def start(self, brokers: Callable[[], Collection[BrokerAddress]]) -> None:
        """Start without the state of an earlier start."""

    def session(self, client: ConnectedClient) -> StubSession:
        self.made.append(StubSession(*client, self.answers))
        return self.made[-1]

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class FrontFixture:
    """The objects of one test. `server` is the cluster's only name server, and broker-a/0 at first."""

    gateway: RocketmqGateway
    server: StubServer
    sessions: StubSessions
    counts: RocketmqCounts
    clients: list[RawPeer] = field(default_factory=list)

    async def client(self, port: int | None = None, tls: ssl.SSLContext | None = None) -> RawPeer:
        """Connect, to the name server unless a port is given."""
        reader, writer = await asyncio.open_connection(
            HOST, port or self.gateway.address.port, ssl=tls, server_hostname=tls and "localhost"
        )
        self.clients.append(RawPeer(reader, writer))
        return self.clients[-1]

    async def at_broker(self, name: str = "broker-a/0", tls: ssl.SSLContext | None = None) -> RawPeer:
        """Connect to the port of a broker."""
        broker = self.gateway.table.broker(name)
        assert broker is not None
        ports = await self.gateway.table.ports_of([broker])
        return await self.client(ports[broker], tls)

    async def joined(self) -> tuple[RawPeer, RawPeer]:
        """Return a client at the broker's port, and the broker's end of its connection."""
        client = await self.at_broker()
        async with asyncio.timeout(PATIENCE_S):
            return client, await self.server.peers.get()


@asynccontextmanager
async def front(server: StubServer | None = None, **options: Any) -> AsyncIterator[FrontFixture]:
    """Start a gateway and end it. `options` are of RocketmqOptions."""
    server = server or StubServer()
    await server.start()
    server.brokers = server.brokers or {"broker-a": {0: server.address}}
    given = {"listen": Address(HOST, 0), "name": "gw", **options}
    told = RocketmqOptions(ClientConfig("x:1"), TopicLayout.named(), (server.address,), **given)
    counts, sessions = RocketmqCounts(), StubSessions()
    gateway = RocketmqGateway(told, sessions, counts)
    world = FrontFixture(gateway, server, sessions, counts)
    try:
        await gateway.start()
        yield world
    finally:
        for client in world.clients:
            client.writer.transport.abort()
        await gateway.close()
        server.stop()


def fronted(test: Callable[..., Awaitable[None]] | None = None, **options: Any) -> Callable[..., Any]:
    """Make a test of a coroutine whose first argument is a `FrontFixture`."""
    if test is None:
        return partial(fronted, **options)

    async def play(arguments: dict[str, Any]) -> None:
        async with front(**options) as world:
            await test(world, **arguments)

    return as_test(test, lambda arguments: uvloop.run(play(arguments)), given=1)
