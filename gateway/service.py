"""A gateway for Kafka's clients, with its dependencies."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from clients.coordinator_client import CoordinatorClient
from gateway.authorization.sources import CurrentAcls
from gateway.coordinator.backend import CoordinatorBackend
from gateway.coordinator.groups import GroupsReader
from gateway.limits import QuotaRules, Quotas, read_quotas
from gateway.metrics.numbers import GatewayCounts
from gateway.net.listener import allow_open_files, files_for
from gateway.net.server import Gateway, GatewayOptions
from gateway.running import RunningGateway, Started, kafka_checks, running_on_thread, serve
from gateway.security.authentication import SecurityError
from gateway.telemetry.service import ClientTelemetry, TelemetryWriter, expect_topic
from gateway.upstream.cluster import Cluster
from gateway.watched_files import WatchedFiles
from kafka_why.connections.address import Address
from kafka_why.connections.kafka_clients import telemetry_producer
from kafka_why.contract.layout import TopicLayout
from kafka_why.errors import UserFacingError
from records.topic_sizes import with_topic_sizes

CLIENT_ID = "gateway"


def check_reply_partition(partition: int | None, layout: TopicLayout) -> None:
    """Raise UserFacingError if the responses topic does not have this partition."""
    partitions = layout.reply_partitions
    if partition is not None and not 0 <= partition < partitions:
        raise UserFacingError(f"reply partition {partition} is not one of 0 to {partitions - 1}")


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

    Raises UserFacingError, KafkaError if no broker answers, and ValueError if the servers are not
    HOST:PORT,... .
    """
    cluster = Cluster.of(options.client_config, options.limits)
    if options.security.brokers_authenticate and cluster.access.sasl is None:
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
        producer = partial(telemetry_producer, options.client_config)
        writer = stack.enter_context(closing(TelemetryWriter(producer, options.layout)))
        if options.telemetry_interval_ms is not None:
            expect_topic(options.client_config, options.layout)
            telemetry = ClientTelemetry(options.telemetry_interval_ms, writer.write)
        serve_on_loop = partial(_serve, options, cluster, backend, groups, telemetry, writer, rules, counts)
        yield stack.enter_context(running_on_thread(serve_on_loop))


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
    """Build the gateway, and serve clients until it is stopped. Runs on the event loop."""
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
        write_deliveries=writer.write_deliveries,
    )
    background: list[Callable[[], Coroutine[Any, Any, None]]] = []
    if rules is not None:
        background.append(partial(rules.follow, quotas.replace_rules, QUOTAS_INTERVAL_S))
    if acls is not None:
        await acls.refresh()  # before any client can connect
        background.append(acls.follow)
    await serve(gateway, kafka_checks(cluster, backend), counts, started, background)
