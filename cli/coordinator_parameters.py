"""Option types and options of the commands that run a coordinator, or read its state."""

from typing import Any

import click
import re2

from gateway.net.advertised import parse_templates
from kafka_why.cli.parameters import Command, ParsedOption, WholeNumber, as_object, with_options
from kafka_why.metrics.series import DEFAULT_GROUPS, SeriesBounds
from records.topic_patterns import compiled, error_text
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
