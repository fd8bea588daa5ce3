"""Option types that several commands share. An address is checked when the option is parsed."""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import click
import re2

from connections.address import Address, parse_host, parse_servers
from gateway.net.advertised import parse_templates
from records.sharding import parse_shards
from records.topic_patterns import compiled, error_text
from streaming.query.storage import storage_at


class _Parsed(click.ParamType[Any]):
    """An option type from a parser that raises ValueError. `expected` describes a valid value by example."""

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
"""Parses to a `connections.address.Address`. Port 0 may stand for any free port."""

HOST = _Parsed("HOST", parse_host, "a host without a port, such as 127.0.0.1 or gateway.example.org")
"""Parses to a str; an IPv6 address loses its brackets."""

SERVERS = _Parsed(
    "HOST:PORT,...", parse_servers, "a list with a port for each server, such as kafka-1:9092,kafka-2:9092"
)
"""Parses to a str in the format of `bootstrap.servers` of Kafka's clients."""

LISTENERS = _Parsed(
    "HOST:PORT,...",
    lambda text: parse_templates(text) if text else (),
    "an address for each gateway such as broker-{node}.example.org:9092 or gateway-1.example.org:{port}",
)
"""Parses to a tuple of `gateway.net.advertised.Template`."""

SHARDS = _Parsed("NUMBER", parse_shards, "a power of two such as 64")
"""Parses to the number of shards of a partition."""


def _web_url(text: str) -> str:
    found = urlsplit(text)
    if found.scheme not in ("http", "https") or not found.hostname or found.query or found.fragment:
        raise ValueError(f"{text!r} is not the address of a web server")
    return text


WEB_URL = _Parsed("URL", _web_url, "an address such as http://127.0.0.1:8080/")
"""Parses to a str, without a query."""

PLACE = _Parsed(
    "PLACE", lambda place: storage_at(place).uri, "a path, or a URI such as hdfs://HOST:PORT/PATH"
)
"""Parses to a str: the path or URI of a checkpoint."""


def _pattern(text: str) -> Any:
    try:
        return compiled(text)
    except re2.error as error:
        raise ValueError(f"{text!r} is no regular expression of RE2: {error_text(error)}") from error


PATTERN = _Parsed("REGEX", _pattern, "one such as 'payments-.*'")
"""Parses to a compiled pattern of RE2."""
