"""Option types and options that several commands share, and the sources that options select. The types check
an address when the option is parsed.
"""

import functools
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, fields
from datetime import tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode, urlsplit

import click

from kafka_why.cli.output import configure_logs, reading_progress, show, show_json, show_stderr
from kafka_why.connections.address import Address, check_plaintext, parse_host, parse_servers
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.used_settings import ClientConfigError
from kafka_why.contract.layout import DEFAULT_PREFIX, KAFKAS_OFFSETS_TOPIC, TopicLayout
from kafka_why.numbers import INT32_MAX, INT64_MAX, parse_decimal, parse_whole_number
from kafka_why.topic_reader import BrokersOwn, TopicsMissing, layout_on
from kafka_why.why.broker_logs import BrokerLogs, groups_since, groups_text, parse_zone, read_broker_logs
from kafka_why.why.history import HistoryUnavailable
from kafka_why.why.offsets_topic import OffsetsTopic, OffsetsUnreadable
from kafka_why.why.polls import polling_client
from kafka_why.wording import Clock

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class ParsedOption(click.ParamType[Any]):
    """An option type made from a parser. A ValueError of the parser ends the command.

    `expected` describes a valid value by example.
    """

    def __init__(self, name: str, parse: Callable[[str], Any], expected: str = "") -> None:
        self.name = name
        self._parse = parse
        self._hint = expected and f"; expected is {expected}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return parsed_or_default(self._parse, value, self, param, ctx, self._hint)


def parsed_or_default(
    parse: Callable[[str], Any],
    value: Any,
    kind: click.ParamType[Any],
    param: click.Parameter | None,
    ctx: click.Context | None,
    hint: str = "",
) -> Any:
    """Return the parsed `value`, or `value` itself if it is not text. A ValueError ends the command."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except ValueError as error:
        kind.fail(f"{error}{hint}", param, ctx)


class WholeNumber(click.IntRange):
    """An option type: a whole number from `min` to `max`.

    The default of `max` is the largest 32-bit number.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        at_most = INT32_MAX if self.max is None else INT64_MAX
        parsed = parsed_or_default(partial(parse_whole_number, at_most=at_most), value, self, param, ctx)
        return super().convert(parsed, param, ctx)


class DecimalNumber(click.FloatRange):
    """An option type: a number from `min` to `max`, which may have a fraction."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(parsed_or_default(parse_decimal, value, self, param, ctx), param, ctx)


ADDRESS = ParsedOption("HOST:PORT", Address.parse, "an address such as 127.0.0.1:9192 or [::1]:9192")
"""Parses to a `kafka_why.connections.address.Address`. Port 0 can mean any free port."""

HOST = ParsedOption("HOST", parse_host, "a host without a port, such as 127.0.0.1 or gateway.example.org")
"""Parses to a str; an IPv6 address loses its brackets."""


def _servers(text: str) -> str:
    parse_servers(text)
    return text


SERVERS = ParsedOption(
    "HOST:PORT,...", _servers, "a list with a port for each server, such as kafka-1:9092,kafka-2:9092"
)
"""Checks a list in the format of `bootstrap.servers` of Kafka's clients, and keeps its text: a name such as
`SSL://` before an address is compared with the client settings (`kafka_why.cli.parameters`).
"""

INT64 = ParsedOption("INTEGER", parse_whole_number, "a whole number of 64 bits such as 12")
"""Parses to an int."""


def _web_url(text: str) -> str:
    found = urlsplit(text)
    if found.scheme not in ("http", "https") or not found.hostname or found.query or found.fragment:
        raise ValueError(f"{text!r} is not the address of a web server")
    return text


WEB_URL = ParsedOption("URL", _web_url, "an address such as http://127.0.0.1:8080/")
"""Parses to a str, without a query."""


# Click's parameters as one object, so that a command takes its options and passes them on together.


Command = Callable[..., Any]

T = TypeVar("T", bound="DataclassInstance")


def pop_fields(kind: type[T], given: dict[str, Any], prefix: str = "") -> T:
    """Remove the parameters named like the fields of the dataclass `kind` after `prefix`, and return an
    instance of it.
    """
    return kind(**{field.name: given.pop(f"{prefix}{field.name}") for field in fields(kind)})


def shared_fields(kind: type[T], given: T) -> dict[str, Any]:
    """Return the fields of `given` that the dataclass `kind`, from which its class derives, has."""
    return {field.name: getattr(given, field.name) for field in fields(kind)}


def as_object(kind: type[T], name: str, prefix: str = "") -> Callable[[Command], Command]:
    """Return a decorator that passes the parameters of `kind` to the command as one object, `name`.

    Click shows errors that `kind` raises.
    """

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(**{name: pop_fields(kind, given, prefix)}, **given)

        return run

    return decorated


def with_options(command: Command, *options: Callable[[Command], Command]) -> Command:
    """Return the command with these options, in the order of its help."""
    for option in reversed(options):
        command = option(command)
    return command


# `--page-url`: where the page is, so that a command's output ends with a link to it.


VARIABLE = "GROUP_COORDINATOR_PAGE_URL"


def page_url_option(command: Command) -> Command:
    """Add `--page-url`. The command gets it as `page_url`, or None if it is not set."""
    return click.option(
        "--page-url",
        type=WEB_URL,
        envvar=VARIABLE,
        show_envvar=True,
        help="The page's address, http://HOST:PORT/, for the link to the group.",
    )(command)


def link(page_url: str, group_id: str | None = None) -> str:
    """Return the page's address of a group, or of the list of groups if `group_id` is None."""
    base = f"{page_url.rstrip('/')}/"
    return base if group_id is None else f"{base}group?{urlencode({'id': group_id})}"


# The options that name the Kafka cluster: its servers, and the client settings for them.


_NAMES = ("--bootstrap-servers", "--client-config")


def cluster_options(
    purpose: str = "The cluster with the coordinator's topics.", *, required: bool = True
) -> Callable[[Command], Command]:
    """Add `--bootstrap-servers` and `--client-config`. The command gets a ClientConfig as `client_config`.

    It is None if neither is given, which is an error if `required`. `purpose` is the help text.
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

        return with_options(run, *options)

    return decorated


def client_config_of(
    bootstrap_servers: str | None, properties: Path | None, options: tuple[str, str] = _NAMES
) -> ClientConfig | None:
    """Return the cluster's settings, or None if neither value is given. Raises BadParameter.

    `options` are the names of the two options.
    """
    if properties is None:
        return None if bootstrap_servers is None else _plaintext(bootstrap_servers, options[0])
    configure_logs()  # because unused settings are logged
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


@dataclass(frozen=True)
class BrokerLogOptions:
    """The options that name brokers' log files."""

    files: tuple[str, ...]  # - is the standard input
    log_timezone: tzinfo | None  # of times that name none; None: this machine's


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
    """Return the logs' events, and notes on the files. Raises OSError.

    `group_id` None means all groups.
    """
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
    groups = groups_since(logs, since_ms)
    if output == "json":
        show_json(groups)
    else:
        show(groups_text(groups, Clock()))
    for note in notes:
        show_stderr(f"Note: {note}.")


def find_source(client_config: ClientConfig, prefix: str) -> TopicLayout | BrokersOwn:
    """Find the source of groups: the coordinator's topics, or else the brokers' own groups.

    Name it on stderr. Raises TopicsMissing if `prefix` was given and has no topics, HistoryUnavailable if
    this principal may neither read `__consumer_offsets` nor describe a group, or KafkaError.
    """
    try:
        return layout_on(client_config, prefix)
    except TopicsMissing:
        if prefix != DEFAULT_PREFIX:
            raise
    nothing = "no topics of a coordinator or an observer"
    try:
        with OffsetsTopic(client_config) as topic:
            read = f"the brokers' own {KAFKAS_OFFSETS_TOPIC}, {topic.partitions} partitions"
    except OffsetsUnreadable as error:
        with closing(polling_client(client_config)) as admin:
            if not admin.list_groups():
                raise HistoryUnavailable(f"{error}; nor may it describe a group, which polls need") from error
        show_stderr(f"{nothing}: polling the groups, because {error}")
        return BrokersOwn.POLLS
    show_stderr(f"{nothing}: reading {read}")
    return BrokersOwn.OFFSETS_TOPIC
