"""The options about ACLs, as `gateway` and `run` read them."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from cli.gateway_options import Listening, gateway_options
from gateway.authorization.sources import INTERVAL_S, AclOptions
from gateway.net.options import GatewayOptions
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout


def invoked(*arguments: str) -> tuple[Result, list[GatewayOptions]]:
    """Return the command's result, and what the gateway gets."""
    found: list[GatewayOptions] = []

    @click.command()
    @gateway_options("--listen", default="127.0.0.1:0")
    def command(listening: Listening) -> None:
        config = ClientConfig("127.0.0.1:9092")
        found.append(listening.options(config, TopicLayout.named(), listening.security()))

    return CliRunner().invoke(command, arguments), found


@pytest.mark.parametrize(
    ("words", "acls"),
    [
        ([], None),
        (["--acls", "cluster"], AclOptions(None, frozenset(), False, INTERVAL_S)),
        (["--acls", "acls.toml"], AclOptions(Path("acls.toml"), frozenset(), False, INTERVAL_S)),
        # By semicolons, as in Kafka, because names of certificates have commas.
        (
            [
                "--acls",
                "cluster",
                "--super-users",
                "User:admin; User:CN=ops,O=acme;",
                "--acls-interval-s",
                "1",
            ],
            AclOptions(None, frozenset({"User:admin", "User:CN=ops,O=acme"}), False, 1.0),
        ),
        (
            ["--acls", "cluster", "--allow-everyone-if-no-acl-found"],
            AclOptions(None, frozenset(), True, INTERVAL_S),
        ),
    ],
)
def test_acl_options_reach_the_gateway(words: list[str], acls: AclOptions | None) -> None:
    result, found = invoked(*words)
    assert result.exit_code == 0, result.output
    assert [options.acls for options in found] == [acls]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--super-users", "User:admin"], "--super-users needs --acls"),
        (["--allow-everyone-if-no-acl-found"], "--allow-everyone-if-no-acl-found needs --acls"),
        (
            ["--acls", "cluster", "--super-users", "User:a;admin"],
            "'admin' is not TYPE:NAME, such as User:admin",
        ),
        (["--acls", "cluster", "--super-users", ":admin"], "':admin' is not TYPE:NAME"),
        (["--acls", "cluster", "--super-users", "User:"], "'User:' is not TYPE:NAME"),
    ],
)
def test_acl_options_without_effect_are_refused(arguments: list[str], why: str) -> None:
    result, found = invoked(*arguments)
    assert (result.exit_code, found) == (2, [])
    assert why in result.output
