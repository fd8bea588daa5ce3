"""The gateway for RocketMQ's clients: a name server, and a port for each broker address."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Protocol

import structlog

from gateway.limits import Quotas
from gateway.log_text import RateLimitedWarning
from gateway.metrics.numbers import Numbers, Values
from gateway.net.first_bytes import ConnectionEntry, proxy_header
from gateway.net.lifecycle import ClientGone, Drained
from gateway.net.limits.buffers import ReceiveBufferLimit, WriteBufferLimit
from gateway.net.listener import AdmissionDecision, CannotListen, Entrance, open_listener, port_of
from gateway.net.tls_entry import Endpoints
from gateway.rocketmq.backend import ConnectedClient
from gateway.rocketmq.brokers import BrokerAddress, BrokerPorts, BrokerTable
from gateway.rocketmq.connection import (
    BETWEEN_BROKERS,
    REFUSED_CODES,
    BrokerConnection,
    BrokerSession,
    NameServerConnection,
    found_brokers,
)
from gateway.rocketmq.joined import JoinedConnection, JoinedParts, JoinedStream, UpstreamEnded
from gateway.rocketmq.metrics import RocketmqCounts, rocketmq_numbers
from gateway.rocketmq.options import RocketmqOptions
from gateway.rocketmq.upstream import accepts_connections, open_upstream
from gateway.upstream.connections import UpstreamLost
from kafka_why.connections.address import MAX_PORT, Address
from kafka_why.remoting.client import RemotingClient
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.strict_json import MalformedFrame

REFRESH_INTERVAL_S = 10.0
_FIRST_BROKER_PORT = 3
"""The difference between the first broker's port and the port of the name server."""
_BEHIND_VIP = 2
_LAST_RECORDS_S = 5.0
_PROBE_INTERVAL_S = 0.25

Accept = Callable[[JoinedConnection], None]
MakeConnection = Callable[[Accept], JoinedConnection]

log = structlog.get_logger()


class Sessions(Protocol):
    """The sessions for requests about groups (`gateway.rocketmq.service.RocketmqGroupRequests`)."""

    @property
    def gateway_start(self) -> str: ...
    async def start(self, brokers: Callable[[], Collection[BrokerAddress]]) -> None: ...
    def session(self, client: ConnectedClient) -> BrokerSession: ...
    async def close(self) -> None: ...


class RocketmqGateway:
    """The server of RocketMQ's clients. `sessions` answers requests about groups."""

    def __init__(self, options: RocketmqOptions, sessions: Sessions, counts: RocketmqCounts) -> None:
        limits = options.limits
        self._options = options
        self._sessions = sessions
        self._parts = JoinedParts(
            limits,
            counts,
            WriteBufferLimit(limits.unread_bytes),
            ReceiveBufferLimit(limits.unanswered_bytes, limits.write_timeout_s),
        )
        self._entrance = Entrance(limits, Quotas(limits), counts)
        self._entry = ConnectionEntry(
            self._entrance,
            options.security.tls,
            limits.authentication_timeout_s,
            options.proxies,
            is_permissive=options.is_tls_permissive,
        )
        self._closed = RateLimitedWarning("a connection was closed", "connections")
        self._connections: set[JoinedConnection] = set()
        self._numbers = count(1)
        self._server: asyncio.Server | None = None
        self._port = options.listen.port
        self.table = BrokerTable(
            BrokerPorts(self._port and self._port + _FIRST_BROKER_PORT, options.ports, options.broker_ports),
            self._listen,
            self._end_moved,
            self._is_used,
        )
        self.unreachable: str | None = None
        """The reason why no name server answered the last request, or None."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> Address:
        """The address that clients use as namesrvAddr."""
        return Address(self._options.advertised_host or self._options.listen.host, self._port)

    @property
    def is_draining(self) -> bool:
        """True if the gateway accepts no more connections, because it is about to end."""
        return self._entrance.is_draining

    @property
    def is_listening(self) -> bool:
        """True if clients can connect."""
        return self._server is not None and self._server.is_serving() and self.table.is_listening

    async def start(self) -> None:
        """Listen. Raises CannotListen, UpstreamLost if no name server answers, and the errors of the
        sessions' start.
        """
        brokers = await self._cluster()
        await self._sessions.start(lambda: brokers)
        await self.table.refresh(brokers)
        if self._options.advertised is not None:
            try:
                self._options.advertised.addresses(brokers, self.table.ports())
            except ValueError as error:
                raise CannotListen(str(error)) from error
        self._server = await open_listener(self._options.listen, self._protocol(self._name_server))
        self._port = port_of(self._server)
        log.info("listening", name_server=str(self.address))
        self._run_until_closed(self._options.security.follow())
        self._run_until_closed(self._follow())

    def _run_until_closed(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_s: float) -> None:
        """Accept no more connections, let clients go to another gateway, and end the connections that are
        left after `timeout_s`.
        """
        self._entrance.is_draining = True
        self._close_listeners()
        connections = list(self._connections)
        if not connections:
            return
        log.info("draining", connections=len(connections))
        for connection in connections:
            connection.drain()
        await asyncio.wait([connection.ended for connection in connections], timeout=timeout_s)
        await self._end_all()

    async def close(self) -> None:
        """Close all listeners and connections, and wait for the last records of their groups."""
        self._close_listeners()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end_all()
        await self._sessions.close()

    def numbers(self) -> Numbers:
        """Return the counters and the current state. Runs on the event loop's thread."""
        roles = [connection.role for connection in self._connections]
        at: Values = {
            (role,): [float(roles.count(role))] for role in (NameServerConnection.role, BrokerConnection.role)
        }
        at["entry",] = [float(len(self._entry.waiting))]
        return {
            **rocketmq_numbers(self._parts.counts),
            "connections": at,
            "broker_ports": {(): [len(self.table)]},
            "unread_bytes": {(): [self._parts.write_buffers.bytes]},
            "held_bytes": {(): [self._parts.receive_buffers.bytes]},
            "draining": {(): [float(self.is_draining)]},
        }

    # Listeners.

    def _protocol(self, connection: MakeConnection) -> Callable[[], asyncio.BaseProtocol]:
        def stream(reported: Endpoints | None, admission: AdmissionDecision | None) -> JoinedStream:
            client = connection(partial(self._accept, admission)).client
            client.reported = reported
            return client

        return partial(self._entry.protocol, stream)

    async def _listen(self, broker: str, port: int) -> list[asyncio.Server]:
        if self.is_draining:
            raise CannotListen("the gateway is about to end")
        protocol = self._protocol(partial(self._broker, broker))
        host = self._options.listen.host
        if port > MAX_PORT:
            raise CannotListen(f"broker {broker} would have port {port}")
        servers = [await open_listener(Address(host, port), protocol)]
        if self._options.has_vip_ports:
            try:
                vip = Address(host, port_of(servers[0]) - _BEHIND_VIP)
                servers.append(await open_listener(vip, protocol))
            except CannotListen:
                servers[0].close()
                raise
        return servers

    def _close_listeners(self) -> None:
        if self._server is not None:
            self._server.close()
        self.table.close()
        self._entry.close()

    # Connections.

    def _name_server(self, accept: Accept) -> JoinedConnection:
        refused = REFUSED_CODES - self._options.allowed_codes
        return NameServerConnection(self._parts, accept, self._map_addresses, refused)

    def _broker(self, name: str, accept: Accept) -> JoinedConnection:
        broker = self.table.broker(name)
        if broker is None:  # its listener was closed after the client had connected
            raise UpstreamEnded(f"the cluster no longer has broker {name}")
        return BrokerConnection(
            self._parts,
            accept,
            broker,
            partial(self._session, broker),
            BETWEEN_BROKERS - self._options.allowed_codes,
        )

    def _session(
        self,
        broker: BrokerAddress,
        client_address: str,
        send: Callable[[bytes], None],
        close: Callable[[str], None],
    ) -> BrokerSession:
        start = self._sessions.gateway_start
        name = f"{self._options.name}/{start}/{broker}/{client_address}#{next(self._numbers)}"
        return self._sessions.session(ConnectedClient(name, broker, client_address, send, close))

    def _accept(self, admission: AdmissionDecision | None, connection: JoinedConnection) -> None:
        connection.ended.add_done_callback(lambda ended: self._note_end(connection, ended.result()))
        self._entrance.receive(connection, partial(self._begin, connection), admission)

    def _begin(self, connection: JoinedConnection) -> None:
        if connection.ended.done():
            return
        self._connections.add(connection)
        self._parts.start(connection.join(partial(self._connect, connection)))

    async def _connect(self, connection: JoinedConnection, stream: JoinedStream) -> None:
        if isinstance(connection, BrokerConnection):
            first = proxy_header(connection.client.endpoints) if self._options.proxy_line else b""
            try:
                await self._open(connection.broker.address, stream, first)
            except UpstreamLost as lost:
                if isinstance(lost.__cause__, ConnectionRefusedError):
                    self._run_until_closed(self._refuse_clients(str(connection.broker)))
                raise
            return
        error = UpstreamLost("no name server is known")
        for address in self._options.namesrv:
            try:
                await self._open(address, stream, b"")
            except UpstreamLost as lost:
                error = lost
            else:
                return
        raise error

    async def _open(self, address: str, stream: JoinedStream, first: bytes) -> None:
        await open_upstream(
            address,
            stream,
            tls=self._options.upstream_tls,
            first=first,
            timeout_s=self._options.limits.connect_timeout_s,
        )

    def _note_end(self, connection: JoinedConnection, why: Exception) -> None:
        self._connections.discard(connection)
        self._parts.counts.closed[getattr(why, "reason", "error")] += 1
        if not isinstance(why, ClientGone | UpstreamEnded):
            self._closed.add(client=connection.peer, why=str(why))

    async def _end_all(self) -> None:
        """End all connections, and wait for a short time until the coordinator is notified."""
        for connection in list(self._connections):
            connection.end(Drained("the gateway has stopped"))
        while self._parts.background:
            done, _ = await asyncio.wait(self._parts.background, timeout=_LAST_RECORDS_S)
            if not done:
                break

    # Brokers.

    async def _map_addresses(self, brokers: list[BrokerAddress], own_host: str) -> Mapping[str, str]:
        ports = await self.table.ports_of(brokers)
        if self._options.advertised is not None:
            found = self._options.advertised.addresses(brokers, self.table.ports())
        else:
            host = self._options.advertised_host or own_host
            found = {broker: Address(host, port) for broker, port in ports.items()}
        return {broker.address: str(address) for broker, address in found.items()}

    async def _cluster(self) -> list[BrokerAddress]:
        """Return all brokers, by the first name server that answers. Raises UpstreamLost."""
        failures: list[str] = []
        for address in self._options.namesrv:
            try:
                found = await self._ask_name_server(address)
            except (OSError, MalformedFrame) as error:
                failures.append(f"{address}: {error!r}")
                continue
            self.unreachable = None
            return found
        self.unreachable = f"no name server answers: {'; '.join(failures)}"
        raise UpstreamLost(self.unreachable)

    async def _ask_name_server(self, address: str) -> list[BrokerAddress]:
        limits, code = self._options.limits, RequestCode.GET_BROKER_CLUSTER_INFO
        client = await RemotingClient.open(
            address,
            credentials=self._options.credentials,
            tls=self._options.upstream_tls,
            timeout_s=limits.connect_timeout_s,
        )
        try:
            header, body = await client.invoke(code)
        finally:
            await client.close()
        if header.code:
            raise UpstreamLost(f"it answers {header.code}: {header.remark}")
        return found_brokers(code, body)

    async def _follow(self) -> None:
        """Request the cluster's brokers periodically, until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            try:
                await self.table.refresh(await self._cluster())
            except OSError as error:
                log.warning("the cluster's brokers are not known", error=str(error))

    async def _refuse_clients(self, name: str) -> None:
        """Refuse connections to a broker while the broker refuses those of the gateway.

        A client sends a heartbeat as soon as it is connected, and connects again if the heartbeat fails. If
        the gateway accepted the connection, that would happen hundreds of times in a second. Source:
        MQClientInstance, onChannelActive.
        """
        if not self.table.stop_listening(name):
            return
        log.warning("a broker refuses connections", broker=name)
        timeout_s = self._options.limits.connect_timeout_s
        while (broker := self.table.broker(name)) is not None:
            await asyncio.sleep(_PROBE_INTERVAL_S)
            if await accepts_connections(broker.address, timeout_s):
                with suppress(CannotListen):
                    await self.table.listen_again(name)
                    log.info("listening", broker=name, address=broker.address)
                    return

    def _end_moved(self, broker: BrokerAddress) -> None:
        for connection in list(self._connections):
            if isinstance(connection, BrokerConnection) and connection.broker == broker:
                connection.end(UpstreamEnded(f"the broker is no longer at {broker.address}"))

    def _is_used(self, name: str) -> bool:
        return any(isinstance(it, BrokerConnection) and str(it.broker) == name for it in self._connections)
