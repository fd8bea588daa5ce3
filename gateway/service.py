"""A gateway and its dependencies, on a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import uvloop

from clients.coordinator_client import CoordinatorClient
from gateway.authorization.acl_file import AclsUnreadable
from gateway.authorization.sources import AclOptions, CurrentAcls
from gateway.coordinator.backend import CoordinatorBackend
from gateway.coordinator.groups import GroupsReader
from gateway.net.open_files import allow_open_files, files_for
from gateway.net.server import NO_SECURITY, CannotListen, Gateway
from gateway.security.authentication import Security
from gateway.security.settings import SecurityError
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import Address, UpstreamLost
from gateway.upstream.internal_topics import InternalTopics
from gateway.wire.limits import Limits
from records.client_config import ClientConfig, ClientConfigError
from records.layout import TopicLayout

CLIENT_ID = "gateway"
_STOP_TIMEOUT_S = 30.0


class NoSuchReplyPartition(ValueError):
    """The responses topic has no such partition."""


STARTUP_ERRORS = (
    AclsUnreadable,
    CannotListen,
    ClientConfigError,
    NoSuchReplyPartition,
    SecurityError,
    UpstreamLost,
)


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """`reply_partition` None: the gateway draws one. With `expose_internal_topics` clients see the
    coordinator's own topics as ordinary topics. With `shares_ports` other processes of the same gateway may
    listen on the same ports. `acls` None: every client may do everything.
    """

    client_config: ClientConfig
    layout: TopicLayout
    listen: Address
    advertised_host: str | None = None
    reply_partition: int | None = None
    limits: Limits = field(default_factory=Limits)
    security: Security = NO_SECURITY
    expose_internal_topics: bool = False
    shares_ports: bool = False
    acls: AclOptions | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    address: Address
    loop: asyncio.AbstractEventLoop
    stop: asyncio.Event


@contextmanager
def serving(options: GatewayOptions) -> Iterator[Address]:
    """Run a gateway, and yield the first listener's address.

    Raises one of STARTUP_ERRORS, ClientError of `clients.pending` if the coordinator's topics do not exist,
    KafkaError if no broker answers, ValueError if the servers are not HOST:PORT,... .
    """
    cluster = Cluster.of(options.client_config, options.limits)
    if options.security.by_broker and cluster.access.sasl is None:
        raise SecurityError("the brokers cannot authenticate the clients: security.protocol has no SASL")
    partitions = options.layout.reply_partitions
    if options.reply_partition is not None and not 0 <= options.reply_partition < partitions:
        raise NoSuchReplyPartition(
            f"reply partition {options.reply_partition} is not one of 0 to {partitions - 1}"
        )
    allow_open_files(files_for(options.limits))
    with ExitStack() as stack:
        client = stack.enter_context(
            CoordinatorClient(
                options.client_config,
                options.layout,
                client_id=f"{CLIENT_ID}-{uuid4()}",
                reply_partition=options.reply_partition,
            )
        )
        backend = stack.enter_context(closing(CoordinatorBackend(client, options.limits)))
        groups = stack.enter_context(GroupsReader(options.client_config, options.layout))
        running: Future[_Running] = Future()
        thread = threading.Thread(
            target=_run,
            args=(running, lambda: _serve(options, cluster, backend, groups, running)),
            name="gateway",
            daemon=True,
        )
        thread.start()
        started = running.result()
        try:
            yield started.address
        finally:
            started.loop.call_soon_threadsafe(started.stop.set)
            thread.join(_STOP_TIMEOUT_S)


def _run(running: Future[_Running], serve: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run the event loop. An error before the gateway listens is raised to the caller that waits for
    `running`.
    """
    try:
        uvloop.run(serve())
    except BaseException as error:
        if running.done():
            raise
        running.set_exception(error)


async def _serve(
    options: GatewayOptions,
    cluster: Cluster,
    backend: CoordinatorBackend,
    groups: GroupsReader,
    running: Future[_Running],
) -> None:
    acls = None if options.acls is None else CurrentAcls.of(options.acls, cluster)
    gateway = Gateway(
        options.listen,
        cluster,
        backend,
        groups,
        layout=options.layout,
        limits=options.limits,
        advertised_host=options.advertised_host,
        security=options.security,
        shares_ports=options.shares_ports,
        internal_topics=InternalTopics(() if options.expose_internal_topics else options.layout.topics),
        authorizer=None if acls is None else acls.authorizer,
    )
    try:
        if acls is not None:
            await acls.refresh()  # before any client can connect
        await gateway.start()
        stop = asyncio.Event()
        running.set_result(_Running(gateway.address, asyncio.get_running_loop(), stop))
        async with AsyncExitStack() as stack:
            if acls is not None:
                await stack.enter_async_context(acls.followed())
            await stop.wait()
    finally:
        await gateway.close()
