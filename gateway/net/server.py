"""The gateway with its options: a first listener, and one listener for each broker of the cluster behind
it.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

import structlog

from gateway.apis.context import Services
from gateway.authorization.authorizer import Authorizer
from gateway.authorization.sources import AclOptions
from gateway.coordinator.failures import Backend
from gateway.coordinator.fresh_groups import FreshGroups
from gateway.coordinator.groups import GroupsView
from gateway.deliveries.service import Deliveries, DeliveryReports, WriteDeliveries, delivery_numbers
from gateway.fairness import CapacityLimiter
from gateway.limits import Limits, Quotas
from gateway.metrics.numbers import GatewayCounts, Numbers, Values, counter_numbers
from gateway.net.advertised import Advertised, Template
from gateway.net.connection import Connection
from gateway.net.first_bytes import ConnectionEntry, Network
from gateway.net.limits.buffers import ReceiveBufferLimit, WriteBufferLimit
from gateway.net.limits.requests import ForwardingLimiter, LargeRequestRate, ParkedMemoryLimit
from gateway.net.listener import (
    AdmissionDecision,
    CannotListen,
    ConnectionLog,
    ConnectionQuotas,
    Listener,
    open_listener,
    port_of,
)
from gateway.net.stream import ClientStream
from gateway.net.tls_entry import Endpoints
from gateway.security.authentication import ListenerSecurity
from gateway.telemetry.service import ClientTelemetry
from gateway.upstream.api_versions import CachedApiVersions
from gateway.upstream.cluster import Cluster, InternalTopics, at_any
from gateway.upstream.connections import Upstream
from gateway.upstream.share_groups import Coordinators, ShareGroups, StreamsTopics
from gateway.upstream.transactions import Transactions
from kafka_why.connections.address import MAX_PORT, Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout

# The options of a gateway.


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The options of a gateway that do not depend on its cluster, its address and its files.

    Without `consumer_protocol` clients see a broker whose feature `group.version` is 0, so they do not use
    that protocol. Without `streams_protocol` the same applies to the feature `streams.version`. Load
    balancers in `proxies` begin each connection with a header of the PROXY protocol.
    """

    advertised_host: str | None = None  # in responses; None: the address that the client connected to
    templates: Sequence[Template] = ()  # of the addresses of brokers in responses (`gateway.net.advertised`)
    reply_partition: int | None = None  # None: a random partition
    limits: Limits = field(default_factory=Limits)
    quotas: Path | None = None  # a file (`gateway.limits`)
    expose_internal_topics: bool = False  # clients see the coordinator's own topics as ordinary ones
    consumer_protocol: bool = True
    streams_protocol: bool = True
    proxies: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayOptions(GatewaySettings):
    """The options of a gateway.

    It listens on `listen` for all brokers, and for broker n on the port that is n + 1 higher. With port 0 the
    system chooses free ports. With `shares_ports` other processes of the same gateway may listen on the same
    ports (SO_REUSEPORT). With `share_groups` OFF clients see a broker whose feature `share.version` is 0.
    """

    client_config: ClientConfig
    layout: TopicLayout
    listen: Address
    shares_ports: bool = False
    security: ListenerSecurity = field(default_factory=ListenerSecurity)
    acls: AclOptions | None = None  # None: every client may do everything
    share_groups: Coordinators = Coordinators.OURS
    telemetry_interval_ms: int | None = None  # at which clients push their metrics; None: none are accepted


_LAST_REPORT_S = 2.0

log = structlog.get_logger()


class Gateway:
    """The server of clients. `backend` answers requests to the coordinator, and ListGroups shows `groups`.

    Without `authorizer` the gateway checks no ACLs. If clients authenticate at the brokers, these check the
    requests that pass to them. Without `telemetry`, requests about clients' metrics pass to brokers. Without
    `write_deliveries`, share groups' deliveries are not counted.
    """

    def __init__(
        self,
        options: GatewayOptions,
        cluster: Cluster,
        backend: Backend,
        groups: GroupsView,
        *,
        authorizer: Authorizer | None = None,
        quotas: Quotas | None = None,
        counts: GatewayCounts | None = None,
        telemetry: ClientTelemetry | None = None,
        write_deliveries: WriteDeliveries | None = None,
    ) -> None:
        layout, limits, security = options.layout, options.limits, options.security
        self._options = options
        self._cluster = cluster
        self._advertised = Advertised(options.templates, lambda: self._ports)
        services = Services(
            backend=backend,
            cluster=cluster,
            groups=FreshGroups(backend, groups, limits, layout.request_partitions),
            listener_port=self._listener_port,
            internal_topics=InternalTopics(layout.topics, exposed=options.expose_internal_topics),
            transactions=Transactions(cluster, layout),
            share_groups=ShareGroups(cluster, options.share_groups),
            streams_topics=StreamsTopics(cluster),
            advertised=self._advertised.address,
            frame_max_bytes=layout.sizes.frame_max_bytes,
            authorizer=authorizer,
            checks_forwarded_requests=authorizer is not None and not security.brokers_authenticate,
            consumer_protocol=options.consumer_protocol,
            streams_protocol=options.streams_protocol,
            telemetry=telemetry,
            deliveries=None if write_deliveries is None else Deliveries(_now_ms),
        )
        self.share_groups = services.share_groups
        self._reports = None
        if write_deliveries is not None and services.deliveries is not None:
            self._reports = DeliveryReports(services.deliveries, cluster, write_deliveries)
        self._shared = Listener(
            node_id=None,
            services=services,
            limits=limits,
            forwarding=ForwardingLimiter(limits.forwarded),
            capacity=CapacityLimiter(limits.at_coordinator, limits.bytes_at_coordinator),
            parked_memory=ParkedMemoryLimit(limits.parked_bytes),
            large_requests=LargeRequestRate(limits.large_bytes_per_s, limits.large_burst_bytes),
            connect=partial(self._connect, node_id=None),
            api_versions=CachedApiVersions(cluster),
            advertised_host=options.advertised_host,
            security=security,
            log_lines=ConnectionLog(),
            quotas=quotas or Quotas(limits),
            counts=counts or GatewayCounts(),
        )
        """The first listener. The brokers' listeners differ only in `node_id` and `connect`."""
        self._connection_quotas = ConnectionQuotas(limits, self._shared.quotas, self._shared.counts)
        self._write_buffers = WriteBufferLimit(limits.unread_bytes)
        self._receive_buffers = ReceiveBufferLimit(limits.unanswered_bytes, limits.write_timeout_s)
        self._opening = asyncio.Lock()
        self._servers: dict[int | None, asyncio.Server] = {}
        self._listeners: dict[int | None, Listener] = {}
        self._ports: dict[int, int] = {}  # of the brokers' listeners, by node id
        self._first_port = options.listen.port
        self._entry = ConnectionEntry(
            self._connection_quotas, security.tls, limits.authentication_timeout_s, options.proxies
        )
        self._server_names: WeakKeyDictionary[ssl.SSLObject, str] = WeakKeyDictionary()
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> Address:
        """The first listener's address, which clients use as bootstrap.servers."""
        return Address(self._options.advertised_host or self._options.listen.host, self._first_port)

    def connections(self) -> list[Connection]:
        """Return the connections of clients."""
        return list(self._connections)

    async def start(self) -> None:
        """Listen. Raises CannotListen, or UpstreamLost if no broker answers."""
        if self._shared.security.tls is not None:
            self._record_server_names(self._shared.security.tls)
        await self._cluster.refresh()
        await self.share_groups.refresh()
        self._servers[None] = await self._listen(node_id=None, port=self._options.listen.port)
        self._first_port = port_of(self._servers[None])
        for node_id in list(self._cluster.nodes):
            await self._listener_port(node_id)
        background = [self._shared.security.follow(), self._advertised.watch()]
        if self._reports is not None:
            background.append(self._reports.follow())
        self._tasks = [asyncio.create_task(coroutine) for coroutine in background]

    @property
    def is_draining(self) -> bool:
        """True if the gateway accepts no more connections, because it is about to end."""
        return self._connection_quotas.is_draining

    @property
    def is_listening(self) -> bool:
        """True if clients can connect."""
        return bool(self._servers) and all(server.is_serving() for server in self._servers.values())

    async def drain(self, timeout_s: float) -> None:
        """Accept no more connections, and end each one when its requests are answered. Return when all have
        ended, or after `timeout_s`.
        """
        self._connection_quotas.is_draining = True
        for server in self._servers.values():
            server.close()
        for connection in self._connections:
            connection.drain()
        ending = list(self._connections.values())
        if ending:
            log.info("draining", connections=len(ending))
            _, still_open = await asyncio.wait(ending, timeout=timeout_s)
            if still_open:
                log.warning(
                    "connections had requests under way after the drain timeout", connections=len(still_open)
                )

    def numbers(self) -> Numbers:
        """Return the counters and the current state. Runs on the event loop's thread."""
        connections = self.connections()
        unanswered = sum(connection.unanswered for connection in connections)
        forwarded = sum(connection.forwarded for connection in connections)
        items = sum(connection.items for connection in connections)
        # Clients from which the gateway does not read, by the reason.
        held: Values = {
            ("room",): [float(self._shared.capacity.waiting)],
            ("flow",): [float(self._shared.large_requests.waiting)],
            ("memory",): [float(self._receive_buffers.held)],
            ("quota",): [float(sum(connection.is_muted for connection in connections))],
        }
        return {
            **counter_numbers(self._shared.counts),
            "connections": {(): [len(connections) + len(self._entry.waiting)]},
            "in_flight": {("brokers",): [forwarded], ("coordinator",): [unanswered - forwarded + items]},
            "held_clients": held,
            "unanswered_bytes": {(): [self._receive_buffers.bytes]},
            "unread_bytes": {(): [self._write_buffers.bytes]},
            "parked_bytes": {(): [self._shared.parked_memory.bytes]},
            "upstream_connections": {(): [sum(connection.has_upstream for connection in connections)]},
            "draining": {(): [float(self.is_draining)]},
            **delivery_numbers(self._shared.services.deliveries),
        }

    async def close(self) -> None:
        """Close all listeners and connections."""
        for server in self._servers.values():
            server.close()
        self._entry.close()
        tasks = [*self._connections.values(), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._reports is not None:  # after the connections' end, which releases their members' records
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_REPORT_S):
                    await self._reports.write()
        self._shared.services.transactions.close()
        self._shared.services.streams_topics.close()
        self.share_groups.close()
        self._cluster.close()

    async def _listener_port(self, node_id: int) -> int:
        """Return the port of the broker's listener, which is opened if necessary. Raises CannotListen."""
        async with self._opening:
            if node_id not in self._ports:
                first_port = self._options.listen.port
                server = await self._listen(node_id, first_port + 1 + node_id if first_port else 0)
                port = port_of(server)
                try:
                    self._advertised.validate(node_id, port)
                except ValueError as error:
                    server.close()
                    del self._listeners[node_id]
                    raise CannotListen(f"broker {node_id} has no address for clients: {error}") from error
                self._servers[node_id], self._ports[node_id] = server, port
        return self._ports[node_id]

    async def _listen(self, node_id: int | None, port: int) -> asyncio.Server:
        """Open the listener of a broker, or the first listener if `node_id` is None. Raises CannotListen."""
        if self.is_draining:
            raise CannotListen("the gateway is about to end")
        listener = replace(self._shared, node_id=node_id, connect=partial(self._connect, node_id))
        needs_no_sasl = not self._shared.security.is_sasl_required
        where = Address(self._options.listen.host, port)
        if port > MAX_PORT:
            raise CannotListen(f"broker {node_id} would have port {port}: choose a lower one, or 0")

        def make_stream(reported: Endpoints | None, admission: AdmissionDecision | None) -> ClientStream:
            stream = ClientStream(
                self._shared.limits,
                partial(self._accept, listener, admission),
                self._shared.counts,
                self._write_buffers,
                self._receive_buffers,
                self._shared.services.turns,
                authenticated=needs_no_sasl,
            )
            stream.reported = reported
            return stream

        protocol = partial(self._entry.protocol, make_stream)
        server = await open_listener(where, protocol, shares_ports=self._options.shares_ports)
        self._listeners[node_id] = listener
        log.info("listening", node_id=node_id, address=str(Address(where.host, port_of(server))))
        return server

    async def _connect(self, node_id: int | None) -> Upstream:
        """Connect to this broker, or to the first that answers if `node_id` is None. Raises UpstreamLost."""
        access = self._cluster.access
        if self._shared.security.brokers_authenticate:
            access = access.without_sasl()
        if node_id is not None:
            return await Upstream.open(self._cluster.nodes[node_id], self._shared.limits, access)
        return await at_any(
            self._cluster.addresses(), lambda address: Upstream.open(address, self._shared.limits, access)
        )

    def _accept(self, listener: Listener, admission: AdmissionDecision | None, client: ClientStream) -> None:
        """Serve a connected client, unless the limits on connections refuse it."""

        def begin() -> None:
            self._begin(self._listener_by_server_name(listener, client), client)

        self._connection_quotas.serve_or_refuse(client, begin, admission)

    def _begin(self, listener: Listener, client: ClientStream) -> None:
        """Serve an admitted client in a task of its own."""
        connection = Connection(listener, client)
        task = self._connections[connection] = asyncio.create_task(connection.run())
        task.add_done_callback(lambda _: self._connections.pop(connection))
        if self.is_draining:
            connection.drain()

    def _record_server_names(self, tls: ssl.SSLContext) -> None:
        """Store the server names that clients send in their handshakes."""
        existing_callback = tls.sni_callback

        def record(connection: ssl.SSLObject, name: str, context: ssl.SSLContext) -> int | None:
            if name:  # None if the client names no server
                self._server_names[connection] = name
            return None if existing_callback is None else existing_callback(connection, name, context)

        tls.sni_callback = record

    def _listener_by_server_name(self, listener: Listener, client: ClientStream) -> Listener:
        """Return the listener of the broker that the client named in its TLS handshake, else `listener`."""
        tls = client.ssl_object
        # Names count on the first port only.
        if listener.node_id is not None or tls is None:
            return listener
        node_id = self._advertised.node_id(self._server_names.get(tls))
        return self._listeners.get(node_id, listener)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
