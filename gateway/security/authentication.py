"""Authentication of clients: TLS at the listeners, SASL, and the files of both.

The files are read again when they change. New connections and new authentications then use the new content.
If a file cannot be used, the earlier content stays in use and an error is logged.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from gateway.security.certificate_names import PrincipalMapper, subject_of
from gateway.security.mechanisms import (
    MAX_NAME_CHARS,
    OAUTHBEARER,
    PLAIN,
    InvalidJwks,
    OAuthBearerExchange,
    PlainExchange,
    ScramExchange,
    ServerExchange,
    TokenSettings,
    TokenValidator,
)
from gateway.security.session import ClientSession, Mechanisms, principal_of
from gateway.watched_files import WatchedFiles
from kafka_why.connections.properties import PropertiesError, read_properties
from kafka_why.credentials import HASHES, InvalidEntry, Users
from kafka_why.errors import UserFacingError
from kafka_why.numbers import parse_whole_number

# The security settings of a listener, by Kafka's names of a broker's settings.
#
# A file of these settings has the format of Java's properties. Values may refer to the environment and to
# files, as in `kafka_why.connections.client_config`.


MECHANISMS = (PLAIN, *HASHES, OAUTHBEARER)
_MAX_INT = 2**31 - 1


class SecurityError(UserFacingError, ValueError):
    """A setting, a certificate, a key, a users file or a JWKS file cannot be used."""


class ClientAuth(StrEnum):
    """Kafka's `ssl.client.auth`: the need for certificates of clients."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class SecuritySettings(Struct, frozen=True, kw_only=True):
    """The security settings of a listener."""

    keystore: Path | None = None  # the file of the certificate in PEM, None for plain text
    key: Path | None = None  # the file of its key, None if the key is in the same file
    key_password: str | None = None
    truststore: Path | None = None  # the CAs of clients' certificates
    client_auth: ClientAuth = ClientAuth.NONE
    mapper: PrincipalMapper = PrincipalMapper()
    users: Path | None = None  # the file of users and passwords
    jwks: Path | None = None  # the file of the public keys of tokens
    # None: the mechanisms for which the users file or the JWKS file has entries.
    mechanisms: tuple[str, ...] | None = None
    tokens: TokenSettings = TokenSettings()
    max_reauth_ms: int = 0  # connections.max.reauth.ms; 0: sessions do not expire

    def __repr__(self) -> str:
        return f"SecuritySettings(keystore={self.keystore}, users={self.users}, jwks={self.jwks})"


def parse(properties: Mapping[str, str], **given: Path | None) -> SecuritySettings:
    """Parse settings by Kafka's names. `given` has the files that are options of the command, by the field of
    SecuritySettings. Raises SecurityError, whose text contains no values.
    """
    fields: dict[str, Any] = {name: path for name, path in given.items() if path is not None}
    token_fields: dict[str, Any] = {}
    for name, text in properties.items():
        if name not in _PARSERS:
            raise SecurityError(f"{name} is not a setting of the gateway's security")
        field, parser = _PARSERS[name]
        try:
            value = parser(text.strip())
        except ValueError as error:
            raise SecurityError(f"{name}: {error}") from error
        if field in fields:
            raise SecurityError(f"{name} and an option of the command name the same file")
        if field in TokenSettings.__struct_fields__:
            token_fields[field] = value
        elif field is not None:  # without a field, the parser has only checked the value
            fields[field] = value
    return _validated(SecuritySettings(**fields, tokens=TokenSettings(**token_fields)))


def _validated(settings: SecuritySettings) -> SecuritySettings:
    """Return the settings. Raises SecurityError if they contradict each other."""
    if settings.key is not None and settings.keystore is None:
        raise SecurityError("a TLS key needs its certificate")
    if settings.client_auth is not ClientAuth.NONE and settings.keystore is None:
        raise SecurityError("ssl.client.auth needs ssl.keystore.location, because it is a part of TLS")
    if settings.client_auth is not ClientAuth.NONE and settings.truststore is None:
        raise SecurityError(
            "ssl.client.auth needs ssl.truststore.location, the CAs of the clients' certificates"
        )
    for mechanism in settings.mechanisms or ():
        if mechanism == OAUTHBEARER and settings.jwks is None:
            raise SecurityError("OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url")
        if mechanism != OAUTHBEARER and settings.users is None:
            raise SecurityError(f"{mechanism} needs a users file")
    return settings


def _require_pem(text: str) -> None:
    if text.upper() != "PEM":
        raise ValueError("only PEM can be read")


def _mechanisms(text: str) -> tuple[str, ...]:
    names = _split_list(text)
    if not names or not set(names) <= set(MECHANISMS):
        raise ValueError(f"needs one or more of {', '.join(MECHANISMS)}")
    return names


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _file_of_url(text: str) -> Path:
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise ValueError("file:///PATH is needed, because the gateway reads keys from a file")
    return Path(unquote(parts.path))


def _at_most(limit: int, text: str) -> int:
    try:
        return parse_whole_number(text, 0, limit)
    except ValueError:
        raise ValueError(f"needs a number from 0 to {limit}") from None


def _client_auth(text: str) -> ClientAuth:
    try:
        return ClientAuth(text.lower())
    except ValueError:
        raise ValueError(f"is one of {', '.join(ClientAuth)}") from None


# By Kafka's name: the field of SecuritySettings or TokenSettings, and the parser of the text.
_PARSERS: Mapping[str, tuple[str | None, Callable[[str], Any]]] = {
    "ssl.keystore.location": ("keystore", Path),
    "ssl.keystore.type": (None, _require_pem),
    "ssl.key.password": ("key_password", str),
    "ssl.truststore.location": ("truststore", Path),
    "ssl.truststore.type": (None, _require_pem),
    "ssl.client.auth": ("client_auth", _client_auth),
    "ssl.principal.mapping.rules": ("mapper", PrincipalMapper),
    "sasl.enabled.mechanisms": ("mechanisms", _mechanisms),
    "connections.max.reauth.ms": ("max_reauth_ms", partial(_at_most, 2**63 - 1)),
    "sasl.oauthbearer.jwks.endpoint.url": ("jwks", _file_of_url),
    "sasl.oauthbearer.expected.issuer": ("issuer", str),
    "sasl.oauthbearer.expected.audience": ("audience", _split_list),
    "sasl.oauthbearer.scope.claim.name": ("scope_claim_name", str),
    "sasl.oauthbearer.sub.claim.name": ("sub_claim_name", str),
    "sasl.oauthbearer.clock.skew.seconds": ("clock_skew_s", partial(_at_most, _MAX_INT)),
}


# TLS at the listeners: the certificate, and the CAs of the clients' certificates.
#
# A listener keeps the context with which it was opened. So each handshake gets the context of the current
# files in the callback for the server's name. OpenSSL calls this callback at every handshake, even without a
# name.


_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def tls_context(settings: SecuritySettings) -> ssl.SSLContext:
    """Return the TLS context of settings that have a certificate. Raises SecurityError."""
    assert settings.keystore is not None, "the caller has checked it"
    context = _empty_context(settings)
    try:
        context.load_cert_chain(settings.keystore, settings.key, settings.key_password or "")
    except (OSError, ValueError) as error:  # includes SSLError
        raise SecurityError(f"the TLS certificate {settings.keystore} cannot be used: {error}") from error
    if settings.client_auth is not ClientAuth.NONE:
        try:
            context.load_verify_locations(settings.truststore)
        except (OSError, ValueError) as error:
            raise SecurityError(f"the CAs in {settings.truststore} cannot be used: {error}") from error
    return context


def listener_context(settings: SecuritySettings, files: WatchedFiles[ssl.SSLContext]) -> ssl.SSLContext:
    """Return a listener's context, which does every handshake with the files' current context."""

    def use_current(handshake: ssl.SSLObject, _name: str | None, _listener: ssl.SSLContext) -> None:
        handshake.context = files.value

    context = _empty_context(settings)
    context.sni_callback = use_current
    return context


def _empty_context(settings: SecuritySettings) -> ssl.SSLContext:
    """Return a context that requires certificates as the settings do, and has no certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = _VERIFY[settings.client_auth]
    if settings.client_auth is not ClientAuth.NONE:
        # A resumed session would not be checked against new CAs. TLS 1.2 also resumes without tickets, by
        # session id in OpenSSL's cache, which Python cannot switch off.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return context


CHECK_INTERVAL_S = 1.0

T = TypeVar("T")


class ListenerSecurity:
    """The security of a gateway's listeners. Without settings they use plain text, and clients do not
    authenticate.

    `certificates`, `users` and `tokens` are the watched files. Each is None if the settings name no such
    file.
    """

    def __init__(
        self, settings: SecuritySettings | None = None, *, brokers_authenticate: bool = False
    ) -> None:
        """Read the files of the settings. With `brokers_authenticate` brokers authenticate clients by SASL.
        Raises SecurityError.
        """
        self.settings = settings = SecuritySettings() if settings is None else settings
        self.brokers_authenticate = brokers_authenticate
        if brokers_authenticate and self._has_mechanisms:
            raise SecurityError(
                "the brokers authenticate the clients, so users or keys of tokens at the gateway have no use"
            )
        self.certificates = _watched_files(
            (settings.keystore, settings.key, settings.truststore), lambda _: tls_context(settings)
        )
        self.users = _watched_files((settings.users,), partial(_read_users, settings))
        self.tokens = _watched_files((settings.jwks,), partial(_read_tokens, settings))
        self.tls = None if self.certificates is None else listener_context(settings, self.certificates)
        """The context of the listeners, or None for plain text."""

    @classmethod
    def read(
        cls,
        certificate: Path | None,
        key: Path | None,
        users: Path | None,
        config: Path | None = None,
        *,
        brokers_authenticate: bool = False,
    ) -> Self:
        """Read the settings in `config`, and the files that are options of the command. Raises SecurityError.

        Without `key`, the file of the certificate also has the key.
        """
        try:
            properties = {} if config is None else read_properties(config)
        except PropertiesError as error:
            raise SecurityError(str(error)) from error
        settings = parse(properties, keystore=certificate, key=key, users=users)
        return cls(settings, brokers_authenticate=brokers_authenticate)

    @property
    def is_sasl_required(self) -> bool:
        """True if clients have to authenticate by SASL."""
        return self.brokers_authenticate or self._has_mechanisms

    @property
    def _has_mechanisms(self) -> bool:
        return self.settings.users is not None or self.settings.jwks is not None

    def session(self, certificate: bytes | None) -> ClientSession:
        """Return the session of a new connection. `certificate` is the client's certificate in DER, or None
        if the client sent none.
        """
        if self.brokers_authenticate:
            return ClientSession(brokers_authenticate=True)
        if self._has_mechanisms:
            return ClientSession(self._mechanisms, max_reauth_ms=self.settings.max_reauth_ms)
        if certificate is None:
            return ClientSession()
        try:
            name = self.settings.mapper.name_of(subject_of(certificate))
        except ValueError as error:  # includes NoMatchingRule
            return ClientSession.refused(str(error))
        if len(name) > MAX_NAME_CHARS:
            return ClientSession.refused("the name of the certificate is too long")
        return ClientSession(principal=principal_of(name))

    async def follow(self) -> None:
        """Read the files again when one of them changes, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Read changed files again."""
        for files in (self.certificates, self.users, self.tokens):
            if files is not None:
                files.refresh()

    def _mechanisms(self) -> Mechanisms:
        """Return the mechanisms that are offered now, each with the function that begins an exchange."""
        enabled = self.settings.mechanisms  # None: all for which there are credentials
        offered: dict[str, Callable[[], ServerExchange]] = {}
        if self.users is not None:
            users = self.users.value
            for mechanism in enabled or users.mechanisms:
                if mechanism in HASHES:
                    offered[mechanism] = partial(ScramExchange, mechanism, users)
                elif mechanism == PLAIN:
                    offered[mechanism] = partial(PlainExchange, users)
        if self.tokens is not None and OAUTHBEARER in (enabled or (OAUTHBEARER,)):
            offered[OAUTHBEARER] = partial(OAuthBearerExchange, self.tokens.value)
        return offered


def _watched_files(paths: Sequence[Path | None], read: Callable[[Path], T]) -> WatchedFiles[T] | None:
    """Return the watched files of `paths`, or None if the first path is None. `read` gets the first path."""
    main_file = paths[0]
    if main_file is None:
        return None
    return WatchedFiles([path for path in paths if path is not None], lambda: read(main_file))


def _read_users(settings: SecuritySettings, path: Path) -> Users:
    derived = [mechanism for mechanism in settings.mechanisms or () if mechanism in HASHES]
    try:
        return Users(path.read_text().split("\n"), derived)
    except (OSError, UnicodeDecodeError) as error:
        raise SecurityError(f"the users in {path} cannot be read: {_text_without_quotes(error)}") from error
    except InvalidEntry as error:
        raise SecurityError(f"the users in {path} cannot be used: {error}") from error


def _read_tokens(settings: SecuritySettings, path: Path) -> TokenValidator:
    try:
        return TokenValidator(path.read_bytes(), settings.tokens)
    except OSError as error:
        raise SecurityError(f"the keys in {path} cannot be read: {_text_without_quotes(error)}") from error
    except InvalidJwks as error:
        raise SecurityError(f"the keys in {path} cannot be used: {error}") from error


def _text_without_quotes(error: Exception) -> str:
    """Return an error's text that quotes nothing of a file, whose content may be secret."""
    return error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
