"""`group-coordinator why`: why a group rebalanced."""

import time
from pathlib import Path

import click
import msgspec
from kafka.errors import KafkaError

from state.history import GroupEvent
from streaming.client import layout_on
from streaming.layout import DEFAULT_PREFIX
from streaming.logs import configure_logs
from streaming.pending import ClientError
from streaming.why.clock import Clock
from streaming.why.history import HistoryUnavailable, read_history
from streaming.why.report import Report, lanes_of, report
from streaming.why.since import parse_since
from streaming.why.text import report_text


@click.command()
@click.argument("group_id", metavar="GROUP")
@click.option(
    "--bootstrap-servers", required=True, metavar="HOST:PORT,...", help="Where the coordinator's topics are."
)
@click.option(
    "--since",
    metavar="TIME|DURATION",
    help="Leave out what ended before: an ISO time, or how long ago, as 2h or 30m.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    metavar="FILE.png",
    help="Also draw the group's states and its members over time.",
)
@click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
)
def why(
    group_id: str, bootstrap_servers: str, since: str | None, output: str, plot: Path | None, prefix: str
) -> None:
    """Tell why a group rebalanced: when, who or what caused it, how long it took, and what moved.

    It reads the group's history on the events topic; the coordinator need not run.
    """
    configure_logs()
    now_ms = time.time_ns() // 1_000_000
    since_ms = _parse_since(since, now_ms)
    try:
        history = read_history(bootstrap_servers, layout_on(bootstrap_servers, prefix), group_id)
    except (ClientError, HistoryUnavailable) as error:
        raise click.ClickException(str(error)) from error
    except (KafkaError, ValueError) as error:
        raise click.ClickException(f"cannot read from {bootstrap_servers}: {error}") from error
    told = report(group_id, history, now_ms, since_ms)
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2))
    else:
        click.echo(report_text(told, Clock()), nl=False)
    if plot is not None:
        _plot(told, history, plot)


def _parse_since(text: str | None, now_ms: int) -> int | None:
    if text is None:
        return None
    try:
        return parse_since(text, now_ms)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error


def _plot(told: Report, history: list[GroupEvent], path: Path) -> None:
    from streaming.why.plot import draw  # matplotlib takes a second to import

    states, members = lanes_of(history)
    try:
        draw(told, states, members, path, Clock())
    except OSError as error:
        raise click.ClickException(f"the picture cannot be written: {error}") from error
