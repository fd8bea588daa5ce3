"""The security settings of a listener, by Kafka's names of a broker's settings.

A file of these settings has the format of Java's properties. Values may refer to the environment and to
files, as in `kafka_why.connections.client_config`.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from gateway.security.certificate_names import InvalidRule, PrincipalMapper
from gateway.security.mechanisms import PLAIN
from gateway.security.oauthbearer import OAUTHBEARER, TokenSettings
from kafka_why.credentials import HASHES
from kafka_why.numbers import parse_whole_number

MECHANISMS = (PLAIN, *HASHES, OAUTHBEARER)
_MAX_INT = 2**31 - 1


class SecurityError(ValueError):
    """A setting, a certificate, a key, a users file or a JWKS file cannot be used."""


class ClientAuth(StrEnum):
    """Kafka's `ssl.client.auth`: the need for certificates of clients."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


class SecuritySettings(Struct, frozen=True, kw_only=True):
    """The security settings of a listener. `keystore` is the certificate in PEM, or None for plain text.
    `key` is its key, or None if it is in the same file. If `mechanisms` is None, they are those with entries
    in the users and JWKS files.
    """

    keystore: Path | None = None
    key: Path | None = None
    key_password: str | None = None
    truststore: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    mapper: PrincipalMapper = PrincipalMapper()
    users: Path | None = None
    jwks: Path | None = None
    mechanisms: tuple[str, ...] | None = None
    tokens: TokenSettings = TokenSettings()
    max_reauth_ms: int = 0

    def __repr__(self) -> str:
        return f"SecuritySettings(keystore={self.keystore}, users={self.users}, jwks={self.jwks})"


def parse(properties: Mapping[str, str], **given: Path | None) -> SecuritySettings:
    """Parse settings by their names. `given` are the files given as options of the command. Raises
    SecurityError, whose text contains no values.
    """
    found: dict[str, Any] = {name: path for name, path in given.items() if path is not None}
    tokens: dict[str, Any] = {}
    for name, text in properties.items():
        if name not in _PARSERS:
            raise SecurityError(f"{name} is not a setting of the gateway's security")
        field, parser = _PARSERS[name]
        try:
            value = parser(text.strip())
        except ValueError as error:
            raise SecurityError(f"{name}: {error}") from error
        if field in found:
            raise SecurityError(f"{name} and an option of the command name the same file")
        if field is not None:
            (tokens if field in TokenSettings.__struct_fields__ else found)[field] = value
    return _checked(SecuritySettings(**found, tokens=TokenSettings(**tokens)))


def _checked(settings: SecuritySettings) -> SecuritySettings:
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


def _pem(text: str) -> None:
    if text.upper() != "PEM":
        raise ValueError("only PEM can be read")


def _mapper(text: str) -> PrincipalMapper:
    try:
        return PrincipalMapper(text)
    except InvalidRule as error:
        raise ValueError(str(error)) from error


def _mechanisms(text: str) -> tuple[str, ...]:
    names = _list(text)
    if not names or not set(names) <= set(MECHANISMS):
        raise ValueError(f"needs one or more of {', '.join(MECHANISMS)}")
    return names


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _file_of_url(text: str) -> Path:
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise ValueError("file:///PATH is needed, because the gateway reads keys from a file")
    return Path(unquote(parts.path))


def _at_most(limit: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        try:
            return parse_whole_number(text, 0, limit)
        except ValueError:
            raise ValueError(f"needs a number from 0 to {limit}") from None

    return number


def _client_auth(text: str) -> ClientAuth:
    try:
        return ClientAuth(text.lower())
    except ValueError:
        raise ValueError(f"is one of {', '.join(ClientAuth)}") from None


# Kafka's names: the field of SecuritySettings or TokenSettings, and how the text is read.
_PARSERS: Mapping[str, tuple[str | None, Callable[[str], Any]]] = {
    "ssl.keystore.location": ("keystore", Path),
    "ssl.keystore.type": (None, _pem),
    "ssl.key.password": ("key_password", str),
    "ssl.truststore.location": ("truststore", Path),
    "ssl.truststore.type": (None, _pem),
    "ssl.client.auth": ("client_auth", _client_auth),
    "ssl.principal.mapping.rules": ("mapper", _mapper),
    "sasl.enabled.mechanisms": ("mechanisms", _mechanisms),
    "connections.max.reauth.ms": ("max_reauth_ms", _at_most(2**63 - 1)),
    "sasl.oauthbearer.jwks.endpoint.url": ("jwks", _file_of_url),
    "sasl.oauthbearer.expected.issuer": ("issuer", str),
    "sasl.oauthbearer.expected.audience": ("audience", _list),
    "sasl.oauthbearer.scope.claim.name": ("scope_claim_name", str),
    "sasl.oauthbearer.sub.claim.name": ("sub_claim_name", str),
    "sasl.oauthbearer.clock.skew.seconds": ("clock_skew_s", _at_most(_MAX_INT)),
}
