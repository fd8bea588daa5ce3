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
from gateway.net.listener import (
    AdmissionDecision,
    CannotListen,
    ConnectionQuotas,
    accepts_connections,
    open_listener,
    port_of,
)
from gateway.net.tls_entry import Endpoints
from gateway.rocketmq.backend import ConnectedClient
from gateway.rocketmq.brokers import BrokerAddress, BrokerPorts, BrokerTable
from gateway.rocketmq.connection import (
    INTER_BROKER_CODES,
    REFUSED_CODES,
    BrokerConnection,
    BrokerSession,
    NameServerConnection,
    decode_broker_addresses,
)
from gateway.rocketmq.joined import JoinedConnection, JoinedParts, JoinedStream, UpstreamEnded
from gateway.rocketmq.metrics import RocketmqCounts, rocketmq_numbers
from gateway.rocketmq.options import RocketmqOptions
from gateway.rocketmq.upstream import open_upstream
from gateway.upstream.cluster import at_any
from gateway.upstream.connections import UpstreamLost
from kafka_why.connections.address import MAX_PORT, Address
from kafka_why.remoting.client import RemotingClient
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.strict_json import MalformedFrame

REFRESH_INTERVAL_S = 10.0
_FIRST_BROKER_PORT = 3
"""The difference between the first broker's port and the port of the name server."""
_VIP_PORT_OFFSET = 2
_LAST_RECORDS_S = 5.0
_PROBE_INTERVAL_S = 0.25

Accept = Callable[[JoinedConnection], None]
MakeConnection = Callable[[Accept], JoinedConnection]

log = structlog.get_logger()


class Sessions(Protocol):
    """The sessions for requests about groups (`gateway.rocketmq.service.RocketmqSessions`)."""

    @property
    def gateway_start(self) -> str:
        """The id of this start of the gateway."""

    async def start(self, brokers: Callable[[], Collection[BrokerAddress]]) -> None:
        """Prepare for connections, before the gateway listens."""

    def session(self, client: ConnectedClient) -> BrokerSession:
        """Return the session of a client connection."""

    async def close(self) -> None:
        """Wait a short time for the last records."""


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
        self._connection_quotas = ConnectionQuotas(limits, Quotas(limits), counts)
        self._entry = ConnectionEntry(
            self._connection_quotas,
            options.security.tls,
            limits.authentication_timeout_s,
            options.proxies,
            is_permissive=options.is_tls_permissive,
        )
        self._closed_warning = RateLimitedWarning("a connection was closed", "connections")
        self._connections: set[JoinedConnection] = set()
        self._connection_numbers = count(1)
        self._server: asyncio.Server | None = None
        self._port = options.listen.port
        self.table = BrokerTable(
            BrokerPorts(
                # 0, as for the name server's port, lets the system choose.
                first_port=self._port + _FIRST_BROKER_PORT if self._port else 0,
                file=options.ports,
                pinned=options.broker_ports,
            ),
            self._listen,
            self._end_connections_to,
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
        return self._connection_quotas.is_draining

    @property
    def is_listening(self) -> bool:
        """True if clients can connect."""
        return self._server is not None and self._server.is_serving() and self.table.is_listening

    async def start(self) -> None:
        """Listen. Raises CannotListen, UpstreamLost if no name server answers, and the errors of the
        sessions' start.
        """
        brokers = await self._list_brokers()
        await self._sessions.start(lambda: brokers)
        await self.table.refresh(brokers)
        if self._options.advertised is not None:
            try:
                self._options.advertised.addresses(brokers, self.table.ports())
            except ValueError as error:
                raise CannotListen(str(error)) from error
        self._server = await open_listener(
            self._options.listen, self._protocol_factory(self._name_server_connection)
        )
        self._port = port_of(self._server)
        log.info("listening", name_server=str(self.address))
        self._run_until_closed(self._options.security.follow())
        self._run_until_closed(self._refresh_brokers())

    def _run_until_closed(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout_s: float) -> None:
        """Accept no more connections, let clients go to another gateway, and end the connections that are
        left after `timeout_s`.
        """
        self._connection_quotas.is_draining = True
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
        connections: Values = {
            (role,): [float(roles.count(role))] for role in (NameServerConnection.role, BrokerConnection.role)
        }
        connections["entry",] = [float(len(self._entry.waiting))]
        return {
            **rocketmq_numbers(self._parts.counts),
            "connections": connections,
            "broker_ports": {(): [len(self.table)]},
            "unread_bytes": {(): [self._parts.write_buffers.bytes]},
            "held_bytes": {(): [self._parts.receive_buffers.bytes]},
            "draining": {(): [float(self.is_draining)]},
        }

    # Listeners.

    def _protocol_factory(self, make_connection: MakeConnection) -> Callable[[], asyncio.BaseProtocol]:
        """Return the function that a listener calls for each new connection."""

        def make_stream(reported: Endpoints | None, admission: AdmissionDecision | None) -> JoinedStream:
            client = make_connection(partial(self._accept, admission)).client
            client.reported = reported
            return client

        return partial(self._entry.protocol, make_stream)

    async def _listen(self, broker: str, port: int) -> list[asyncio.Server]:
        """Open the listeners of a broker at this port. Raises CannotListen."""
        if self.is_draining:
            raise CannotListen("the gateway is about to end")
        protocol = self._protocol_factory(partial(self._broker_connection, broker))
        host = self._options.listen.host
        if port > MAX_PORT:
            raise CannotListen(f"broker {broker} would have port {port}")
        servers = [await open_listener(Address(host, port), protocol)]
        if self._options.has_vip_ports:
            try:
                vip_address = Address(host, port_of(servers[0]) - _VIP_PORT_OFFSET)
                servers.append(await open_listener(vip_address, protocol))
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

    def _name_server_connection(self, accept: Accept) -> JoinedConnection:
        refused = REFUSED_CODES - self._options.allowed_codes
        return NameServerConnection(self._parts, accept, self._map_addresses, refused)

    def _broker_connection(self, name: str, accept: Accept) -> JoinedConnection:
        """Build a client's connection at the port of a broker. Raises UpstreamEnded if the broker is gone."""
        broker = self.table.broker(name)
        if broker is None:  # its listener was closed after the client had connected
            raise UpstreamEnded(f"the cluster no longer has broker {name}")
        return BrokerConnection(
            self._parts,
            accept,
            broker,
            partial(self._session, broker),
            INTER_BROKER_CODES - self._options.allowed_codes,
        )

    def _session(
        self,
        broker: BrokerAddress,
        client_address: str,
        send: Callable[[bytes], None],
        close: Callable[[str], None],
    ) -> BrokerSession:
        start = self._sessions.gateway_start
        name = f"{self._options.name}/{start}/{broker}/{client_address}#{next(self._connection_numbers)}"
        return self._sessions.session(ConnectedClient(name, broker, client_address, send, close))

    def _accept(self, admission: AdmissionDecision | None, connection: JoinedConnection) -> None:
        connection.ended.add_done_callback(lambda ended: self._on_end(connection, ended.result()))
        self._connection_quotas.serve_or_refuse(connection, partial(self._join, connection), admission)

    def _join(self, connection: JoinedConnection) -> None:
        """Connect an admitted client to its server, unless it has gone."""
        if connection.ended.done():
            return
        self._connections.add(connection)
        self._parts.start(connection.join(partial(self._connect, connection)))

    async def _connect(self, connection: JoinedConnection, stream: JoinedStream) -> None:
        """Connect a stream to the connection's broker, or to a name server. Raises UpstreamLost."""
        if isinstance(connection, BrokerConnection):
            header = proxy_header(connection.client.endpoints) if self._options.proxy_line else b""
            try:
                await self._open(connection.broker.address, stream, header)
            except UpstreamLost as lost:
                if isinstance(lost.__cause__, ConnectionRefusedError):
                    self._run_until_closed(self._refuse_clients(str(connection.broker)))
                raise
            return
        await at_any(
            self._options.namesrv, lambda address: self._open(address, stream, proxy_header_bytes=b"")
        )

    async def _open(self, address: str, stream: JoinedStream, proxy_header_bytes: bytes) -> None:
        await open_upstream(
            address,
            stream,
            tls=self._options.upstream_tls,
            first=proxy_header_bytes,
            timeout_s=self._options.limits.connect_timeout_s,
        )

    def _on_end(self, connection: JoinedConnection, why: Exception) -> None:
        """Count the end of a connection, and log it unless one side closed the connection."""
        self._connections.discard(connection)
        self._parts.counts.closed[getattr(why, "reason", "error")] += 1
        if not isinstance(why, ClientGone | UpstreamEnded):
            self._closed_warning.add(client=connection.peer, why=str(why))

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
        """Return the address that clients get for each broker, by its real address (`MapAddresses`)."""
        ports = await self.table.open_ports(brokers)
        if self._options.advertised is not None:
            advertised = self._options.advertised.addresses(brokers, self.table.ports())
        else:
            host = self._options.advertised_host or own_host
            advertised = {broker: Address(host, port) for broker, port in ports.items()}
        return {broker.address: str(address) for broker, address in advertised.items()}

    async def _list_brokers(self) -> list[BrokerAddress]:
        """Return all brokers, by the first name server that answers. Raises UpstreamLost."""
        failures: list[str] = []
        for address in self._options.namesrv:
            try:
                brokers = await self._ask_name_server(address)
            except (OSError, MalformedFrame) as error:
                failures.append(f"{address}: {error!r}")
                continue
            self.unreachable = None
            return brokers
        self.unreachable = f"no name server answers: {'; '.join(failures)}"
        raise UpstreamLost(self.unreachable)

    async def _ask_name_server(self, address: str) -> list[BrokerAddress]:
        """Return all brokers that a name server lists. Raises OSError and MalformedFrame."""
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
        return decode_broker_addresses(code, body)

    async def _refresh_brokers(self) -> None:
        """Request the cluster's brokers periodically, until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_INTERVAL_S)
            try:
                await self.table.refresh(await self._list_brokers())
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

    def _end_connections_to(self, broker: BrokerAddress) -> None:
        for connection in list(self._connections):
            if isinstance(connection, BrokerConnection) and connection.broker == broker:
                connection.end(UpstreamEnded(f"the broker is no longer at {broker.address}"))

    def _is_used(self, name: str) -> bool:
        """Return True if a client is connected to the port of this broker."""
        return any(
            isinstance(connection, BrokerConnection) and str(connection.broker) == name
            for connection in self._connections
        )
