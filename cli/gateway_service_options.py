"""The options of a gateway as a service: its addresses for clients, limits, quotas, its end."""

from collections.abc import Sequence
from pathlib import Path

import click

from cli.coordinator_parameters import LISTENERS
from cli.settings import name_value_pairs
from gateway.limits import SETTINGS, LimitError, Limits
from kafka_why.cli.parameters import DecimalNumber

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def _limits(_: click.Context, parameter: click.Parameter, given: Sequence[str]) -> Limits:
    """Parse NAME=VALUE options. Raises BadParameter if one is invalid."""
    option = parameter.opts[0]
    try:
        return Limits().with_settings(name_value_pairs(given, option))
    except LimitError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


SERVICE_OPTIONS = (
    click.option(
        "--advertised-listeners",
        "templates",
        type=LISTENERS,
        default="",
        metavar="HOST:PORT,...",
        help="Addresses of brokers in the answers to clients, with {node} for a broker's node id and {port} "
        "for the port of its listener; one for each gateway that shares the clients.",
    ),
    click.option(
        "--gateway-config",
        "limits",
        multiple=True,
        callback=_limits,
        metavar="NAME=VALUE",
        help=f"A limit by Kafka's name; repeatable: {', '.join(sorted(SETTINGS))}.",
    ),
    click.option("--quotas", type=_FILE, help="Quotas of clients (TOML); read again when the file changes."),
    click.option(
        "--drain-timeout",
        "drain_timeout_s",
        type=DecimalNumber(0),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a gateway that is stopped waits for the answers that are under way.",
    ),
)
"""See `cli.gateway_options`."""
