"""Options with an address or a number are checked when they are parsed; the links of commands to the page."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cli import main
from kafka_why.cli.parameters import (
    ADDRESS,
    HOST,
    INT64,
    SERVERS,
    DecimalNumber,
    WholeNumber,
    client_config_of,
    link,
)
from kafka_why.connections.address import parse_host, parse_servers
from kafka_why.connections.client_config import ClientConfig

ADDRESSES = ("bootstrap", "host", "listen", "gateway")
NOT_ADDRESSES = {"no_gateway"}


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Return all commands, including those of `groups`."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


OPTIONS = [
    (path, parameter)
    for path, command in commands(main)
    for parameter in command.params
    if any(word in str(parameter.name) for word in ADDRESSES) and parameter.name not in NOT_ADDRESSES
]
IDS = [" ".join((*path, parameter.opts[0])) for path, parameter in OPTIONS]
WRONG = {SERVERS: "kafka-1,kafka-2", ADDRESS: "127.0.0.1", HOST: "127.0.0.1:9192"}


def test_address_tests_cover_every_command_that_needs_a_cluster() -> None:
    with_servers = {path[0] for path, parameter in OPTIONS if parameter.type is SERVERS}
    assert with_servers == {
        "assign",
        "gateway",
        "groups",
        "notify",
        "observe",
        "page",
        "record",
        "replay",
        "rocketmq-gateway",
        "run",
        "state",
        "whatif",
        "why",
    }


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=IDS)
def test_invalid_address_option_reports_expected_form(path: tuple[str, ...], option: click.Parameter) -> None:
    kind = next(kind for kind in WRONG if option.type is kind)
    name = option.opts[0]
    others = ["NAME"] if path in (("why",), ("state", "export")) else []
    result = CliRunner().invoke(main, [*path, *others, name, WRONG[kind]])
    assert result.exit_code == (1 if path[0] == "groups" else 2)
    *_, last = result.stderr.strip().splitlines()
    assert name in last
    assert "expected is a" in last


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("kafka-1:9092", "kafka-1:9092"),
        ("kafka-1:9092, 10.0.0.1:1\n", "kafka-1:9092,10.0.0.1:1"),
        ("PLAINTEXT://kafka-1:9092, kafka://kafka-2:9092", "kafka-1:9092,kafka-2:9092"),
        ("SASL_SSL://[::1]:9093,EXTERNAL-1.a://b:1,://c:2", "[::1]:9093,b:1,c:2"),
        ("[::1]:9092,my_kafka.example.org.:65535", "[::1]:9092,my_kafka.example.org.:65535"),
    ],
)
def test_valid_server_lists_are_accepted(text: str, servers: str) -> None:
    assert parse_servers(text) == servers


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "kafka", "kafka-1,kafka-2", "kafka-1:9092,", "kafka:", ":9092", "kafka:0", "kafka:65536"),
        *(
            "kafka:9092 other:9092",
            "http://kafka:9092",
            "a,HTTPS://kafka:9092",
            "kafka+ssl://kafka:9092",
            "PLAINTEXT://SSL://kafka:9092",
            "kafka://kafka:9092/",
            "kafka://kafka",
            "::1:9092",
            "[kafka]:9092",
            "kafka:9" + "0" * 5_000,
        ),
        *("ka fka:9092", "-kafka:9092", "kafka-:9092", "kafka:٣", "kafka:b", "kafka:-1"),
    ],
)
def test_invalid_server_list_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not HOST:PORT|has port 0"):
        parse_servers(text)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "SASL_PLAINTEXT", "sasl_ssl"])
def test_server_of_secured_protocol_needs_client_settings(tmp_path: Path, protocol: str) -> None:
    servers = f"kafka-1:9092,{protocol}://kafka-2:9093"
    with pytest.raises(click.BadParameter, match=rf"give kafka-2:9093 with .*protocol={protocol.upper()}$"):
        client_config_of(servers, None)
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=SSL\n")
    config = client_config_of(servers, properties)
    assert config is not None
    assert config.bootstrap_servers == "kafka-1:9092,kafka-2:9093"


def test_servers_in_a_file_may_name_their_protocol(tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("bootstrap.servers=PLAINTEXT://kafka-1:9092\n")
    assert client_config_of(None, properties) == ClientConfig("kafka-1:9092")


@pytest.mark.parametrize(
    ("text", "host"), [("a", "a"), ("0.0.0.0", "0.0.0.0"), ("::", "::"), ("[::1]", "::1"), (" a.b ", "a.b")]
)
def test_valid_hosts_are_accepted(text: str, host: str) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize("text", ["", "a:1", "[a]", "http://a", "a/b", "[::1]:80", "a b"])
def test_invalid_host_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a host name nor an IP address"):
        parse_host(text)


NOBODY = ("--bootstrap-servers", "127.0.0.1:1")


@pytest.mark.parametrize("page_url", ["http://127.0.0.1:8080", "http://127.0.0.1:8080/"])
def test_page_link_leads_to_groups_with_any_name(page_url: str) -> None:
    assert link(page_url) == "http://127.0.0.1:8080/"
    assert link(page_url, "orders") == "http://127.0.0.1:8080/group?id=orders"
    assert link(page_url, "a&b=c/\N{SNOWMAN}\n") == (
        "http://127.0.0.1:8080/group?id=a%26b%3Dc%2F%E2%98%83%0A"
    )


@pytest.mark.parametrize(
    "command",
    [
        ["why", "g", "--page-url"],
        ["groups", "describe", "--group", "g", "--page-url"],
        ["page", "--metrics-url"],
    ],
)
@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "javascript:alert(1)", "http://", "http://[", "http://h/?q=1"]
)
def test_invalid_page_url_is_a_usage_error(command: list[str], url: str) -> None:
    result = CliRunner().invoke(main, [*command, url, *NOBODY])
    assert result.exit_code in (1, 2)
    assert "expected is an address such as http://127.0.0.1:8080/" in result.stderr


OURS = (WholeNumber, DecimalNumber)
# Those of click, which use int() and float().
FOREIGN = (click.types.IntParamType, click.types.FloatParamType)
NUMBERS = [
    pytest.param(path, parameter, id=" ".join((*path, parameter.opts[0])))
    for path, command in commands(main)
    for parameter in command.params
    if isinstance(parameter.type, FOREIGN) or parameter.type is INT64
    if not (isinstance(parameter, click.Option) and parameter.count)
]


@pytest.mark.parametrize(("path", "option"), NUMBERS)
def test_number_option_accepts_only_ascii_digits(path: tuple[str, ...], option: click.Parameter) -> None:
    assert option.type is INT64 or isinstance(option.type, OURS)
    context = click.Context(click.Command("a"))
    for text in ("1_0", "\N{FULLWIDTH DIGIT ONE}", " 1", "nan", "9" * 5_000):
        with pytest.raises(click.BadParameter, match=r"is not a whole number|is not a number|is not between"):
            option.type.convert(text, option, context)
