"""`group-coordinator gateway`: Kafka's wire protocol in front of a coordinator that runs elsewhere."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import click
from kafka.errors import KafkaError

from cli.cluster_options import cluster_options
from cli.gateway_options import Listening, gateway_options
from cli.gateway_processes import Plan, ProcessFailed, serving_processes
from cli.logs import configure_logs
from cli.signals import exit_on_signals, stop_on_signals
from cli.thread_deaths import Stop, watching_threads
from clients.coordinator_client import layout_on
from clients.pending import ClientError
from gateway.service import STARTUP_ERRORS, serving
from records.address import Address
from records.client_config import ClientConfig
from records.layout import DEFAULT_PREFIX


@click.command()
@cluster_options()
@gateway_options("--listen", default="127.0.0.1:9192")
@click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Processes that share the gateway's ports. More than one needs a port in --listen.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when ready.")
def gateway(
    client_config: ClientConfig, prefix: str, processes: int, listening: Listening, as_json: bool
) -> None:
    """Serve unmodified Kafka clients, until Ctrl-C.

    Group requests go to the coordinator, all other requests to the cluster.
    """
    if processes > 1 and not listening.listen.port:
        raise click.UsageError("--processes needs a port in --listen, because all processes share it")
    configure_logs()
    exit_on_signals()
    stop = Stop()
    try:
        with _serving(client_config, prefix, processes, listening, stop) as address:
            stop_on_signals(stop)
            ready = {"gateway": str(address), "broker": str(client_config)}
            click.echo(json.dumps(ready) if as_json else f"ready: clients take bootstrap.servers={address}")
            stop.wait()
            if stop.failure is not None:
                raise click.ClickException(stop.failure)
    except (*STARTUP_ERRORS, ProcessFailed, ClientError, KafkaError) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _serving(
    client_config: ClientConfig, prefix: str, processes: int, listening: Listening, stop: Stop
) -> Iterator[Address]:
    if processes > 1:
        with serving_processes(Plan(client_config, prefix, listening), processes, stop) as address:
            yield address
        return
    security = listening.security()
    options = listening.options(client_config, layout_on(client_config, prefix), security)
    with watching_threads(stop.fail), serving(options) as address:
        yield address
