"""Addresses in options: HOST:PORT, a list of them, or a host alone."""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Self

from kafka_why.numbers import is_whole_number, shortened

MAX_PORT = 65_535

# A DNS name or an IPv4 address. Underscores are allowed because names of containers have them.
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")


_LISTENER_NAME = re.compile(r"[A-Za-z0-9._%-]*")
_WEB_SCHEMES = ("http", "https")
_SECURED_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server."""

    host: str  # IPv6 without brackets
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `HOST:PORT`, with an IPv6 host in brackets. Raises ValueError."""
        if "://" in text:
            raise ValueError(f"{text!r} is not HOST:PORT, because it begins with a protocol")
        host, colon, port = text.strip().rpartition(":")
        if not colon or not _is_port(port) or (":" in host and not host.startswith("[")):
            raise ValueError(f"{shortened(text)!r} is not HOST:PORT")
        try:
            return cls(parse_host(host), int(port))
        except ValueError as error:
            raise ValueError(f"{text!r} is not HOST:PORT: {error}") from error

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_host(text: str) -> str:
    """Parse a host name or an IP address. The brackets of an IPv6 address are removed. Raises ValueError."""
    host = text.strip()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        is_host = _is_ipv6(host)
    else:
        is_host = _HOST_NAME.fullmatch(host) is not None or _is_ipv6(host)
    if not is_host:
        raise ValueError(f"{text!r} is neither a host name nor an IP address")
    return host


def parse_servers(text: str) -> str:
    """Parse `HOST:PORT,...`, as in Kafka's bootstrap.servers. Raises ValueError.

    Blanks are removed, and so is a listener's name such as `PLAINTEXT://` (Utils.HOST_PORT_PATTERN).
    """
    addresses = [Address.parse(_without_listener(item)) for item in text.split(",")]
    for address in addresses:
        if address.port == 0:
            raise ValueError(f"'{address}' has port 0, which no listener has")
    return ",".join(map(str, addresses))


def check_plaintext(servers: str) -> None:
    """Raise ValueError if an address names a protocol other than PLAINTEXT."""
    for item in servers.split(","):
        listener, separator, address = item.strip().partition("://")
        if separator and listener.upper() in _SECURED_PROTOCOLS:
            raise ValueError(
                f"{item.strip()!r} needs client settings: give {address} with a --client-config that has "
                f"security.protocol={listener.upper()}"
            )


def _without_listener(text: str) -> str:
    """Remove a listener's name such as `PLAINTEXT://`. Raises ValueError for an address of the web."""
    listener, separator, address = text.strip().partition("://")
    if not separator:
        return text
    if listener.lower() in _WEB_SCHEMES or not _LISTENER_NAME.fullmatch(listener):
        raise ValueError(f"{text.strip()!r} is not HOST:PORT of a Kafka broker: it begins with {listener}://")
    return address


def _is_port(text: str) -> bool:
    return is_whole_number(text) and len(text) <= 5 and int(text) <= MAX_PORT


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return True if `host` is reachable only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
