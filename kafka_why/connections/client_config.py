"""The configuration of a Kafka client: its servers, and Kafka's settings for them.

The settings are read once, and translated for each kind of client: Java's (Spark's source and sink),
kafka-python's and librdkafka's. A setting that one kind of client does not support is refused for all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from kafka_why.connections import client_login, client_tls
from kafka_why.connections.address import parse_servers
from kafka_why.connections.client_login import (
    CLIENT_HANDLER,
    ENDPOINT,
    EXTENSION,
    HANDLER,
    IAM,
    IAM_HANDLER,
    IAM_PROFILE,
    JAAS,
    MODULES,
    OAUTH_HANDLER,
    UNSECURED_SUBJECT,
    Login,
    LoginModule,
    PasswordLogin,
    format_jaas,
    read_login,
)
from kafka_why.connections.client_tls import (
    CHAIN,
    HOST_CHECK,
    TRUSTED,
    TlsSettings,
    context_of,
    read_tls,
)
from kafka_why.connections.oauth_tokens import IamLogin, LoginTokens, TokenLogin
from kafka_why.connections.properties import PropertiesError, load_properties
from kafka_why.connections.used_settings import ClientConfigError, UsedSettings, intended_name

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SETTINGS = client_tls.SETTINGS | client_login.SETTINGS | {"security.protocol"}


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """The parsed security settings."""

    protocol: str  # one of PROTOCOLS
    tls: TlsSettings | None = field(default=None, repr=False)  # None without TLS
    mechanism: str | None = None  # None without SASL
    login: Login | None = None  # None without SASL


def read_security(settings: UsedSettings, servers: str = "") -> ClientSecurity:
    """Parse the security settings, and read the files that they name. Raises ClientConfigError.

    Settings that the protocol does not use are not read, so they count as unused.
    """
    protocol = (settings.get("security.protocol") or PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        raise ClientConfigError(
            f"security.protocol: {settings.shown('security.protocol')} is not one of {', '.join(PROTOCOLS)}"
        )
    # The login comes first, so that an unsupported login is refused before files are read.
    mechanism, login = read_login(settings, servers) if protocol.startswith("SASL") else (None, None)
    tls = read_tls(settings) if protocol.endswith("SSL") else None
    return ClientSecurity(protocol, tls, mechanism, login)


def java_settings(security: ClientSecurity) -> dict[str, str]:
    """Return the settings of Kafka's clients in Java.

    They work on other machines, because they name no file except that of a token.
    """
    settings = {"security.protocol": security.protocol}
    if security.tls is not None:
        settings |= _java_tls(security.tls)
    if security.mechanism is None:
        return settings
    settings["sasl.mechanism"] = security.mechanism
    module = MODULES[security.mechanism]
    if isinstance(security.login, PasswordLogin):
        login = {"username": security.login.user, "password": security.login.password}
        return {**settings, JAAS: format_jaas(LoginModule(module, login))}
    if isinstance(security.login, IamLogin):
        profile = {} if security.login.profile is None else {IAM_PROFILE: security.login.profile}
        return {**settings, JAAS: format_jaas(LoginModule(module, profile)), CLIENT_HANDLER: IAM_HANDLER}
    assert security.login is not None
    return {**settings, **_java_token_login(module, security.login)}


def _java_tls(tls: TlsSettings) -> dict[str, str]:
    settings = {HOST_CHECK: "https" if tls.checks_host else ""}
    if tls.trusted is not None:
        settings |= {"ssl.truststore.type": "PEM", TRUSTED: tls.trusted}
    if tls.chain is not None and tls.key is not None:
        settings |= {"ssl.keystore.type": "PEM", CHAIN: tls.chain, "ssl.keystore.key": tls.key}
        if tls.key_password is not None:
            settings["ssl.key.password"] = tls.key_password
    return settings


def _java_token_login(module: str, login: TokenLogin) -> dict[str, str]:
    options = {f"{EXTENSION}{name}": value for name, value in login.extensions}
    if login.endpoint is None:
        return {JAAS: format_jaas(LoginModule(module, {UNSECURED_SUBJECT: login.subject or "", **options}))}
    credentials = {"clientId": login.client_id, "clientSecret": login.client_secret, "scope": login.scope}
    options |= {name: value for name, value in credentials.items() if value is not None}
    if login.trusted is not None:
        options |= {"ssl.truststore.type": "PEM", TRUSTED: login.trusted}
    return {
        HANDLER: OAUTH_HANDLER,
        ENDPOINT: login.endpoint,
        JAAS: format_jaas(LoginModule(module, options)),
    }


def kafka_python_settings(security: ClientSecurity) -> dict[str, Any]:
    """Return the keyword arguments of kafka-python's clients. Raises PemError."""
    settings: dict[str, Any] = {"security_protocol": security.protocol}
    if security.tls is not None:
        settings["ssl_context"] = context_of(security.tls)
        settings["ssl_check_hostname"] = security.tls.checks_host
    if security.mechanism is not None:
        settings["sasl_mechanism"] = _python_mechanism(security.mechanism)
    if isinstance(security.login, PasswordLogin):
        user = security.login.user
        if security.mechanism != "PLAIN":  # SCRAM escapes two characters (RFC 5802), kafka-python does not
            user = user.replace("=", "=3D").replace(",", "=2C")
        settings |= {"sasl_plain_username": user, "sasl_plain_password": security.login.password}
    elif security.login is not None:
        settings["sasl_oauth_token_provider"] = LoginTokens(security.login)
    return settings


def librdkafka_settings(security: ClientSecurity) -> dict[str, Any]:
    """Return the settings of librdkafka's clients."""
    settings: dict[str, Any] = {"security.protocol": security.protocol.lower()}
    if security.tls is not None:
        tls = security.tls
        settings[HOST_CHECK] = "https" if tls.checks_host else "none"
        pem_settings = {
            "ssl.ca.pem": tls.trusted,
            "ssl.certificate.pem": tls.chain,
            "ssl.key.pem": tls.key,
            "ssl.key.password": tls.key_password,
        }
        settings |= {name: value for name, value in pem_settings.items() if value is not None}
    if security.mechanism is not None:
        settings["sasl.mechanism"] = _python_mechanism(security.mechanism)
    if isinstance(security.login, PasswordLogin):
        settings |= {"sasl.username": security.login.user, "sasl.password": security.login.password}
    elif security.login is not None:
        settings["oauth_cb"] = LoginTokens(security.login)
    return settings


def _python_mechanism(mechanism: str) -> str:
    """Return the mechanism for kafka-python and librdkafka, which send IAM tokens to MSK by OAUTHBEARER."""
    return "OAUTHBEARER" if mechanism == IAM else mechanism


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The servers of a cluster, and Kafka's client settings for them."""

    bootstrap_servers: str  # HOST:PORT,...
    # Settings of Kafka's clients in Java. They may be secret, so they are not in the repr.
    properties: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def read(cls, path: Path, bootstrap_servers: str | None = None) -> Self:
        """Read a file in the format of Java's properties, as for --command-config. Raises ClientConfigError.

        Values may have references (`load_properties`). Files that settings name are read now, so the result
        works on other machines. `bootstrap_servers` replaces the servers in the file. Unused settings are
        logged.
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
            bootstrap_servers = _servers(f"{name} in {path}", servers, may_quote=settings.is_shown(name))
        try:
            _check_names(values)
            security = read_security(settings, bootstrap_servers)
        except PropertiesError as error:
            raise ClientConfigError(str(error)) from None
        except ClientConfigError as error:
            raise ClientConfigError(f"{path}: {error}") from None
        _log_unused(path, security, settings.unused)
        is_plaintext = security == ClientSecurity("PLAINTEXT")
        return cls(bootstrap_servers, {} if is_plaintext else java_settings(security))

    def kafka_python_settings(self) -> dict[str, Any]:
        """Return the connection settings for kafka-python's clients. Raises ClientConfigError."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            **kafka_python_settings(self._security()),
        }

    def librdkafka_settings(self) -> dict[str, Any]:
        """Return the connection settings for librdkafka's clients. Raises ClientConfigError."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            **librdkafka_settings(self._security()),
        }

    def java_settings(self) -> dict[str, str]:
        """Return the connection settings for Kafka's clients in Java.

        Keys and certificates are in the settings themselves, not in files. Raises ClientConfigError.
        """
        return {"bootstrap.servers": self.bootstrap_servers, **java_settings(self._security())}

    def _security(self) -> ClientSecurity:
        return read_security(UsedSettings(self.properties), self.bootstrap_servers)

    def __str__(self) -> str:
        return self.bootstrap_servers


def _servers(where: str, text: str, *, may_quote: bool) -> str:
    """Return the servers in a setting. Raises ClientConfigError, which quotes the value if `may_quote`."""
    try:
        return parse_servers(text)
    except ValueError as error:
        reason = str(error) if may_quote else "its value (not shown) is not HOST:PORT,..."
    raise ClientConfigError(f"{where}: {reason}")  # outside of the handler, because the error has the value


def _check_names(names: Iterable[str]) -> None:
    """Raise ClientConfigError for a misspelled setting."""
    for name in sorted(names):
        if intended := intended_name(name):
            raise ClientConfigError(f"{name}: no Kafka client has this setting. Did you mean {intended}?")


def _log_unused(path: Path, security: ClientSecurity, names: list[str]) -> None:
    if not names:
        return
    import structlog  # executors need not have structlog

    # A warning if the protocol makes TLS or SASL settings useless. Other unused settings are usual.
    has_no_use = {"ssl.": security.tls is None, "sasl.": security.login is None}
    useless_prefixes = tuple(prefix for prefix, is_useless in has_no_use.items() if is_useless)
    fields: dict[str, Any] = {"file": str(path), "protocol": security.protocol, "names": names}
    if security.login is not None and {"sasl.username", "sasl.password"} & set(names):
        fields["login_by"] = JAAS
    log = structlog.get_logger()
    write = log.warning if any(name.startswith(useless_prefixes) for name in names) else log.info
    write("settings of the client file have no use here", **fields)
