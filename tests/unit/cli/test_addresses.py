"""Options with an address are checked when they are parsed, and the error says what is expected."""

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from cli import main
from cli.parameters import ADDRESS, HOST, SERVERS
from connections.address import parse_host, parse_servers

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


def test_every_command_that_needs_a_cluster_is_among_them() -> None:
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
        "rocketmq-consumer",
        "run",
        "state",
        "whatif",
        "why",
    }


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=IDS)
def test_an_option_that_names_an_address_says_what_it_expects(
    path: tuple[str, ...], option: click.Parameter
) -> None:
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
        ("[::1]:9092,my_kafka.example.org.:65535", "[::1]:9092,my_kafka.example.org.:65535"),
    ],
)
def test_lists_of_servers(text: str, servers: str) -> None:
    assert parse_servers(text) == servers


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "kafka", "kafka-1,kafka-2", "kafka-1:9092,", "kafka:", ":9092", "kafka:0", "kafka:65536"),
        *(
            "kafka:9092 other:9092",
            "PLAINTEXT://kafka:9092",
            "::1:9092",
            "[kafka]:9092",
            "kafka:9" + "0" * 5_000,
        ),
        *("ka fka:9092", "-kafka:9092", "kafka-:9092", "kafka:٣", "kafka:b", "kafka:-1"),
    ],
)
def test_what_is_no_list_of_servers(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not HOST:PORT|has port 0"):
        parse_servers(text)


@pytest.mark.parametrize(
    ("text", "host"), [("a", "a"), ("0.0.0.0", "0.0.0.0"), ("::", "::"), ("[::1]", "::1"), (" a.b ", "a.b")]
)
def test_hosts(text: str, host: str) -> None:
    assert parse_host(text) == host


@pytest.mark.parametrize("text", ["", "a:1", "[a]", "http://a", "a/b", "[::1]:80", "a b"])
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a host name nor an IP address"):
        parse_host(text)
