"""A RocketMQ gateway on loopback between raw clients and a server that the test controls.

That server is name server and broker in one. It answers all other requests with their own code and body. The
module also has a real Proxy of RocketMQ with gRPC clients.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import uvloop

from embedded.jars import class_path, jar_paths
from embedded.java import QUICK_COMPILER, ChildProcess, find_java
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
from tests.harness.certificates import Authority
from tests.harness.java_tools import ReportingProgram, classpath_options, compiled
from tests.harness.ports import free_port
from tests.harness.raw_client import PATIENCE_S
from tests.harness.waiting import as_test, evaluated_options, wait_until

HOST = "127.0.0.1"
NEWEST, OLD = 513, 400
Frame = tuple[Header, bytes]


class RawPeer:
    """One end of a connection, which sends frames, and reads those of the other end one by one."""

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
        """Wait for the end of the connection. Return False if a frame comes instead."""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionResetError):
                return await self.reader.read(1) == b""
        return True


@dataclass
class StubServer:
    """The server behind the gateway. `brokers` are those of the cluster.

    `lines` has the PROXY lines of its connections, `peers` their ends. Without `expects_line`, `peers` has
    the ends of all connections. With `is_manual` the test itself reads from the peers.
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

    def _broker_datas(self) -> list[str]:
        """Return the brokers as a name server does, with ids that are not strings."""
        datas = []
        for name, addresses in self.brokers.items():
            addresses_text = ",".join(f'{number}:"{address}"' for number, address in addresses.items())
            datas.append(f'{{"brokerAddrs":{{{addresses_text}}},"brokerName":"{name}","cluster":"c"}}')
        return datas

    def cluster(self) -> bytes:
        entries = zip(self.brokers, self._broker_datas(), strict=True)
        table = ",".join(f'"{name}":{data}' for name, data in entries)
        return f'{{"brokerAddrTable":{{{table}}},"clusterAddrTable":{{}}}}'.encode()

    def route(self) -> bytes:
        return f'{{"brokerDatas":[{",".join(self._broker_datas())}],"queueDatas":[]}}'.encode()


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
    """Creates sessions, which are in `made`."""

    answers: dict[int, Answer] = field(default_factory=dict)
    made: list[StubSession] = field(default_factory=list)
    gateway_start: str = "s1"

    async def start(self, brokers: Callable[[], Collection[BrokerAddress]]) -> None:
        """Start without the state of an earlier start."""

    def session(self, client: ConnectedClient) -> StubSession:
        self.made.append(StubSession(*client, self.answers))
        return self.made[-1]

    async def close(self) -> None:
        """Do nothing, because nothing is open."""


@dataclass
class FrontFixture:
    """The objects of one test. `server` is the cluster's only name server, and broker-a/0 at first."""

    gateway: RocketmqGateway
    server: StubServer
    sessions: StubSessions
    counts: RocketmqCounts
    clients: list[RawPeer] = field(default_factory=list)

    async def client(self, port: int | None = None, tls: ssl.SSLContext | None = None) -> RawPeer:
        """Connect to a port (default: that of the name server)."""
        reader, writer = await asyncio.open_connection(
            HOST, port or self.gateway.address.port, ssl=tls, server_hostname=tls and "localhost"
        )
        self.clients.append(RawPeer(reader, writer))
        return self.clients[-1]

    async def at_broker(self, name: str = "broker-a/0", tls: ssl.SSLContext | None = None) -> RawPeer:
        """Connect to the port of a broker."""
        broker = self.gateway.table.broker(name)
        assert broker is not None
        ports = await self.gateway.table.open_ports([broker])
        return await self.client(ports[broker], tls)

    async def joined(self) -> tuple[RawPeer, RawPeer]:
        """Connect a client to the broker's port. Return it, and the broker's end of its connection."""
        client = await self.at_broker()
        async with asyncio.timeout(PATIENCE_S):
            return client, await self.server.peers.get()


@asynccontextmanager
async def front(server: StubServer | None = None, **options: Any) -> AsyncIterator[FrontFixture]:
    """Start a gateway, and end it with the block. `options` are those of RocketmqOptions."""
    server = server or StubServer()
    await server.start()
    server.brokers = server.brokers or {"broker-a": {0: server.address}}
    settings = {"listen": Address(HOST, 0), "name": "gw", **options}
    gateway_options = RocketmqOptions(ClientConfig("x:1"), TopicLayout.named(), (server.address,), **settings)
    counts, sessions = RocketmqCounts(), StubSessions()
    gateway = RocketmqGateway(gateway_options, sessions, counts)
    fixture = FrontFixture(gateway, server, sessions, counts)
    try:
        await gateway.start()
        yield fixture
    finally:
        for client in fixture.clients:
            client.writer.transport.abort()
        await gateway.close()
        server.stop()


def fronted(test: Callable[..., Awaitable[None]] | None = None, **options: Any) -> Callable[..., Any]:
    """Decorate a coroutine as a test. Its first argument is a FrontFixture. `options` are of `front`."""
    if test is None:
        return partial(fronted, **options)

    async def play(arguments: dict[str, Any]) -> None:
        async with front(**evaluated_options(options, arguments)) as fixture:
            await test(fixture, **arguments)

    return as_test(test, lambda arguments: uvloop.run(play(arguments)), skipped=1)


SOURCE = Path(__file__).with_name("rocketmq_grpc.java")
_LOGBACK = """\
<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %p %logger{0}: %m%n%ex</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="console"/></root>
</configuration>
"""
_JVM_OPTIONS = (QUICK_COMPILER, "-XX:+UseSerialGC", "-Xmx256m")


@contextmanager
def rocketmq_proxy(name_server: str, folder: Path) -> Iterator[str]:
    """Run a Proxy in cluster mode, and yield its address for gRPC clients."""
    issued = Authority(folder).issue("proxy")
    port = free_port()
    settings = {
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": name_server,
        "grpcServerPort": port,
        "remotingListenPort": free_port(),
        # Otherwise each start generates a certificate, whose RSA key takes seconds.
        "tlsTestModeEnable": False,
        "tlsCertPath": str(issued.chain),
        "tlsKeyPath": str(issued.key),
    }
    (folder / "proxy.json").write_text(json.dumps(settings))
    (folder / "logback.xml").write_text(_LOGBACK)
    options = (
        f"-Duser.home={folder}",
        "-Drocketmq.home.dir=.",
        "-Drmq.logback.configurationFile=logback.xml",
    )
    main_class = "org.apache.rocketmq.proxy.ProxyStartup"
    command = [str(find_java()), *_JVM_OPTIONS, *options, "-Dtls.server.mode=disabled"]
    command += ["-cp", class_path("rocketmq_proxy"), main_class, "-pm", "cluster", "-pc", "proxy.json"]
    log = folder / "proxy.log"
    log.touch()
    proxy = ChildProcess(folder, log)
    proxy.mark_log()
    try:
        assert proxy.spawn(command, grace_s=1.0)
        wait_until(lambda: "startup successfully" in proxy.log_text(), "the Proxy", 120.0)
        yield f"127.0.0.1:{port}"
    finally:
        proxy.kill()


class GrpcClients(ReportingProgram):
    """A push consumer and a producer."""

    def __init__(self, proxy: str, topic: str, group: str, folder: Path) -> None:
        self.is_ready = False
        self.received: list[str] = []
        paths = jar_paths("rocketmq_grpc")
        classes = compiled([SOURCE], classpath_options(paths))
        options = [*_JVM_OPTIONS, f"-Duser.home={folder}", *classpath_options([classes, *paths])]
        super().__init__([str(find_java()), *options, "RocketMqGrpc", proxy, topic, group], None, folder)

    def handle_line(self, line: str) -> None:
        if line == "ready":
            self.is_ready = True
        else:
            self.received.append(line)

    def on_end(self) -> None:
        self.is_ready = False
