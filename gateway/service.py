"""A gateway for Kafka's clients, with its dependencies."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from uuid import uuid4

from clients.coordinator_client import CoordinatorClient
from gateway.authorization.acls import AclsUnreadable
from gateway.authorization.sources import CurrentAcls
from gateway.coordinator.backend import CoordinatorBackend
from gateway.coordinator.groups import GroupsReader
from gateway.limits import QuotaRules, Quotas, QuotasError, read_quotas
from gateway.metrics.numbers import GatewayCounts
from gateway.net.listener import CannotListen, allow_open_files, files_for
from gateway.net.server import Gateway, GatewayOptions
from gateway.running import RunningGateway, Started, kafka_readiness, loop_watched, running_on_thread
from gateway.security.authentication import SecurityError
from gateway.telemetry.service import ClientTelemetry, TelemetryWriter, expect_topic, telemetry_writer
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import UpstreamLost
from gateway.watched_files import WatchedFiles
from kafka_why.connections.address import Address
from kafka_why.connections.used_settings import ClientConfigError
from kafka_why.contract.layout import TopicLayout
from records.topic_sizes import with_topic_sizes

CLIENT_ID = "gateway"


class NoSuchReplyPartition(ValueError):
    """The responses topic has no such partition."""


def check_reply_partition(partition: int | None, layout: TopicLayout) -> None:
    """Raise NoSuchReplyPartition if the responses topic does not have this partition."""
    partitions = layout.reply_partitions
    if partition is not None and not 0 <= partition < partitions:
        raise NoSuchReplyPartition(f"reply partition {partition} is not one of 0 to {partitions - 1}")


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
    check_reply_partition(options.reply_partition, options.layout)
    rules = None
    if options.quotas is not None:
        rules = WatchedFiles([options.quotas], partial(read_quotas, options.quotas))
    options = replace(options, layout=with_topic_sizes(options.client_config, options.layout))
    allow_open_files(files_for(options.limits))
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
        backend = stack.enter_context(closing(CoordinatorBackend(client, options.limits, counts.coordinator)))
        groups = stack.enter_context(GroupsReader(options.client_config, options.layout))
        telemetry = None
        writer = stack.enter_context(closing(telemetry_writer(options.client_config, options.layout)))
        if options.telemetry_interval_ms is not None:
            expect_topic(options.client_config, options.layout)
            telemetry = ClientTelemetry(options.telemetry_interval_ms, writer)
        serve = partial(_serve, options, cluster, backend, groups, telemetry, writer, rules, counts)
        yield stack.enter_context(running_on_thread(serve))


async def _serve(
    options: GatewayOptions,
    cluster: Cluster,
    backend: CoordinatorBackend,
    groups: GroupsReader,
    telemetry: ClientTelemetry | None,
    writer: TelemetryWriter,
    rules: WatchedFiles[QuotaRules] | None,
    counts: GatewayCounts,
    started: Started,
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
        stop, readiness = asyncio.Event(), kafka_readiness(gateway, cluster, backend)
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
