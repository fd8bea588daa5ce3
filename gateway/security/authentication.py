"""Which clients may connect, and who they are: TLS at the listeners, SASL, and the files of both.

The files are read again when they change. New connections and new authentications then use the new ones. A
file that cannot be used changes nothing, and a log line says so.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

import structlog
from msgspec import Struct

from gateway.security.credentials import HASHES, InvalidEntry, Users
from gateway.security.distinguished_name import subject_of
from gateway.security.exchange import MAX_NAME_CHARS, Exchange
from gateway.security.oauthbearer import (
    OAUTHBEARER,
    InvalidJwks,
    OAuthBearerExchange,
    TokenValidator,
)
from gateway.security.plain import PLAIN, PlainExchange
from gateway.security.scram import ScramExchange
from gateway.security.session import Mechanisms, Session, principal_of
from gateway.security.settings import SecurityError, SecuritySettings, parse
from gateway.security.tls import following, tls_context
from records.properties import PropertiesError, read_properties

CHECK_INTERVAL_S = 1.0

log = structlog.get_logger()


class Current(Struct, frozen=True):
    """What the files say: the context of TLS, and what begins an authentication, by mechanism."""

    tls: ssl.SSLContext | None
    mechanisms: Mechanisms


class Security:
    """The security of a gateway's listeners. Without settings they speak plain text, and clients do not
    authenticate.
    """

    def __init__(self, settings: SecuritySettings | None = None, *, by_broker: bool = False) -> None:
        """Read the files of the settings. With `by_broker` the brokers authenticate clients by SASL. Raises
        SecurityError.
        """
        self.settings = SecuritySettings() if settings is None else settings
        self.by_broker = by_broker
        if by_broker and self._has_mechanisms:
            raise SecurityError("either the gateway or the brokers authenticate clients by SASL, not both")
        self._files = _files(self.settings)
        self._seen = self._signatures()
        self.current = _read(self.settings)
        self.tls = following(self.settings, self._current_tls) if self.current.tls is not None else None
        """The context of the listeners, None for plain text."""

    @classmethod
    def read(
        cls,
        certificate: Path | None,
        key: Path | None,
        users: Path | None,
        config: Path | None = None,
        *,
        by_broker: bool = False,
    ) -> Self:
        """Read the settings in `config`, and the files that the command's options name. Without `key`, the
        certificate's file also has the key. Raises SecurityError.
        """
        try:
            properties = {} if config is None else read_properties(config)
        except PropertiesError as error:
            raise SecurityError(str(error)) from error
        settings = parse(properties, keystore=certificate, key=key, users=users)
        return cls(settings, by_broker=by_broker)

    @property
    def is_asked(self) -> bool:
        """Whether clients have to authenticate by SASL."""
        return self.by_broker or self._has_mechanisms

    @property
    def _has_mechanisms(self) -> bool:
        return self.settings.users is not None or self.settings.jwks is not None

    def session(self, certificate: bytes | None) -> Session:
        """The session of a new connection, with the client's certificate in DER, None if it shows none."""
        if self.by_broker:
            return Session(by_broker=True)
        if self._has_mechanisms:
            return Session(self._current_mechanisms, max_reauth_ms=self.settings.max_reauth_ms)
        if certificate is None:
            return Session()
        try:
            name = self.settings.mapper.name_of(subject_of(certificate))
        except ValueError as error:  # includes NoMatchingRule
            return Session.refused(str(error))
        if len(name) > MAX_NAME_CHARS:
            return Session.refused("the name of the certificate is too long")
        return Session(principal=principal_of(name))

    async def follow(self) -> None:
        """Read the files again whenever one of them has changed, until cancelled."""
        while self._files:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await asyncio.to_thread(self.refresh)

    def refresh(self) -> None:
        """Read the files again if one of them has changed."""
        seen = self._signatures()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.current = _read(self.settings)
        except Exception as error:  # noqa: BLE001 - whatever a new file is, the earlier one is kept
            why = str(error) if isinstance(error, SecurityError) else type(error).__name__
            log.warning("a security file has changed and cannot be used: the earlier one is kept", error=why)
        else:
            log.info("the security files were read again", files=[str(path) for path in self._files])

    def _current_tls(self) -> ssl.SSLContext | None:
        return self.current.tls

    def _current_mechanisms(self) -> Mechanisms:
        return self.current.mechanisms

    def _signatures(self) -> list[tuple[int, ...] | None]:
        return [_signature(path) for path in self._files]


def _files(settings: SecuritySettings) -> tuple[Path, ...]:
    files = (settings.keystore, settings.key, settings.truststore, settings.users, settings.jwks)
    return tuple(path for path in files if path is not None)


def _signature(path: Path) -> tuple[int, ...] | None:
    """What changes with a file's content, None if the file is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _read(settings: SecuritySettings) -> Current:
    """Read all files. Raises SecurityError."""
    offered: dict[str, Callable[[], Exchange]] = {}
    if settings.users is not None:
        derived = [mechanism for mechanism in settings.mechanisms or () if mechanism in HASHES]
        users = _users(settings.users, derived)
        for mechanism in settings.mechanisms or users.mechanisms:
            if mechanism in HASHES:
                offered[mechanism] = partial(ScramExchange, mechanism, users)
            elif mechanism == PLAIN:
                offered[mechanism] = partial(PlainExchange, users)
    if settings.jwks is not None and OAUTHBEARER in (settings.mechanisms or (OAUTHBEARER,)):
        offered[OAUTHBEARER] = partial(OAuthBearerExchange, _tokens(settings.jwks, settings))
    return Current(tls_context(settings), offered)


def _users(path: Path, derived: list[str]) -> Users:
    try:
        return Users(path.read_text().splitlines(), derived)
    except (OSError, UnicodeDecodeError) as error:
        raise SecurityError(f"the users in {path} cannot be read: {_text(error)}") from error
    except InvalidEntry as error:
        raise SecurityError(f"the users in {path} cannot be used: {error}") from error


def _tokens(path: Path, settings: SecuritySettings) -> TokenValidator:
    try:
        return TokenValidator(path.read_bytes(), settings.tokens)
    except OSError as error:
        raise SecurityError(f"the keys in {path} cannot be read: {_text(error)}") from error
    except InvalidJwks as error:
        raise SecurityError(f"the keys in {path} cannot be used: {error}") from error


def _text(error: Exception) -> str:
    """The error without what it quotes of a file, which may be secret."""
    return error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
