"""Option types that several commands share. An address is checked when the option is parsed."""

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import click
import re2

from gateway.net.advertised import parse_templates
from kafka_why.connections.address import Address, parse_host, parse_servers
from kafka_why.numbers import INT32_MAX, INT64_MAX, parse_decimal, parse_whole_number
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
        return _parsed(self._parse, value, self, param, ctx, f"; expected is {self._expected}")


def _parsed(
    parse: Callable[[str], Any],
    value: Any,
    kind: click.ParamType[Any],
    param: click.Parameter | None,
    ctx: click.Context | None,
    hint: str = "",
) -> Any:
    """Return the parsed text, or a default that was parsed before. A ValueError ends the command."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except ValueError as error:
        kind.fail(f"{error}{hint}", param, ctx)


class WholeNumber(click.IntRange):
    """An option type: a whole number from `min` to `max`, by default to the greatest one of 32 bits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        at_most = INT32_MAX if self.max is None else INT64_MAX
        parsed = _parsed(partial(parse_whole_number, at_most=at_most), value, self, param, ctx)
        return super().convert(parsed, param, ctx)


class DecimalNumber(click.FloatRange):
    """An option type: a number from `min` to `max`, which may have a fraction."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_parsed(parse_decimal, value, self, param, ctx), param, ctx)


ADDRESS = _Parsed("HOST:PORT", Address.parse, "an address such as 127.0.0.1:9192 or [::1]:9192")
"""Parses to a `kafka_why.connections.address.Address`. Port 0 may stand for any free port."""

HOST = _Parsed("HOST", parse_host, "a host without a port, such as 127.0.0.1 or gateway.example.org")
"""Parses to a str; an IPv6 address loses its brackets."""


def _servers(text: str) -> str:
    parse_servers(text)
    return text


SERVERS = _Parsed(
    "HOST:PORT,...", _servers, "a list with a port for each server, such as kafka-1:9092,kafka-2:9092"
)
"""Checks a list in the format of `bootstrap.servers` of Kafka's clients, and keeps its text: a name such as
`SSL://` before an address is compared with the client settings (`cli.cluster_options`).
"""

LISTENERS = _Parsed(
    "HOST:PORT,...",
    lambda text: parse_templates(text) if text else (),
    "an address for each gateway such as broker-{node}.example.org:9092 or gateway-1.example.org:{port}",
)
"""Parses to a tuple of `gateway.net.advertised.Template`."""

INT64 = _Parsed("INTEGER", parse_whole_number, "a whole number of 64 bits such as 12")
"""Parses to an int."""

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
