"""Kafka's client settings: what they mean, and those with which each kind of client reaches a cluster: Java's
(Spark's source and sink), kafka-python's and librdkafka's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_why.connections import client_login, client_tls
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
    Tls,
    context_of,
    read_tls,
)
from kafka_why.connections.msk_iam import IamLogin
from kafka_why.connections.oauth_tokens import LoginTokens, TokenLogin
from kafka_why.connections.used_settings import ClientConfigError, UsedSettings

# What Kafka's client settings mean. What one of the clients below cannot do is refused for all.


PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SETTINGS = client_tls.SETTINGS | client_login.SETTINGS | {"security.protocol"}


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
    text = settings.get("security.protocol") or PROTOCOLS[0]
    protocol = text.upper()
    if protocol not in PROTOCOLS:
        raise ClientConfigError(
            f"security.protocol: {settings.shown('security.protocol')} is not one of {', '.join(PROTOCOLS)}"
        )
    # A login that cannot work is found before the files are read.
    mechanism, login = read_login(settings, servers) if protocol.startswith("SASL") else (None, None)
    tls = read_tls(settings) if protocol.endswith("SSL") else None
    return Security(protocol, tls, mechanism, login)


def java_settings(security: Security) -> dict[str, str]:
    """The settings of Kafka's clients in Java. The only file that they name is the file of a token, so they
    are good on other machines.
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


def _java_tls(tls: Tls) -> dict[str, str]:
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
    given = {"clientId": login.client_id, "clientSecret": login.client_secret, "scope": login.scope}
    options |= {name: value for name, value in given.items() if value is not None}
    if login.trusted is not None:
        options |= {"ssl.truststore.type": "PEM", TRUSTED: login.trusted}
    return {
        HANDLER: OAUTH_HANDLER,
        ENDPOINT: login.endpoint,
        JAAS: format_jaas(LoginModule(module, options)),
    }


def kafka_python_settings(security: Security) -> dict[str, Any]:
    """The keyword arguments of kafka-python's clients. Raises PemError."""
    settings: dict[str, Any] = {"security_protocol": security.protocol}
    if security.tls is not None:
        settings["ssl_context"] = context_of(security.tls)
        settings["ssl_check_hostname"] = security.tls.checks_host
    if security.mechanism is not None:
        settings["sasl_mechanism"] = _python_mechanism(security.mechanism)
    if isinstance(security.login, PasswordLogin):
        user = security.login.user
        if security.mechanism != "PLAIN":  # RFC 5802 wants it so, and kafka-python leaves it to its caller
            user = user.replace("=", "=3D").replace(",", "=2C")
        settings |= {"sasl_plain_username": user, "sasl_plain_password": security.login.password}
    elif security.login is not None:
        settings["sasl_oauth_token_provider"] = LoginTokens(security.login)
    return settings


def librdkafka_settings(security: Security) -> dict[str, Any]:
    """The settings of librdkafka's clients."""
    settings: dict[str, Any] = {"security.protocol": security.protocol.lower()}
    if security.tls is not None:
        tls = security.tls
        settings[HOST_CHECK] = "https" if tls.checks_host else "none"
        given = {
            "ssl.ca.pem": tls.trusted,
            "ssl.certificate.pem": tls.chain,
            "ssl.key.pem": tls.key,
            "ssl.key.password": tls.key_password,
        }
        settings |= {name: value for name, value in given.items() if value is not None}
    if security.mechanism is not None:
        settings["sasl.mechanism"] = _python_mechanism(security.mechanism)
    if isinstance(security.login, PasswordLogin):
        settings |= {"sasl.username": security.login.user, "sasl.password": security.login.password}
    elif security.login is not None:
        settings["oauth_cb"] = LoginTokens(security.login)
    return settings


def _python_mechanism(mechanism: str) -> str:
    """Return the mechanism of clients that are not Java's: MSK takes tokens of IAM by OAUTHBEARER, too."""
    return "OAUTHBEARER" if mechanism == IAM else mechanism
