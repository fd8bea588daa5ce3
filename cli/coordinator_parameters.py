"""Option types and options of the commands that run a coordinator, or read its state: NAME=VALUE settings,
too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import click
import re2

from embedded.broker import check_broker_settings
from gateway.net.advertised import parse_templates
from kafka_why.cli.parameters import Command, ParsedOption, WholeNumber, as_object, with_options
from kafka_why.connections.client_config import ClientConfig
from kafka_why.metrics.series import DEFAULT_GROUPS, SeriesBounds
from records.topic_patterns import compiled, error_text
from state.config import CoordinatorConfig
from streaming.query.admission import parse_shards
from streaming.query.storage import storage_at

LISTENERS = ParsedOption(
    "HOST:PORT,...",
    lambda text: parse_templates(text) if text else (),
    "an address for each gateway such as broker-{node}.example.org:9092 or gateway-1.example.org:{port}",
)
"""Parses to a tuple of `gateway.net.advertised.Template`."""


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
    """Add the options that select groups with their own metrics. The command gets them as `series`."""
    return with_options(as_object(SeriesBounds, "series")(command), *_SERIES_OPTIONS)


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Return the coordinator's settings by Kafka's names. Raises BadParameter if one is invalid."""
    return checked_pairs(settings, "-c", CoordinatorConfig().with_settings)


def parse_broker_settings(settings: Sequence[str], client_config: ClientConfig | None) -> dict[str, str]:
    """Return the embedded broker's settings. Raises UsageError if one is refused.

    With `client_config` there is no embedded broker, so any setting is then refused.
    """
    option = "--broker-config"
    if settings and client_config is not None:
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
