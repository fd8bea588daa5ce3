"""A gateway and its dependencies, running on a thread of its own."""

import asyncio
import gc
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar
from uuid import uuid4

import structlog
import uvloop

from clients.coordinator_client import CoordinatorClient
from gateway.authorization.acls import AclsUnreadable
from gateway.authorization.sources import CurrentAcls
from gateway.coordinator.backend import CoordinatorBackend
from gateway.coordinator.groups import GroupsReader
from gateway.health import Checks, Readiness
from gateway.metrics.counts import GatewayCounts
from gateway.metrics.loop_watch import loop_watched
from gateway.metrics.numbers import Numbers
from gateway.net.limits.connections import allow_open_files, files_for
from gateway.net.options import GatewayOptions
from gateway.net.server import CannotListen, Gateway
from gateway.quotas import QuotaRules, Quotas, QuotasError, read_quotas
from gateway.security.settings import SecurityError
from gateway.telemetry.service import ClientTelemetry
from gateway.telemetry.writer import TelemetryWriter, expect_topic, telemetry_writer
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost
from gateway.watched_files import WatchedFiles
from kafka_why.connections.address import Address
from kafka_why.connections.used_settings import ClientConfigError
from records.topic_sizes import with_topic_sizes

CLIENT_ID = "gateway"
_STOP_TIMEOUT_S = 30.0
_GC_THRESHOLDS = (50_000, 20, 100)
# The time for which another thread may keep the interpreter from the event loop.
_SWITCH_INTERVAL_S = 0.0005


class NoSuchReplyPartition(ValueError):
    """The responses topic has no such partition."""


STARTUP_ERRORS = (
    AclsUnreadable,
    CannotListen,
    ClientConfigError,
    NoSuchReplyPartition,
    QuotasError,
    SecurityError,
    UpstreamLost,
)

# The interval at which the quotas file is checked.
QUOTAS_INTERVAL_S = 2.0
# The time in which the event loop must respond. Otherwise it is stuck.
LOOP_TIMEOUT_S = 5.0

T = TypeVar("T")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A running gateway. Its methods are for other threads than its own. They raise TimeoutError if the event
    loop does not respond.
    """

    address: Address
    _gateway: Gateway
    _readiness: Readiness
    _loop: asyncio.AbstractEventLoop
    _stop: asyncio.Event

    def numbers(self) -> Numbers:
        """Return the gateway's counters and current state."""

        async def numbers() -> Numbers:
            return self._gateway.numbers()

        return self._call(numbers(), LOOP_TIMEOUT_S)

    def checks(self, exclude: Collection[str] = ()) -> Checks:
        """Return the outcomes of the readiness checks: see `gateway.health`."""
        return self._call(self._readiness.checks(exclude), LOOP_TIMEOUT_S)

    def drain(self, timeout_s: float) -> None:
        """Accept no more connections, and wait until the open ones have ended, for at most this time."""
        try:
            self._call(self._gateway.drain(timeout_s), timeout_s + LOOP_TIMEOUT_S)
        except TimeoutError:
            log.error("the gateway could not drain, because its event loop does not answer")

    def stop(self) -> None:
        """Stop the event loop, which closes everything that is still open."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def _call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_s)


@contextmanager
def serving(options: GatewayOptions) -> Iterator[Address]:
    """Run a gateway, and yield the first listener's address. Raises what `running` raises."""
    with running(options) as gateway:
        yield gateway.address


@contextmanager
def running(options: GatewayOptions) -> Iterator[RunningGateway]:
    """Run a gateway until the block ends.

    Raises one of STARTUP_ERRORS, ClientError of `clients.pending` if the coordinator's topics do not exist,
    KafkaError if no broker answers, and ValueError if the servers are not HOST:PORT,... .
    """
    cluster = Cluster.of(options.client_config, options.limits)
    if options.security.by_broker and cluster.access.sasl is None:
        raise SecurityError("the brokers cannot authenticate the clients: security.protocol has no SASL")
    partitions = options.layout.reply_partitions
    if options.reply_partition is not None and not 0 <= options.reply_partition < partitions:
        raise NoSuchReplyPartition(
            f"reply partition {options.reply_partition} is not one of 0 to {partitions - 1}"
        )
    rules = None
    if options.quotas is not None:
        rules = WatchedFiles([options.quotas], partial(read_quotas, options.quotas))
    options = replace(options, layout=with_topic_sizes(options.client_config, options.layout))
    allow_open_files(files_for(options.limits))
    _freeze_imports()
    counts = GatewayCounts()
    with ExitStack() as stack:
        client = stack.enter_context(
            CoordinatorClient(
                options.client_config,
                options.layout,
                client_id=f"{CLIENT_ID}-{uuid4()}",
                reply_partition=options.reply_partition,
            )
        )
        backend = stack.enter_context(closing(CoordinatorBackend(client, options.limits, counts)))
        groups = stack.enter_context(GroupsReader(options.client_config, options.layout))
        telemetry = None
        writer = stack.enter_context(closing(telemetry_writer(options.client_config, options.layout)))
        if options.telemetry_interval_ms is not None:
            expect_topic(options.client_config, options.layout)
            telemetry = ClientTelemetry(options.telemetry_interval_ms, writer)
        started: Future[RunningGateway] = Future()
        thread = threading.Thread(
            target=_run,
            args=(
                started,
                lambda: _serve(options, cluster, backend, groups, telemetry, writer, rules, counts, started),
            ),
            name="gateway",
            daemon=True,
        )
        thread.start()
        gateway = started.result()
        try:
            yield gateway
        finally:
            gateway.stop()
            thread.join(_STOP_TIMEOUT_S)


@cache
def _freeze_imports() -> None:
    """Exempt the objects of all imported modules from garbage collection, once in each process.

    The objects of requests make collections frequent. When collections skip the modules, a request takes 0.74
    of the processor time with 500 under way on one connection, 0.89 with 1,000 connections, and the slowest
    hundredth of 500 takes 0.63 of the time.

    The objects of one large request trigger a collection of all objects of requests, which takes 40 ms of a
    step, several times. With these thresholds the request has a few small collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def _run(started: Future[RunningGateway], serve: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run the event loop. An error before the gateway listens is raised in the thread that waits for
    `started`.
    """
    try:
        uvloop.run(serve())
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


async def _serve(
    options: GatewayOptions,
    cluster: Cluster,
    backend: CoordinatorBackend,
    groups: GroupsReader,
    telemetry: ClientTelemetry | None,
    writer: TelemetryWriter,
    rules: WatchedFiles[QuotaRules] | None,
    counts: GatewayCounts,
    started: Future[RunningGateway],
) -> None:
    acls = None if options.acls is None else CurrentAcls.of(options.acls, cluster)
    quotas = Quotas(options.limits, QuotaRules() if rules is None else rules.value)
    gateway = Gateway(
        options,
        cluster,
        backend,
        groups,
        authorizer=None if acls is None else acls.authorizer,
        quotas=quotas,
        counts=counts,
        telemetry=telemetry,
        evidence=writer,
    )
    try:
        if acls is not None:
            await acls.refresh()  # before any client can connect
        await gateway.start()
        stop, readiness = asyncio.Event(), Readiness(gateway, cluster, backend)
        loop = asyncio.get_running_loop()
        started.set_result(RunningGateway(gateway.address, gateway, readiness, loop, stop))
        async with AsyncExitStack() as stack:
            stack.enter_context(loop_watched(counts))
            if rules is not None:
                following = asyncio.create_task(rules.follow(quotas.use, QUOTAS_INTERVAL_S))
                stack.callback(following.cancel)
            if acls is not None:
                await stack.enter_async_context(acls.followed())
            await stop.wait()
    finally:
        await gateway.close()
