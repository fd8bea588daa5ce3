"""How a client reaches the Kafka cluster: the servers, and Kafka's client settings for them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from typing import Self

import javaproperties

from records.address import parse_servers

BOOTSTRAP_SERVERS = "bootstrap.servers"
# As Kafka's EnvVarConfigProvider and FileConfigProvider are used in a file of settings.
_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


class ClientConfigError(ValueError):
    """The client settings cannot be used. The message names the file and the setting, and no value."""


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """`bootstrap_servers` is HOST:PORT,... . `properties` are Kafka's client settings by their names in Java,
    such as security.protocol. They may be secret, so only the servers are in the text of a ClientConfig.
    """

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, path: Path, bootstrap_servers: str | None = None) -> Self:
        """Read a file in the format of Java's properties, as Kafka's tools take with --command-config.

        `${env:NAME}` in a value is the environment's variable, `${file:PATH}` the content of a file without
        the blanks around it. `bootstrap_servers` replaces those of the file. Raises ClientConfigError.
        """
        try:
            with path.open("rb") as file:
                found: dict[str, str] = javaproperties.load(file)
        except (OSError, ValueError) as error:
            raise ClientConfigError(
                f"the client settings in {path} cannot be read: {_text(error)}"
            ) from error
        properties = {name: _resolved(path, name, value) for name, value in found.items()}
        servers = properties.pop(BOOTSTRAP_SERVERS, None)
        if bootstrap_servers is None and servers is not None:
            try:
                bootstrap_servers = parse_servers(servers)
            except ValueError as error:
                raise ClientConfigError(f"{BOOTSTRAP_SERVERS} in {path}: {error}") from error
        if bootstrap_servers is None:
            raise ClientConfigError(f"{path} has no {BOOTSTRAP_SERVERS}, and no other servers are given")
        return cls(bootstrap_servers, properties)

    def __str__(self) -> str:
        return self.bootstrap_servers


def _resolved(path: Path, name: str, value: str) -> str:
    """The value with what its references name."""

    def found(reference: re.Match[str]) -> str:
        kind, where = reference.groups()
        try:
            return _SOURCES[kind](where)
        except (KeyError, OSError, ValueError) as error:
            what = f"{kind}:{where}"
            raise ClientConfigError(f"{name} in {path}: {what} cannot be read: {_text(error)}") from error

    return _REFERENCE.sub(found, value)


_SOURCES: Mapping[str, Callable[[str], str]] = {
    "env": lambda name: environ[name],
    "file": lambda name: Path(name).read_text().strip(),
}


def _text(error: Exception) -> str:
    """The error without what it quotes of a file, which may be secret."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is not set" if isinstance(error, KeyError) else type(error).__name__
