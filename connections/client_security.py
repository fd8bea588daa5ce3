"""Kafka's client settings for the connection to a cluster: which there are, and what they mean.

They have the names of Kafka's clients in Java. `connections.client_settings` has the settings of the same
meaning for each kind of client of this project. What one of these clients cannot do is refused for all.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from connections import pem
from connections.jaas import JaasError, LoginModule, parse_jaas
from connections.oauth_tokens import TokenLogin
from connections.pem import PemError

PROTOCOL = "security.protocol"
MECHANISM = "sasl.mechanism"
JAAS = "sasl.jaas.config"
HANDLER = "sasl.login.callback.handler.class"
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
HOST_CHECK = "ssl.endpoint.identification.algorithm"
TRUSTSTORE = "ssl.truststore.location"
TRUSTSTORE_TYPE = "ssl.truststore.type"
TRUSTED = "ssl.truststore.certificates"
KEYSTORE = "ssl.keystore.location"
KEYSTORE_TYPE = "ssl.keystore.type"
CHAIN = "ssl.keystore.certificate.chain"
KEY = "ssl.keystore.key"
KEY_PASSWORD = "ssl.key.password"  # noqa: S105 - a name
# Kafka 4.1 has these as settings. Older clients have them as options of the login module.
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"  # noqa: S105 - a name
SCOPE = "sasl.oauthbearer.scope"

SETTINGS = frozenset(
    {PROTOCOL, MECHANISM, JAAS, HANDLER, ENDPOINT, HOST_CHECK, CLIENT_ID, CLIENT_SECRET, SCOPE}
    | {TRUSTSTORE, TRUSTSTORE_TYPE, TRUSTED, KEYSTORE, KEYSTORE_TYPE, CHAIN, KEY, KEY_PASSWORD}
)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PACKAGE = "org.apache.kafka.common.security"
_PLAIN_MODULE = f"{_PACKAGE}.plain.PlainLoginModule"
_SCRAM_MODULE = f"{_PACKAGE}.scram.ScramLoginModule"
_OAUTH_MODULE = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule"
MODULES = {
    "PLAIN": _PLAIN_MODULE,
    "SCRAM-SHA-256": _SCRAM_MODULE,
    "SCRAM-SHA-512": _SCRAM_MODULE,
    "OAUTHBEARER": _OAUTH_MODULE,
}
# The class in Spark's Kafka clients, and the name that older clients have for it.
OAUTH_HANDLER = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler"
_OAUTH_HANDLERS = (OAUTH_HANDLER, f"{_PACKAGE}.oauthbearer.secured.OAuthBearerLoginCallbackHandler")
UNSECURED_SUBJECT = "unsecuredLoginStringClaim_sub"
EXTENSION = "extension_"


class ClientConfigError(ValueError):
    """The client settings cannot be used. The message names the file and the setting, and no value of it."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts. If `trusted` is None, the machine's certificates are trusted."""

    trusted: str | None
    chain: str | None
    key: str | None
    key_password: str | None
    checks_host: bool


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """A login by PLAIN or SCRAM."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Security:
    """What the settings mean. `mechanism` and `login` are None without SASL, `tls` without TLS."""

    protocol: str
    tls: Tls | None = field(default=None, repr=False)
    mechanism: str | None = None
    login: PasswordLogin | TokenLogin | None = None


def security_of(properties: Mapping[str, str]) -> Security:
    """The meaning of these settings. Files that they name are read now. Raises ClientConfigError."""
    if unknown := sorted(properties.keys() - SETTINGS):
        raise ClientConfigError(
            f"{', '.join(unknown)}: no known setting of a connection. Known are {', '.join(sorted(SETTINGS))}"
        )
    protocol = properties.get(PROTOCOL, PROTOCOLS[0]).upper()
    if protocol not in PROTOCOLS:
        raise ClientConfigError(f"{PROTOCOL} is one of {', '.join(PROTOCOLS)}")
    _check_used(properties, protocol)
    tls = _tls(properties) if protocol.endswith("SSL") else None
    if not protocol.startswith("SASL"):
        return Security(protocol, tls)
    mechanism = properties.get(MECHANISM)
    if mechanism not in MODULES:
        raise ClientConfigError(f"{MECHANISM} is one of {', '.join(MODULES)} with {PROTOCOL}={protocol}")
    return Security(protocol, tls, mechanism, _login(properties, mechanism))


def _check_used(properties: Mapping[str, str], protocol: str) -> None:
    """Raise ClientConfigError for settings that the protocol does not use: they would protect nothing."""
    kinds = {"ssl.": protocol.endswith("SSL"), "sasl.": protocol.startswith("SASL")}
    for prefix, is_used in kinds.items():
        unused = sorted(name for name in properties if name.startswith(prefix))
        if unused and not is_used:
            raise ClientConfigError(f"{', '.join(unused)}: without effect, because {PROTOCOL} is {protocol}")


def _tls(properties: Mapping[str, str], where: str = "") -> Tls:
    checks = properties.get(HOST_CHECK, "https").lower()
    if checks not in ("https", ""):
        raise ClientConfigError(f"{HOST_CHECK} is https, or empty to trust a certificate of any host")
    trusted = _stored(properties, TRUSTSTORE, TRUSTSTORE_TYPE)
    trusted_name = where + (TRUSTED if trusted is None else TRUSTSTORE)
    if trusted is None:
        trusted = properties.get(TRUSTED)
    stored = _stored(properties, KEYSTORE, KEYSTORE_TYPE)
    chain, key = (stored, stored) if stored is not None else (properties.get(CHAIN), properties.get(KEY))
    chain_name, key_name = (KEYSTORE, KEYSTORE) if stored is not None else (CHAIN, KEY)
    if (chain is None) != (key is None):
        raise ClientConfigError(f"{CHAIN} and {KEY} belong together")
    found = Tls(
        _read(trusted_name, trusted, pem.certificates),
        _read(chain_name, chain, pem.certificates),
        _read(key_name, key, pem.private_key),
        properties.get(KEY_PASSWORD),
        checks_host=bool(checks),
    )
    try:
        context_of(found)
    except PemError as error:
        names = trusted_name if chain is None else f"{trusted_name}, {key_name}"
        raise ClientConfigError(f"{names}: {error}") from None
    return found


def _stored(properties: Mapping[str, str], location: str, kind: str) -> str | None:
    """The text of a store in a file, None if there is no such file among the settings."""
    if properties.get(kind, "PEM").upper() != "PEM":
        raise ClientConfigError(
            f"{kind} can only be PEM here, because not all clients read other stores. `keytool "
            "-importkeystore -deststoretype PKCS12` and `openssl pkcs12` convert them"
        )
    if location not in properties:
        return None
    path = Path(properties[location])
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a PEM file"
        raise ClientConfigError(f"{location}: {path} cannot be read: {reason}") from None


def _read(name: str, text: str | None, read: Callable[[str], str]) -> str | None:
    try:
        return None if text is None else read(text)
    except PemError as error:
        raise ClientConfigError(f"{name}: {error}") from None


def _login(properties: Mapping[str, str], mechanism: str) -> PasswordLogin | TokenLogin:
    unused = sorted(name for name in properties if name == HANDLER or name.startswith("sasl.oauthbearer."))
    if unused and mechanism != "OAUTHBEARER":
        raise ClientConfigError(f"{', '.join(unused)}: without effect, because {MECHANISM} is {mechanism}")
    if JAAS in properties:
        try:
            module = parse_jaas(properties[JAAS])
        except JaasError as error:
            raise ClientConfigError(f"{JAAS}: {error}") from None
    elif mechanism == "OAUTHBEARER" and CLIENT_ID in properties:
        module = LoginModule(_OAUTH_MODULE, {})
    else:
        raise ClientConfigError(f"{MECHANISM}={mechanism} needs {JAAS}")
    if module.name != MODULES[mechanism]:
        raise ClientConfigError(f"{JAAS}: the login module of {mechanism} is {MODULES[mechanism]}")
    if mechanism == "OAUTHBEARER":
        return _token_login(properties, module.options)
    _check_options(module.options, {"username", "password"})
    for name in ("username", "password"):
        if name not in module.options:
            raise ClientConfigError(f"{JAAS}: its {name} is missing")
    return PasswordLogin(module.options["username"], module.options["password"])


def _token_login(properties: Mapping[str, str], options: Mapping[str, str]) -> TokenLogin:
    prefixed = {name: value for name, value in options.items() if name.startswith(EXTENSION)}
    extensions = tuple((name.removeprefix(EXTENSION), value) for name, value in prefixed.items())
    own = {name: value for name, value in options.items() if not name.startswith((EXTENSION, "ssl."))}
    endpoint, handler = properties.get(ENDPOINT), properties.get(HANDLER)
    if handler is not None and handler not in _OAUTH_HANDLERS:
        raise ClientConfigError(f"{HANDLER} can only be {OAUTH_HANDLER}")
    if endpoint is None:
        if handler is not None or UNSECURED_SUBJECT not in own:
            raise ClientConfigError(f"{MECHANISM}=OAUTHBEARER needs {ENDPOINT}")
        _check_options(own, {UNSECURED_SUBJECT})
        return TokenLogin(None, subject=own[UNSECURED_SUBJECT], extensions=extensions)
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https", "file") or url.username is not None:
        raise ClientConfigError(f"{ENDPOINT} is a URL with http, https or file, without a user")
    _check_options(own, {"clientId", "clientSecret", "scope"})
    if url.scheme == "file":
        return TokenLogin(endpoint, extensions=extensions)
    client = own.get("clientId", properties.get(CLIENT_ID))
    secret = own.get("clientSecret", properties.get(CLIENT_SECRET))
    if client is None or secret is None:
        raise ClientConfigError(
            f"{ENDPOINT} needs clientId and clientSecret in {JAAS}, or {CLIENT_ID} and {CLIENT_SECRET}"
        )
    ssl_options = {name: value for name, value in options.items() if name.startswith("ssl.")}
    _check_options(ssl_options, {TRUSTSTORE, TRUSTSTORE_TYPE, TRUSTED})
    trusted = _tls(ssl_options, f"{JAAS}: ").trusted if ssl_options else None
    scope = own.get("scope", properties.get(SCOPE))
    return TokenLogin(endpoint, client, secret, scope, trusted, extensions=extensions)


def _check_options(options: Mapping[str, str], known: set[str]) -> None:
    if unknown := sorted(options.keys() - known):
        raise ClientConfigError(
            f"{JAAS}: {', '.join(unknown)}: no known option here. Known are {', '.join(sorted(known))}"
        )


def context_of(tls: Tls) -> ssl.SSLContext:
    """The context for a client's connections. Raises PemError."""
    return pem.client_context(tls.trusted, tls.chain, tls.key, tls.key_password, checks_host=tls.checks_host)
