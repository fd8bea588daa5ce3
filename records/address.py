"""Addresses as options name them: HOST:PORT, a list of them, or a host alone."""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Self

MAX_PORT = 65_535

# A DNS name or an IPv4 address; underscores stand in the names that containers get.
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")


@dataclass(frozen=True, slots=True)
class Address:
    """Where something listens. An IPv6 host has no brackets here."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """`HOST:PORT`, an IPv6 host in brackets. Raises ValueError."""
        host, colon, port = text.strip().rpartition(":")
        if not colon or not _is_port(port) or (":" in host and not host.startswith("[")):
            raise ValueError(f"{text!r} is not HOST:PORT")
        try:
            return cls(parse_host(host), int(port))
        except ValueError as error:
            raise ValueError(f"{text!r} is not HOST:PORT: {error}") from error

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host(text: str) -> str:
    """A name, an IPv4 address, or an IPv6 address with or without brackets, which are taken off. Raises
    ValueError.
    """
    host = text.strip()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        is_host = _is_ipv6(host)
    else:
        is_host = _NAME.fullmatch(host) is not None or _is_ipv6(host)
    if not is_host:
        raise ValueError(f"{text!r} is no host name and no IP address")
    return host


def parse_servers(text: str) -> str:
    """`HOST:PORT,...`, as Kafka's clients take bootstrap.servers; without blanks. Raises ValueError."""
    addresses = [Address.parse(item) for item in text.split(",")]
    for address in addresses:
        if address.port == 0:
            raise ValueError(f"'{address}' has port 0, where nobody listens")
    return ",".join(map(str, addresses))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= MAX_PORT


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True
