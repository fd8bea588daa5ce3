"""`group-coordinator gateway`: Kafka's wire protocol in front of a coordinator that runs elsewhere."""

import json
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import click
from kafka.errors import KafkaError
from prometheus_client import CollectorRegistry

from cli.gateway_options import Listening, gateway_options
from cli.gateway_processes import ProcessFailed, ProcessOptions, ServedGateway, serving_processes
from gateway.health import CHECKS, LISTENING, Checks
from gateway.metrics.collector import GatewayCollector
from gateway.service import STARTUP_ERRORS, running
from kafka_why.cli.output import configure_logs, show, show_encoded
from kafka_why.cli.parameters import HOST, Command, WholeNumber, cluster_options, with_options
from kafka_why.cli.signals import StopEvent, exit_on_signals, stop_on_signals, watching_threads
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import DEFAULT_PREFIX
from kafka_why.metrics.http import HttpPort
from kafka_why.topic_reader import ClientError, layout_on
from kafka_why.web import WebUnavailable
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
@click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
)
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
    listening: Listening,
    metrics_host: str,
    metrics_port: int,
    as_json: bool,
) -> None:
    """Serve unmodified Kafka clients, until Ctrl-C.

    Group requests go to the coordinator, all other requests to the cluster.
    """
    if processes > 1 and not listening.listen.port:
        raise click.UsageError("--processes needs a port in --listen, because all processes share it")
    configure_logs()
    exit_on_signals()
    stop = StopEvent()
    try:
        with (
            _serving(client_config, prefix, processes, listening, stop) as served,
            gateway_http_port(
                served,
                stop,
                metrics_host,
                metrics_port,
                collector=GatewayCollector(served.numbers),
                checks=CHECKS,
            ) as http,
        ):
            stop_on_signals(stop)
            ready = {"gateway": str(served.address), "broker": str(client_config), "metrics": http.url}
            for_people = f"ready: clients take bootstrap.servers={served.address}; metrics {http.url}"
            show_encoded(json.dumps(ready)) if as_json else show(for_people)
            stop.wait()
            if stop.failure is not None:
                raise click.ClickException(stop.failure)
            exit_on_signals()  # a second one ends it at once
            served.drain(listening.drain_timeout_s)
    except (*STARTUP_ERRORS, ProcessFailed, WebUnavailable, ClientError, KafkaError) as error:
        raise click.ClickException(str(error)) from error


def gateway_http_port(
    served: ServedGateway,
    stop: threading.Event,
    host: str,
    port: int,
    *,
    collector: GatewayCollector,
    checks: Collection[str],
) -> HttpPort:
    """Serve the gateway's metrics, /healthz and /readyz. `checks` are the names of all its checks."""

    def ready(exclude: Collection[str]) -> Checks:
        if stop.is_set():
            return {LISTENING: "the gateway is draining"}
        return served.checks(exclude)

    registry = CollectorRegistry()
    registry.register(collector)
    # /healthz excludes every check: that the call returns shows that the event loop answers.
    return HttpPort(host, port, registry, {"/healthz": lambda _: served.checks(checks), "/readyz": ready})


@contextmanager
def _serving(
    client_config: ClientConfig, prefix: str, processes: int, listening: Listening, stop: StopEvent
) -> Iterator[ServedGateway]:
    if processes > 1:
        with serving_processes(ProcessOptions(client_config, prefix, listening), processes, stop) as served:
            yield served
        return
    security = listening.security()
    options = listening.options(client_config, layout_on(client_config, prefix), security)
    with watching_threads(stop.fail), running(options) as gateway:
        yield gateway
