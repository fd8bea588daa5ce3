"""How a client reaches the Kafka cluster: the servers, and Kafka's client settings for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kafka_why.connections.address import parse_servers
from kafka_why.connections.client_login import JAAS
from kafka_why.connections.client_settings import (
    Security,
    java_settings,
    kafka_python_settings,
    librdkafka_settings,
    read_security,
    security_of,
)
from kafka_why.connections.properties import PropertiesError, load_properties
from kafka_why.connections.used_settings import ClientConfigError as ClientConfigError
from kafka_why.connections.used_settings import UsedSettings, intended_name


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """`bootstrap_servers` is HOST:PORT,... . `properties` are Kafka's client settings by their names in Java,
    such as security.protocol (`kafka_why.connections.client_settings`). They may be secret, so only the
    servers are in the text of a ClientConfig.
    """

    bootstrap_servers: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def read(cls, path: Path, bootstrap_servers: str | None = None) -> Self:
        """Read a file in the format of Java's properties, as Kafka's tools take with --command-config.

        See `load_properties` for references in its values. Files that settings name are read here, so the
        result is good on other machines too. `bootstrap_servers` replaces those of the file. Settings that
        the connection has no use for are logged. Raises ClientConfigError.
        """
        try:
            values, resolve = load_properties(path)
            settings = UsedSettings(values, resolve)
            name, servers = settings.first("bootstrap.servers", "metadata.broker.list")
        except PropertiesError as error:
            raise ClientConfigError(str(error)) from None
        if bootstrap_servers is None:
            if servers is None:
                raise ClientConfigError(f"{path} has no bootstrap.servers, and no other servers are given")
            bootstrap_servers = _servers(f"{name} in {path}", servers, quotes=settings.is_shown(name))
        try:
            _check_names(values)
            security = read_security(settings, bootstrap_servers)
        except PropertiesError as error:
            raise ClientConfigError(str(error)) from None
        except ClientConfigError as error:
            raise ClientConfigError(f"{path}: {error}") from None
        _log_unused(path, security, settings.unused)
        is_default = security == Security("PLAINTEXT")
        return cls(bootstrap_servers, {} if is_default else java_settings(security))

    def kafka_python_settings(self) -> dict[str, Any]:
        """The keyword arguments with which kafka-python's clients reach the cluster. Raises
        ClientConfigError.
        """
        return {
            "bootstrap_servers": self.bootstrap_servers,
            **kafka_python_settings(self._security()),
        }

    def librdkafka_settings(self) -> dict[str, Any]:
        """The settings with which librdkafka's clients reach the cluster. Raises ClientConfigError."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            **librdkafka_settings(self._security()),
        }

    def java_settings(self) -> dict[str, str]:
        """The settings with which Kafka's clients in Java reach the cluster, on any machine. Raises
        ClientConfigError.
        """
        return {"bootstrap.servers": self.bootstrap_servers, **java_settings(self._security())}

    def _security(self) -> Security:
        return security_of(self.properties, self.bootstrap_servers)

    def __str__(self) -> str:
        return self.bootstrap_servers


def _servers(where: str, text: str, *, quotes: bool) -> str:
    try:
        return parse_servers(text)
    except ValueError as error:
        reason = str(error) if quotes else "its value (not shown) is not HOST:PORT,..."
    raise ClientConfigError(f"{where}: {reason}")


def _check_names(names: Iterable[str]) -> None:
    """Raise ClientConfigError for a name that no Kafka client has, and that is similar to one."""
    for name in sorted(names):
        if intended := intended_name(name):
            raise ClientConfigError(f"{name}: no Kafka client has this setting. Did you mean {intended}?")


def _log_unused(path: Path, security: Security, names: list[str]) -> None:
    """Log the settings that have no use for this connection, in one line."""
    if not names:
        return
    import structlog  # executors need not have it

    protects = ("ssl.",) * (security.tls is None) + ("sasl.",) * (security.login is None)
    line: dict[str, Any] = {"file": str(path), "protocol": security.protocol, "names": names}
    if security.login is not None and {"sasl.username", "sasl.password"} & set(names):
        line["login_by"] = JAAS
    log = structlog.get_logger()
    (log.warning if any(name.startswith(protects) for name in names) else log.info)(
        "settings of the client file have no use here", **line
    )
