"""`--broker-log`: evidence from the logs of brokers."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

import click

from kafka_why.cli.output import reading_progress, show, show_json, show_stderr
from kafka_why.cli.parameters import ParsedOption, with_options
from kafka_why.why.broker_logs import BrokerLogs, groups_text, listed_groups, parse_zone, read_broker_logs
from kafka_why.why.wording import Clock


@dataclass(frozen=True)
class BrokerLogOptions:
    """The options that name brokers' log files; - is the standard input.

    `log_timezone` is the zone of times that name none; None means this machine's zone.
    """

    files: tuple[str, ...]
    log_timezone: tzinfo | None


def broker_log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the fields of `BrokerLogOptions`."""
    return with_options(
        command,
        click.option(
            "--broker-log",
            "files",
            multiple=True,
            metavar="FILE",
            help="Log of a broker, plain or gzip, or - for the standard input; repeatable. It has the reason "
            "and the beginning of each rebalance. Needs no cluster; without GROUP it lists the groups.",
        ),
        click.option(
            "--log-timezone",
            type=ParsedOption("zone", parse_zone, "Europe/Berlin or +02:00"),
            metavar="ZONE",
            help="Zone of times in --broker-log that name none: Europe/Berlin, UTC, +02:00. Default: this "
            "machine's.",
        ),
    )


def read_logs(options: BrokerLogOptions, group_id: str | None) -> tuple[BrokerLogs, list[str]]:
    """Return the logs' events about one group, or about all, and notes on the files. Raises OSError."""
    logs = read_broker_logs(options.files, group_id, options.log_timezone, reading_progress("bytes"))
    return logs, logs.notes(options.files, options.log_timezone)


def list_groups(options: BrokerLogOptions, since_ms: int | None, output: str) -> None:
    """Print the groups in brokers' logs."""
    if not options.files:
        raise click.UsageError("Missing argument 'GROUP'. Only --broker-log lists groups.")
    try:
        logs, notes = read_logs(options, None)
    except OSError as error:
        raise click.ClickException(f"cannot read: {error}") from error
    groups = listed_groups(logs, since_ms)
    if output == "json":
        show_json(groups)
    else:
        show(groups_text(groups, Clock()))
    for note in notes:
        show_stderr(f"Note: {note}.")
