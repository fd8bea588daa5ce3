"""How a client reaches the Kafka cluster: the servers, and Kafka's client settings for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from records.address import parse_servers
from records.properties import PropertiesError, read_properties

BOOTSTRAP_SERVERS = "bootstrap.servers"


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

        See `read_properties` for references in its values. `bootstrap_servers` replaces those of the file.
        Raises ClientConfigError.
        """
        try:
            properties = read_properties(path)
        except PropertiesError as error:
            raise ClientConfigError(str(error)) from error
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
