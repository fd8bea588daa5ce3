"""`group-coordinator gateway-user`: an entry of a gateway's users file."""

import sys

import click

from kafka_why.cli.output import show_data
from kafka_why.cli.parameters import WholeNumber
from kafka_why.credentials import (
    HASHES,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    InvalidEntry,
    ScramCredential,
    Users,
)


@click.command()
@click.argument("name")
@click.option(
    "--mechanism",
    type=click.Choice(list(HASHES)),
    default="SCRAM-SHA-512",
    show_default=True,
    help="The mechanism by which the user authenticates.",
)
@click.option(
    "--iterations",
    type=WholeNumber(MIN_ITERATIONS, MAX_ITERATIONS),
    default=MIN_ITERATIONS,
    show_default=True,
    help="How often the password is hashed.",
)
def gateway_user(name: str, mechanism: str, iterations: int) -> None:
    """Print the line of NAME for the file of `gateway --sasl-users`. The line has no password.

    The password is the first line of the standard input.
    """
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise click.ClickException("the standard input has no password")
    entry = ScramCredential.of(mechanism, password, iterations).entry(mechanism)
    line = f"{name}:{entry}"
    try:
        is_usable = Users([line]).mechanisms == (mechanism,) and "\n" not in name and ":" not in name
    except InvalidEntry:
        is_usable = False
    if not is_usable:
        raise click.ClickException("a name is not empty, has no colon and does not begin with #")
    show_data(f"{line}\n")
