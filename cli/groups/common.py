"""What the subcommands of `groups` share: options, connections, and how things are said."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from typing import Any, TypeVar

import click
import msgspec
from kafka.errors import KafkaError

from cli.logs import configure_logs
from cli.parameters import SERVERS
from clients.coordinator_client import DEFAULT_REQUEST_TIMEOUT_MS, CoordinatorClient, layout_on
from clients.pending import ClientError, RequestTimedOut
from insight.admin.directory import consumer_groups, list_groups
from insight.admin.log_offsets import LogOffsets
from insight.admin.requests import GroupRequests
from insight.admin.reset import ResetError
from records.layout import DEFAULT_PREFIX, TopicLayout
from records.truncation import AnyView
from state.kafka.snapshot import GroupSnapshot

CLIENT_ID = "group-coordinator-groups"

Command = Callable[..., Any]
T = TypeVar("T")


class Cluster:
    """The coordinator and its broker; connections are made when they are needed first."""

    def __init__(self, stack: ExitStack, bootstrap_servers: str, prefix: str, timeout_ms: int) -> None:
        self._stack = stack
        self._bootstrap_servers = bootstrap_servers
        self._prefix = prefix
        self._timeout_ms = timeout_ms

    @cached_property
    def layout(self) -> TopicLayout:
        """The coordinator's topics."""
        return layout_on(self._bootstrap_servers, self._prefix)

    @cached_property
    def requests(self) -> GroupRequests:
        """Asks the coordinator."""
        client = CoordinatorClient(
            self._bootstrap_servers, self.layout, client_id=CLIENT_ID, request_timeout_ms=self._timeout_ms
        )
        return GroupRequests(self._stack.enter_context(client))

    @cached_property
    def log(self) -> LogOffsets:
        """Asks the broker."""
        return self._stack.enter_context(closing(LogOffsets(self._bootstrap_servers, self._timeout_ms)))

    def groups(self) -> list[AnyView]:
        """The consumer groups there are, of both protocols."""
        return consumer_groups(list_groups(self._bootstrap_servers, self.layout, self._timeout_ms))

    def group_ids(self, named: Sequence[str], all_groups: bool, *, rocketmq: bool = False) -> list[str]:
        """The groups that `--group` and `--all-groups` mean, each once; all groups are Kafka's alone unless
        `rocketmq`.
        """
        if not all_groups:
            return list(dict.fromkeys(named))
        return [g.group_id for g in self.groups() if rocketmq or isinstance(g, GroupSnapshot)]


@contextmanager
def connected(bootstrap_servers: str, prefix: str, timeout_ms: int) -> Iterator[Cluster]:
    """The cluster, and connections for as long; what goes wrong with them ends the command."""
    with ExitStack() as stack:
        try:
            yield Cluster(stack, bootstrap_servers, prefix, timeout_ms)
        except RequestTimedOut as error:
            hint = f"Is the coordinator with the topics {prefix}-* running? See also --timeout."
            raise failure(f"{error}. {hint}") from error
        except (ClientError, KafkaError, ResetError) as error:
            raise failure(str(error) or type(error).__name__) from error


def failure(reason: str) -> click.ClickException:
    """The end of a command that could not be carried out."""
    return click.ClickException(f"Executing consumer group command failed due to {reason}")


timeout_option = click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(1),
    metavar="MS",
    default=DEFAULT_REQUEST_TIMEOUT_MS,
    show_default=True,
    help="How long each answer of the coordinator is waited for.",
)


def connection_options(command: Command) -> Command:
    """`--bootstrap-servers`, `--prefix`, `--timeout`: the command gets an open `cluster` for them."""

    @functools.wraps(command)
    def run(*, bootstrap_servers: str, prefix: str, timeout_ms: int, **given: Any) -> None:
        configure_logs()
        with connected(bootstrap_servers, prefix, timeout_ms) as cluster:
            command(cluster=cluster, **given)

    options = (
        click.option(
            "--bootstrap-servers",
            required=True,
            type=SERVERS,
            help="Where the coordinator's topics are.",
        ),
        click.option(
            "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
        ),
        timeout_option,
    )
    return _decorated(run, options)


def group_options(command: Command) -> Command:
    """`--group` and `--all-groups`, of which exactly one is given: see `Cluster.group_ids`."""

    @functools.wraps(command)
    def run(*, named: tuple[str, ...], all_groups: bool, **given: Any) -> None:
        if bool(named) == all_groups:
            raise click.UsageError("takes one of these options: --group, --all-groups")
        command(named=named, all_groups=all_groups, **given)

    options = (
        click.option("--group", "named", multiple=True, metavar="GROUP", help="A group; repeatable."),
        click.option("--all-groups", is_flag=True, help="All consumer groups, empty ones too."),
    )
    return _decorated(run, options)


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How the answer is written.",
)


def parsed_by(parse: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A click callback for a parser that raises ValueError; None and each of several values go through it."""

    def callback(_context: click.Context, _option: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(parse(each) for each in value)
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def tell(line: str) -> None:
    """Say something beside the answer."""
    click.echo(line, err=True)


def tell_errors(errors: Sequence[str]) -> None:
    """Say what is wrong with single groups."""
    for error in errors:
        tell(f"Error: {error}")


def show_json(answer: Any) -> None:
    """The answer as one JSON document, indented."""
    click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def show_table(table: str) -> None:
    """A table, set apart by an empty line as in Kafka's tool."""
    click.echo(f"\n{table}")


def _decorated(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
