"""`group-coordinator gateway` and `rocketmq-gateway`: Kafka's wire protocol or RocketMQ's remoting protocol
in front of a coordinator that runs elsewhere. `gateway-user` prints an entry for a gateway's users file.
"""

import json
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import click
from prometheus_client import CollectorRegistry

from cli.gateway_options import ListenerOptions, gateway_options
from cli.gateway_processes import ServedGateway, serving_processes
from cli.rocketmq_options import NAME_SERVERS, RocketmqListenerOptions, rocketmq_options
from gateway.metrics.collector import GatewayCollector
from gateway.rocketmq.metrics import ROCKETMQ_FAMILIES, ROCKETMQ_PREFIX
from gateway.rocketmq.service import ROCKETMQ_CHECKS, running_rocketmq
from gateway.running import CHECKS, LISTENING, Checks
from gateway.service import running
from kafka_why.cli.output import (
    StopEvent,
    exit_on_signals,
    show,
    show_data,
    show_encoded,
    stop_on_signals,
    watching_threads,
)
from kafka_why.cli.parameters import HOST, Command, WholeNumber, cluster_options, prefix_option, with_options
from kafka_why.connections.client_config import ClientConfig
from kafka_why.credentials import (
    HASHES,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    InvalidEntry,
    ScramCredential,
    Users,
)
from kafka_why.metrics.http import HttpPort
from kafka_why.topic_reader import layout_on
from streaming.query.session import LOOPBACK


def metrics_options(command: Command) -> Command:
    """Add `--metrics-host` and `--metrics-port`."""
    return with_options(
        command,
        click.option(
            "--metrics-host",
            type=HOST,
            default=LOOPBACK,
            show_default=True,
            help="Address the metrics, /healthz and /readyz listen on.",
        ),
        click.option(
            "--metrics-port",
            type=WholeNumber(0, 65_535),
            default=0,
            help="Port of the metrics, /healthz and /readyz; default: a free one.",
        ),
    )


@click.command()
@cluster_options()
@gateway_options("--listen", default="127.0.0.1:9192")
@prefix_option
@click.option(
    "--processes",
    type=WholeNumber(1),
    default=1,
    show_default=True,
    help="Processes that share the gateway's ports. More than one needs a port in --listen.",
)
@metrics_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when ready.")
def gateway(
    client_config: ClientConfig,
    prefix: str,
    processes: int,
    listening: ListenerOptions,
    metrics_host: str,
    metrics_port: int,
    as_json: bool,
) -> None:
    """Serve unmodified Kafka clients, until Ctrl-C.

    Group requests go to the coordinator, all other requests to the cluster.
    """
    if processes > 1 and not listening.listen.port:
        raise click.UsageError("--processes needs a port in --listen, because all processes share it")
    exit_on_signals()
    stop = StopEvent()
    with (
        _running_gateway(client_config, prefix, processes, listening, stop) as served,
        gateway_http_port(
            served,
            stop,
            metrics_host,
            metrics_port,
            collector=GatewayCollector(served.numbers),
            checks=CHECKS,
        ) as http,
    ):
        _show_ready_and_wait(
            served, http, stop, as_json=as_json, setting="bootstrap.servers", broker=str(client_config)
        )
        served.drain(listening.drain_timeout_s)


def _show_ready_and_wait(
    served: ServedGateway, http: HttpPort, stop: StopEvent, *, as_json: bool, setting: str, **cluster: str
) -> None:
    """Show that the gateway is ready, and wait until it is stopped.

    Clients set `setting` to its address. `cluster` is the JSON field with the address of its cluster.
    """
    stop_on_signals(stop)
    ready = {"gateway": str(served.address), **cluster, "metrics": http.url}
    if as_json:
        show_encoded(json.dumps(ready))
    else:
        show(f"ready: clients take {setting}={served.address}; metrics {http.url}")
    stop.wait()
    if stop.failure is not None:
        raise click.ClickException(stop.failure)
    exit_on_signals()  # a second signal ends the command without a drain


def gateway_http_port(
    served: ServedGateway,
    stop: threading.Event,
    host: str,
    port: int,
    *,
    collector: GatewayCollector,
    checks: Collection[str],
) -> HttpPort:
    """Serve the gateway's metrics, /healthz and /readyz. `checks` are the names of all its checks.

    /readyz reports all checks. /healthz reports none: an answer shows that the event loop runs.
    """

    def ready(exclude: Collection[str]) -> Checks:
        if stop.is_set():
            return {LISTENING: "the gateway is draining"}
        return served.checks(exclude)

    registry = CollectorRegistry()
    registry.register(collector)
    return HttpPort(
        host, port, registry, {"/healthz": lambda _: served.checks(exclude=checks), "/readyz": ready}
    )


@contextmanager
def _running_gateway(
    client_config: ClientConfig, prefix: str, processes: int, listening: ListenerOptions, stop: StopEvent
) -> Iterator[ServedGateway]:
    if processes > 1:
        with serving_processes(client_config, prefix, listening, processes, stop) as served:
            yield served
        return
    security = listening.security()
    options = listening.options(client_config, layout_on(client_config, prefix), security)
    with watching_threads(stop.fail), running(options) as gateway:
        yield gateway


@click.command()
@cluster_options("The cluster with the coordinator's topics.")
@click.option(
    "--namesrv",
    type=NAME_SERVERS,
    required=True,
    metavar="HOST:PORT;...",
    help="Name servers of the RocketMQ cluster.",
)
@rocketmq_options(listen="127.0.0.1:9876")
@prefix_option
@metrics_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when ready.")
def rocketmq_gateway(
    client_config: ClientConfig,
    namesrv: tuple[str, ...],
    rocketmq: RocketmqListenerOptions,
    prefix: str,
    metrics_host: str,
    metrics_port: int,
    as_json: bool,
) -> None:
    """Serve unmodified RocketMQ clients (remoting protocol), until Ctrl-C.

    Requests about consumer groups go to the coordinator, all others to the cluster of the name servers. The
    coordinator's topics are on a Kafka cluster.
    """
    exit_on_signals()
    stop = StopEvent()
    options = rocketmq.options(rocketmq.servers(namesrv), client_config, layout_on(client_config, prefix))
    with (
        watching_threads(stop.fail),
        running_rocketmq(options) as served,
        gateway_http_port(
            served,
            stop,
            metrics_host,
            metrics_port,
            collector=GatewayCollector(served.numbers, ROCKETMQ_FAMILIES, ROCKETMQ_PREFIX),
            checks=ROCKETMQ_CHECKS,
        ) as http,
    ):
        _show_ready_and_wait(
            served, http, stop, as_json=as_json, setting="namesrvAddr", namesrv=";".join(namesrv)
        )
        served.drain(rocketmq.drain_timeout_s)


@click.command()
@click.argument("name")
@click.option(
    "--mechanism",
    type=click.Choice(list(HASHES)),
    default="SCRAM-SHA-512",
    show_default=True,
    help="The mechanism by which the user authenticates.",
)
@click.option(
    "--iterations",
    type=WholeNumber(MIN_ITERATIONS, MAX_ITERATIONS),
    default=MIN_ITERATIONS,
    show_default=True,
    help="How often the password is hashed.",
)
def gateway_user(name: str, mechanism: str, iterations: int) -> None:
    """Print the line of NAME for the file of `gateway --sasl-users`. The line has no password.

    The password is the first line of the standard input.
    """
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise click.ClickException("the standard input has no password")
    # The gateway must read exactly one entry for this name from the line.
    line = f"{name}:{ScramCredential.of(mechanism, password, iterations).entry(mechanism)}"
    try:
        is_usable = Users([line]).mechanisms == (mechanism,) and "\n" not in name and ":" not in name
    except InvalidEntry:
        is_usable = False
    if not is_usable:
        raise click.ClickException("a name is not empty, has no colon and does not begin with #")
    show_data(f"{line}\n")
