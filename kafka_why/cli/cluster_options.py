"""The options that name the Kafka cluster: its servers, and the client settings for them."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from kafka_why.cli.logs import configure_logs
from kafka_why.cli.parameters import SERVERS, with_options
from kafka_why.connections.address import check_plaintext, parse_servers
from kafka_why.connections.client_config import ClientConfig, ClientConfigError

Command = TypeVar("Command", bound=Callable[..., Any])
_NAMES = ("--bootstrap-servers", "--client-config")


def cluster_options(
    purpose: str = "The cluster with the coordinator's topics.", *, required: bool = True
) -> Callable[[Command], Command]:
    """Add `--bootstrap-servers` and `--client-config`; the command gets them as `client_config`, a
    ClientConfig. It is None if neither is given, which `required` refuses. `purpose` is the help text.
    """
    options = (
        click.option(_NAMES[0], type=SERVERS, help=purpose),
        click.option(
            _NAMES[1],
            "properties",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Properties file with Kafka's client settings for these servers, as security.protocol.",
        ),
    )

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def run(*, bootstrap_servers: str | None, properties: Path | None, **given: Any) -> None:
            client_config = client_config_of(bootstrap_servers, properties)
            if client_config is None and required:
                raise click.UsageError("Missing option '--bootstrap-servers'.")
            command(client_config=client_config, **given)

        return cast(Command, with_options(run, *options))

    return decorated


def client_config_of(
    bootstrap_servers: str | None, properties: Path | None, options: tuple[str, str] = _NAMES
) -> ClientConfig | None:
    """How to reach the cluster that two `options` name, None if neither is given. Raises BadParameter."""
    if properties is None:
        return None if bootstrap_servers is None else _plaintext(bootstrap_servers, options[0])
    configure_logs()  # settings without a use are logged
    servers = None if bootstrap_servers is None else parse_servers(bootstrap_servers)
    try:
        return ClientConfig.read(properties, servers)
    except ClientConfigError as error:
        raise click.BadParameter(str(error), param_hint=options[1]) from None


def _plaintext(bootstrap_servers: str, option: str) -> ClientConfig:
    try:
        check_plaintext(bootstrap_servers)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    return ClientConfig(parse_servers(bootstrap_servers))
