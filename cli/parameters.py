"""Types of options that several commands share: what names an address is checked when it is parsed."""

from collections.abc import Callable
from typing import Any

import click

from records.address import Address, parse_host, parse_servers


class _Parsed(click.ParamType[Any]):
    """A type made of a parser that raises ValueError. `expected` is an example of what the option takes."""

    def __init__(self, name: str, parse: Callable[[str], Any], expected: str) -> None:
        self.name = name
        self._parse = parse
        self._expected = expected

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default that was parsed before
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{error}; expected is {self._expected}", param, ctx)


ADDRESS = _Parsed("HOST:PORT", Address.parse, "an address such as 127.0.0.1:9192 or [::1]:9192")
"""Gives a `records.address.Address`; port 0 may stand for any free one."""

HOST = _Parsed("HOST", parse_host, "a host without a port, such as 127.0.0.1 or gateway.example.org")
"""Gives a str, an IPv6 address without brackets."""

SERVERS = _Parsed(
    "HOST:PORT,...", parse_servers, "a list with a port for each server, such as kafka-1:9092,kafka-2:9092"
)
"""Gives a str, as Kafka's clients take `bootstrap.servers`."""
