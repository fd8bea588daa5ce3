"""The options about ACLs, as `gateway` and `run` read them."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from cli.gateway_options import Listening, gateway_options
from connections.client_config import ClientConfig
from gateway.authorization.sources import INTERVAL_S, AclOptions
from gateway.net.options import GatewayOptions
from records.layout import TopicLayout


def invoked(*arguments: str) -> tuple[Result, list[GatewayOptions]]:
    """The command's result, and what the gateway gets."""
    found: list[GatewayOptions] = []

    @click.command()
    @gateway_options("--listen", default="127.0.0.1:0")
    def command(listening: Listening) -> None:
        config = ClientConfig("127.0.0.1:9092")
        found.append(listening.options(config, TopicLayout.named(), listening.security()))

    return CliRunner().invoke(command, arguments), found


def options_of(*arguments: str) -> GatewayOptions:
    """What the gateway gets."""
    result, found = invoked(*arguments)
    assert result.exit_code == 0, result.output
    return found[0]


def test_acls_are_off_by_default() -> None:
    assert options_of().acls is None


@pytest.mark.parametrize(("given", "file"), [("cluster", None), ("acls.toml", Path("acls.toml"))])
def test_whose_acls(given: str, file: Path | None) -> None:
    assert options_of("--acls", given).acls == AclOptions(file, frozenset(), False, INTERVAL_S)


def test_super_users_are_separated_as_in_kafka() -> None:
    """By semicolons, because names of certificates have commas."""
    names = "User:admin; User:CN=ops,O=acme;"
    found = options_of("--acls", "cluster", "--super-users", names, "--acls-interval-s", "1").acls
    assert found == AclOptions(None, frozenset({"User:admin", "User:CN=ops,O=acme"}), False, 1.0)


def test_everyone_may_be_allowed_where_there_are_no_acls() -> None:
    found = options_of("--acls", "cluster", "--allow-everyone-if-no-acl-found").acls
    assert found is not None
    assert found.allow_everyone_if_no_acl_found


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
def test_what_would_have_no_effect_is_refused(arguments: list[str], why: str) -> None:
    result, found = invoked(*arguments)
    assert (result.exit_code, found) == (2, [])
    assert why in result.output
