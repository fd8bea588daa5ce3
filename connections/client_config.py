"""How a client reaches the Kafka cluster: the servers, and Kafka's client settings for them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from connections.address import parse_servers
from connections.client_security import ClientConfigError as ClientConfigError
from connections.client_security import security_of
from connections.client_settings import java_settings, kafka_python_settings, librdkafka_settings
from connections.properties import PropertiesError, read_properties

BOOTSTRAP_SERVERS = "bootstrap.servers"


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """`bootstrap_servers` is HOST:PORT,... . `properties` are Kafka's client settings by their names in Java,
    such as security.protocol (`connections.client_security`). They may be secret, so only the servers are in
    the text of a ClientConfig.
    """

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def read(cls, path: Path, bootstrap_servers: str | None = None) -> Self:
        """Read a file in the format of Java's properties, as Kafka's tools take with --command-config.

        See `read_properties` for references in its values. Files that settings name are read here, so the
        result is good on other machines too. `bootstrap_servers` replaces those of the file. Raises
        ClientConfigError.
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
        try:
            return cls(bootstrap_servers, java_settings(security_of(properties)) if properties else {})
        except ClientConfigError as error:
            raise ClientConfigError(f"{path}: {error}") from None

    def kafka_python_settings(self) -> dict[str, Any]:
        """The keyword arguments with which kafka-python's clients reach the cluster. Raises
        ClientConfigError.
        """
        return {
            "bootstrap_servers": self.bootstrap_servers,
            **kafka_python_settings(security_of(self.properties)),
        }

    def librdkafka_settings(self) -> dict[str, Any]:
        """The settings with which librdkafka's clients reach the cluster. Raises ClientConfigError."""
        return {
            BOOTSTRAP_SERVERS: self.bootstrap_servers,
            **librdkafka_settings(security_of(self.properties)),
        }

    def java_settings(self) -> dict[str, str]:
        """The settings with which Kafka's clients in Java reach the cluster, on any machine. Raises
        ClientConfigError.
        """
        return {BOOTSTRAP_SERVERS: self.bootstrap_servers, **java_settings(security_of(self.properties))}

    def __str__(self) -> str:
        return self.bootstrap_servers
