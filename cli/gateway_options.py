"""The options of a gateway, for the commands that start one: `gateway` and `run`."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from cli.parameters import ADDRESS, HOST
from gateway.security.authentication import Security
from gateway.service import GatewayOptions
from records.address import Address
from records.layout import TopicLayout

Command = Callable[..., Any]

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@dataclass(frozen=True, slots=True)
class Listening:
    """How a gateway listens, as the options say. Null: `advertised_host`, clients are told the address they
    came to; `reply_partition`, one is drawn; `certificate`, plain text; `key`, it is in the certificate's
    file; `users`, nobody is asked for a name.
    """

    listen: Address
    advertised_host: str | None
    reply_partition: int | None
    certificate: Path | None
    key: Path | None
    users: Path | None
    expose_internal_topics: bool

    def security(self) -> Security:
        """What the files of certificates and users say. Raises SecurityError."""
        return Security.read(self.certificate, self.key, self.users)

    def options(self, bootstrap_servers: str, layout: TopicLayout, security: Security) -> GatewayOptions:
        """The options of a gateway that listens so, in front of the coordinator with these topics."""
        return GatewayOptions(
            bootstrap_servers,
            layout,
            self.listen,
            self.advertised_host,
            self.reply_partition,
            security=security,
            expose_internal_topics=self.expose_internal_topics,
        )


LISTENING = tuple(field.name for field in fields(Listening))
"""The names that click has for the options."""


def gateway_options(*names: str, default: str) -> Callable[[Command], Command]:
    """The command gets a `Listening` as `listening`. `names` are those of the option with the address."""
    options = (
        click.option(
            *names,
            "listen",
            default=default,
            show_default=True,
            type=ADDRESS,
            help="Where Kafka clients connect; broker n has the port n + 1 above it. Port 0: free ones.",
        ),
        click.option(
            "--advertised-host", type=HOST, help="What clients are told; default: the address they came to."
        ),
        click.option(
            "--reply-partition",
            type=click.IntRange(0),
            help="The gateway's own partition of the responses topic; default: one is drawn.",
        ),
        click.option("--tls-certificate", "certificate", type=_FILE, help="PEM: listen with TLS."),
        click.option("--tls-key", "key", type=_FILE, help="PEM; default: in the certificate's file."),
        click.option(
            "--sasl-users", "users", type=_FILE, help="NAME:PASSWORD a line: ask clients by SASL/PLAIN."
        ),
        click.option(
            "--expose-internal-topics",
            is_flag=True,
            help="Clients may write to the coordinator's own topics, as to any others.",
        ),
    )

    def decorated(command: Command) -> Command:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(listening=Listening(**{name: given.pop(name) for name in LISTENING}), **given)

        wrapped: Command = run
        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return decorated
