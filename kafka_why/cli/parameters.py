"""Option types and options that several commands share, and functions that open the source which the options
name.
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

from kafka_why.cli.output import reading_progress, show, show_json, show_stderr
from kafka_why.connections.address import Address, check_plaintext, parse_host, parse_servers
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.used_settings import ClientConfigError
from kafka_why.contract.layout import DEFAULT_PREFIX, KAFKAS_OFFSETS_TOPIC, TopicLayout
from kafka_why.now import now_ms
from kafka_why.numbers import INT32_MAX, INT64_MAX, parse_decimal, parse_whole_number
from kafka_why.topic_reader import BrokersOwn, TopicsMissing, layout_on
from kafka_why.why.broker_logs import BrokerLogs, groups_since, groups_text, read_broker_logs
from kafka_why.why.history import HistoryUnavailable
from kafka_why.why.offsets_topic import OffsetsTopic, OffsetsUnreadable
from kafka_why.why.polls import polling_client
from kafka_why.wording import Clock, parse_since

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class ParsedOption(click.ParamType[Any]):
    """An option type whose values `parse` parses. A ValueError of `parse` ends the command.

    `expected` describes a valid value by example.
    """

    def __init__(self, name: str, parse: Callable[[str], Any], expected: str = "") -> None:
        self.name = name
        self._parse = parse
        self._hint = f"; expected is {expected}" if expected else ""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return parsed_option_value(self._parse, value, self, param, ctx, self._hint)


def parsed_option_value(
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
        at_most = INT32_MAX if self.max is None else INT64_MAX  # IntRange checks a given `max`
        parsed = parsed_option_value(partial(parse_whole_number, at_most=at_most), value, self, param, ctx)
        return super().convert(parsed, param, ctx)


class DecimalNumber(click.FloatRange):
    """An option type: a number from `min` to `max`, which may have a fraction."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(parsed_option_value(parse_decimal, value, self, param, ctx), param, ctx)


ADDRESS = ParsedOption("HOST:PORT", Address.parse, "an address such as 127.0.0.1:9192 or [::1]:9192")
"""Parses to a `kafka_why.connections.address.Address`. Port 0 can mean any free port."""

HOST = ParsedOption("HOST", parse_host, "a host without a port, such as 127.0.0.1 or gateway.example.org")
"""Parses to a str; an IPv6 address loses its brackets."""


FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
"""An existing file, as a Path."""


def _check_servers(text: str) -> str:
    parse_servers(text)
    return text


SERVERS = ParsedOption(
    "HOST:PORT,...", _check_servers, "a list with a port for each server, such as kafka-1:9092,kafka-2:9092"
)
"""Checks a list in the format of `bootstrap.servers` of Kafka's clients. It stays a str, because a prefix
such as `SSL://` is compared with the client settings later.
"""

INT64 = ParsedOption("INTEGER", parse_whole_number, "a whole number of 64 bits such as 12")
"""Parses to an int."""

MOMENT = ParsedOption("TIME|DURATION", lambda text: parse_since(text, now_ms()))
"""Parses an ISO time, or a duration before now, to milliseconds since 1970."""


def _check_web_url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise ValueError(f"{text!r} is not the address of a web server")
    return text


WEB_URL = ParsedOption("URL", _check_web_url, "an address such as http://127.0.0.1:8080/")
"""Parses to a str, without a query."""


Command = Callable[..., Any]

T = TypeVar("T", bound="DataclassInstance")


def pop_fields(kind: type[T], given: dict[str, Any], prefix: str = "") -> T:
    """Remove from `given` the fields of the dataclass `kind`, and return an instance with these values.

    A key of `given` is `prefix` and the name of a field.
    """
    return kind(**{field.name: given.pop(f"{prefix}{field.name}") for field in fields(kind)})


def shared_fields(kind: type[T], given: T) -> dict[str, Any]:
    """Return the fields of `given` that its base class `kind` also has."""
    return {field.name: getattr(given, field.name) for field in fields(kind)}


def as_object(
    kind: type[T], name: str, *options: Callable[[Command], Command], prefix: str = ""
) -> Callable[[Command], Command]:
    """Return a decorator that passes the options named like the fields of `kind` as one argument, `name`.

    The argument is an instance of `kind`. An option's name is `prefix` and the field's name. The decorator
    also adds `options` to the command. A `click.ClickException` that `kind` raises ends the command.
    """

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(**{name: pop_fields(kind, given, prefix)}, **given)

        return with_options(run, *options)

    return decorated


def with_options(command: Command, *options: Callable[[Command], Command]) -> Command:
    """Return the command with these options, in the order in which its help lists them."""
    for option in reversed(options):
        command = option(command)
    return command


prefix_option = click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="Prefix of the coordinator's topics."
)

VARIABLE = "GROUP_COORDINATOR_PAGE_URL"
"""The environment variable with the default of `--page-url`."""


page_url_option = click.option(
    "--page-url",
    type=WEB_URL,
    envvar=VARIABLE,
    show_envvar=True,
    help="The page's address, http://HOST:PORT/, for the link to the group.",
)


def link(page_url: str, group_id: str | None = None) -> str:
    """Return the page's address of a group, or of the list of groups if `group_id` is None."""
    base = f"{page_url.rstrip('/')}/"
    return base if group_id is None else f"{base}group?{urlencode({'id': group_id})}"


_CLUSTER_OPTIONS = ("--bootstrap-servers", "--client-config")


def cluster_options(
    purpose: str = "Brokers of the Kafka cluster.", *, required: bool = True
) -> Callable[[Command], Command]:
    """Add `--bootstrap-servers` and `--client-config`. The command gets a ClientConfig as `client_config`.

    If neither option is given, `client_config` is None, or the command fails if `required`. `purpose` is the
    help text of `--bootstrap-servers`.
    """
    options = (
        click.option(_CLUSTER_OPTIONS[0], type=SERVERS, help=purpose),
        click.option(
            _CLUSTER_OPTIONS[1],
            "properties",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Properties file with Kafka's client settings for these servers, as security.protocol.",
        ),
    )

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def run(*, bootstrap_servers: str | None, properties: Path | None, **others: Any) -> None:
            client_config = client_config_of(bootstrap_servers, properties)
            if client_config is None and required:
                raise click.UsageError("Missing option '--bootstrap-servers'.")
            command(client_config=client_config, **others)

        return with_options(run, *options)

    return decorated


def client_config_of(
    bootstrap_servers: str | None, properties: Path | None, options: tuple[str, str] = _CLUSTER_OPTIONS
) -> ClientConfig | None:
    """Return the cluster's settings, or None if neither value is given. Raises BadParameter.

    `options` are the names of the two options.
    """
    if properties is None:
        return None if bootstrap_servers is None else _plaintext_config(bootstrap_servers, options[0])
    servers = None if bootstrap_servers is None else parse_servers(bootstrap_servers)
    try:
        return ClientConfig.read(properties, servers)
    except ClientConfigError as error:
        raise click.BadParameter(str(error), param_hint=options[1]) from None


def _plaintext_config(bootstrap_servers: str, option: str) -> ClientConfig:
    """Return the settings of servers without TLS and SASL. Raises BadParameter, which names the option."""
    try:
        check_plaintext(bootstrap_servers)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error
    return ClientConfig(parse_servers(bootstrap_servers))


@dataclass(frozen=True)
class BrokerLogOptions:
    """The options that name brokers' log files."""

    files: tuple[str, ...]  # - is the standard input
    log_timezone: tzinfo | None  # for times without a zone; None: this machine's zone


def read_logs(options: BrokerLogOptions, group_id: str | None) -> tuple[BrokerLogs, list[str]]:
    """Return the logs' events, and notes on the files. Raises OSError.

    `group_id` None means all groups.
    """
    logs = read_broker_logs(options.files, group_id, options.log_timezone, reading_progress("bytes"))
    return logs, logs.notes(options.files, options.log_timezone)


def print_logged_groups(options: BrokerLogOptions, since_ms: int | None, output: str) -> None:
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

    Print the source to stderr, unless it is the coordinator's topics. Raises TopicsMissing if `prefix` was
    given and has no topics, HistoryUnavailable if this principal may neither read `__consumer_offsets` nor
    describe a group, or KafkaError.
    """
    try:
        return layout_on(client_config, prefix)
    except TopicsMissing:
        if prefix != DEFAULT_PREFIX:
            raise
    no_topics = "no topics of a coordinator or an observer"
    try:
        with OffsetsTopic(client_config) as topic:
            offsets_topic = f"the brokers' own {KAFKAS_OFFSETS_TOPIC}, {topic.partitions} partitions"
    except OffsetsUnreadable as error:
        with closing(polling_client(client_config)) as admin:
            if not admin.list_groups():
                raise HistoryUnavailable(f"{error}; nor may it describe a group, which polls need") from error
        show_stderr(f"{no_topics}: polling the groups, because {error}")
        return BrokersOwn.POLLS
    show_stderr(f"{no_topics}: reading {offsets_topic}")
    return BrokersOwn.OFFSETS_TOPIC
