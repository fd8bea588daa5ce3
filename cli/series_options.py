"""Options that say which groups have metrics of their own."""

import click

from cli.coordinator_parameters import PATTERN
from kafka_why.cli.parameters import Command, WholeNumber, as_object, with_options
from kafka_why.metrics.series import DEFAULT_GROUPS, SeriesBounds

_OPTIONS = (
    click.option(
        "--metrics-groups",
        "groups",
        type=WholeNumber(0),
        default=DEFAULT_GROUPS,
        show_default=True,
        help="Groups with metrics of their own: the first ones seen. All others are added up.",
    ),
    click.option(
        "--metrics-group-pattern",
        "pattern",
        type=PATTERN,
        help="Groups whose whole id matches have metrics of their own before all others.",
    ),
)


def series_options(command: Command) -> Command:
    """Add the options. The command gets them as `series`."""
    return with_options(as_object(SeriesBounds, "series")(command), *_OPTIONS)
