"""`group-coordinator gateway`: Kafka's wire protocol in front of a coordinator that runs elsewhere."""

import json
import signal
import threading
from pathlib import Path
from typing import Any

import click
from kafka.errors import KafkaError

from cli.logs import configure_logs
from clients.coordinator_client import layout_on
from clients.pending import ClientError
from gateway.security.authentication import Security, SecurityError
from gateway.service import STARTUP_ERRORS, GatewayOptions, NoSuchReplyPartition, serving
from gateway.upstream.connections import Address
from records.layout import DEFAULT_PREFIX

FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def parse_address(context: click.Context, parameter: click.Parameter, value: str) -> Address:
    """A click callback for HOST:PORT."""
    try:
        return Address.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.option(
    "--bootstrap-servers",
    required=True,
    metavar="HOST:PORT,...",
    help="The cluster with the coordinator's topics.",
)
@click.option(
    "--listen",
    default="127.0.0.1:9192",
    show_default=True,
    metavar="HOST:PORT",
    callback=parse_address,
    help="Where clients connect; broker n has the port n + 1 above it. Port 0: free ones.",
)
@click.option("--advertised-host", help="What clients are told; default: the address they came to.")
@click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
)
@click.option(
    "--reply-partition",
    type=click.IntRange(0),
    help="This gateway's own partition of the responses topic; default: one is drawn.",
)
@click.option("--tls-certificate", "certificate", type=FILE, help="PEM: listen with TLS.")
@click.option("--tls-key", "key", type=FILE, help="PEM; default: in the certificate's file.")
@click.option("--sasl-users", "users", type=FILE, help="NAME:PASSWORD a line: ask clients by SASL/PLAIN.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object when ready.")
def gateway(
    bootstrap_servers: str,
    prefix: str,
    certificate: Path | None,
    key: Path | None,
    users: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Serve unmodified Kafka clients, until Ctrl-C.

    Their groups are the coordinator's, everything else is the cluster's.
    """
    configure_logs()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        security = Security.read(certificate, key, users)
        layout = layout_on(bootstrap_servers, prefix)
        options = GatewayOptions(bootstrap_servers, layout, **given, security=security)
        with serving(options) as address:
            ready = {"gateway": str(address), "broker": bootstrap_servers}
            click.echo(json.dumps(ready) if as_json else f"ready: clients take bootstrap.servers={address}")
            stop.wait()
    except (*STARTUP_ERRORS, NoSuchReplyPartition, SecurityError, ClientError, KafkaError) as error:
        raise click.ClickException(str(error)) from error
