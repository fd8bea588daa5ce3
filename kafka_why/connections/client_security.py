"""Kafka's client settings for the connection to a cluster: which there are, and what they mean.

`kafka_why.connections.client_settings` has the settings of the same meaning for each kind of client of this
project. What one of these clients cannot do is refused for all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_why.connections import client_login, client_tls
from kafka_why.connections.client_login import Login, read_login
from kafka_why.connections.client_tls import Tls, read_tls
from kafka_why.connections.used_settings import ClientConfigError, UsedSettings

PROTOCOL = "security.protocol"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SETTINGS = client_tls.SETTINGS | client_login.SETTINGS | {PROTOCOL}


@dataclass(frozen=True, slots=True)
class Security:
    """The meaning of the settings. `mechanism` and `login` are None without SASL, `tls` without TLS."""

    protocol: str
    tls: Tls | None = field(default=None, repr=False)
    mechanism: str | None = None
    login: Login | None = None


def security_of(properties: Mapping[str, str], servers: str = "") -> Security:
    """Return the meaning of these settings (`read_security`)."""
    return read_security(UsedSettings(properties), servers)


def read_security(settings: UsedSettings, servers: str = "") -> Security:
    """Return the meaning of the settings. Files that they name are read now. The settings that have no
    meaning for this protocol stay unread. Raises ClientConfigError.
    """
    text = settings.get(PROTOCOL) or PROTOCOLS[0]
    protocol = text.upper()
    if protocol not in PROTOCOLS:
        raise ClientConfigError(
            f"{PROTOCOL}: {settings.shown(PROTOCOL)} is not one of {', '.join(PROTOCOLS)}"
        )
    # A login that cannot work is found before the files are read.
    mechanism, login = read_login(settings, servers) if protocol.startswith("SASL") else (None, None)
    tls = read_tls(settings) if protocol.endswith("SSL") else None
    return Security(protocol, tls, mechanism, login)
