"""Option types and options of the commands that run a coordinator, or read its state: listeners, shards,
NAME=VALUE settings, and where Spark runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click
import re2

from embedded.broker import check_broker_settings
from gateway.net.advertised import parse_templates
from gateway.net.proxy_protocol import parse_network
from kafka_why.cli.parameters import HOST, Command, ParsedOption, WholeNumber, as_object, with_options
from kafka_why.connections.client_config import ClientConfig
from kafka_why.metrics.series import DEFAULT_GROUPS, SeriesBounds
from records.topic_patterns import compiled, error_text
from state.config import CoordinatorConfig
from streaming.query.admission import parse_shards
from streaming.query.spark_settings import (
    DEFAULT_STATE_PARTITIONS,
    SettingRefused,
    check_given,
    check_master,
)
from streaming.query.storage import storage_at

LISTENERS = ParsedOption(
    "HOST:PORT,...",
    lambda text: parse_templates(text) if text else (),
    "an address for each gateway such as broker-{node}.example.org:9092 or gateway-1.example.org:{port}",
)
"""Parses to a tuple of `gateway.net.advertised.Template`."""


NETWORK = ParsedOption("NETWORK", parse_network, "one such as 10.0.0.5 or 10.0.1.0/24")
PROXIES_HELP = (
    "Load balancers whose connections begin with the client's address (PROXY protocol 1 or 2), such as "
    "10.0.0.5 or 10.0.1.0/24; repeatable. Others may not send it."
)

SHARDS = ParsedOption("NUMBER", parse_shards, "a power of two such as 64")
"""Parses to the number of shards of a partition."""


PLACE = ParsedOption(
    "PLACE", lambda place: storage_at(place).uri, "a path, or a URI such as hdfs://HOST:PORT/PATH"
)
"""Parses to a str: the path or URI of a checkpoint."""


def _pattern(text: str) -> Any:
    try:
        return compiled(text)
    except re2.error as error:
        raise ValueError(f"{text!r} is not a regular expression of RE2: {error_text(error)}") from error


PATTERN = ParsedOption("REGEX", _pattern, "one such as 'payments-.*'")
"""Parses to a compiled pattern of RE2."""

_SERIES_OPTIONS = (
    click.option(
        "--metrics-groups",
        "groups",
        type=WholeNumber(0),
        default=DEFAULT_GROUPS,
        show_default=True,
        help="Number of groups with their own metrics: the first ones seen. All others are added up.",
    ),
    click.option(
        "--metrics-group-pattern",
        "pattern",
        type=PATTERN,
        help="Groups whose whole id matches get their own metrics before all others.",
    ),
)


def series_options(command: Command) -> Command:
    """Add the options that select groups with metrics of their own. The command gets them as `series`."""
    return with_options(as_object(SeriesBounds, "series")(command), *_SERIES_OPTIONS)


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Return the coordinator's settings by Kafka's names. Raises BadParameter if one is invalid."""
    return checked_pairs(settings, "-c", CoordinatorConfig().with_settings)


def parse_broker_settings(settings: Sequence[str], client_config: ClientConfig | None) -> dict[str, str]:
    """Return the embedded broker's settings. Raises UsageError."""
    option = "--broker-config"
    if settings and client_config is not None:
        # There is no embedded broker.
        raise click.UsageError(
            f"{option} configures the embedded broker, but --bootstrap-servers or --client-config names "
            "another broker"
        )
    return checked_pairs(settings, option, check_broker_settings)


def checked_pairs(
    settings: Sequence[str], option: str, check: Callable[[dict[str, str]], object]
) -> dict[str, str]:
    """Return NAME=VALUE options by their names. Raises BadParameter if `check` raises a ValueError."""
    pairs = name_value_pairs(settings, option)
    try:
        check(pairs)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    return pairs


def name_value_pairs(settings: Sequence[str], option: str) -> dict[str, str]:
    """Return the settings by their names. Raises BadParameter if one is not NAME=VALUE."""
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint=option)
        parsed[name.strip()] = value.strip()
    return parsed


_CONF = "--spark-conf"


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """Spark's master and settings. See `streaming.query.session.Session`."""

    master: str | None
    driver_host: str | None
    state_partitions: int | None
    spark_conf: Mapping[str, str]


STATE_PARTITIONS = click.option(
    "--state-partitions",
    type=WholeNumber(1, 1_000),
    help="Partitions of the state, which tasks process in parallel. A new checkpoint pins it. "
    f"[default: {DEFAULT_STATE_PARTITIONS}]",
)
SPARK_CONF = click.option(
    _CONF,
    "spark_conf",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _, __, value: _checked_conf(value),
    help="A setting of Spark; repeatable.",
)
_OPTIONS = (
    click.option(
        "--master",
        callback=lambda _, __, value: _checked_master(value),
        help="Spark's master, such as spark://HOST:7077; default: local threads, one a core, or the master "
        "of spark-submit.",
    ),
    click.option(
        "--driver-host",
        type=HOST,
        help="Address at which executors reach this process; default: the one from which it reaches the "
        "master.",
    ),
    STATE_PARTITIONS,
    SPARK_CONF,
)


def spark_options(command: Command) -> Command:
    """Add the options. The command gets them as `spark`."""
    return with_options(as_object(SparkOptions, "spark")(command), *_OPTIONS)


def _checked_master(master: str | None) -> str | None:
    if master is not None:
        try:
            check_master(master)
        except SettingRefused as error:
            raise click.BadParameter(str(error)) from error
    return master


def _checked_conf(given: Sequence[str]) -> dict[str, str]:
    conf = name_value_pairs(given, _CONF)
    try:
        check_given(conf)
    except SettingRefused as error:
        raise click.BadParameter(str(error)) from error
    return conf
