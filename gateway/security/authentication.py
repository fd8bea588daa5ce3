"""Who may connect: TLS at the listeners, and names with passwords (SASL/PLAIN)."""

import hmac
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.wire.errors import GatewayError
from gateway.wire.log_text import quoted
from state.errors import ErrorCode

PLAIN = "PLAIN"


class SecurityError(ValueError):
    """A certificate, key or file of users cannot be used."""


@dataclass(frozen=True, slots=True)
class Security:
    """`tls` None: plain text. `users` are passwords by name, None: nobody is asked for one."""

    tls: ssl.SSLContext | None = None
    users: Mapping[str, str] | None = field(default=None, repr=False)

    @classmethod
    def read(cls, certificate: Path | None, key: Path | None, users: Path | None) -> "Security":
        """From PEM files (without `key`, the certificate's holds it too) and a file of users. Raises
        SecurityError.
        """
        if key is not None and certificate is None:
            raise SecurityError("a TLS key needs its certificate")
        tls = None if certificate is None else _tls_context(certificate, key)
        return cls(tls, None if users is None else _read_users(users))


def _tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # an SSLError is one
        raise SecurityError(f"the TLS certificate {certificate} cannot be used: {error}") from error
    return context


def _read_users(path: Path) -> dict[str, str]:
    """A `NAME:PASSWORD` a line; empty lines and those that begin with # are left out."""
    users = {}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SecurityError(f"the users in {path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, password = line.partition(":")
        if not (name and colon and password):
            raise SecurityError(f"line {number} of {path} is not NAME:PASSWORD")
        users[name] = password
    return users


class Session:
    """How far a connection's client has come in naming itself. `failed` says why it has not, and that the
    connection is to end.
    """

    def __init__(self, users: Mapping[str, str] | None) -> None:
        self._users = users
        self._has_mechanism = False
        self.is_open = users is None
        self.failed: str | None = None

    @property
    def is_asked(self) -> bool:
        """Whether clients have to name themselves here."""
        return self._users is not None

    def handshake(self, mechanism: str) -> ErrorCode | GatewayError:
        """Choose the mechanism; there is one."""
        if self.is_open or self._has_mechanism:
            return self._fail(GatewayError.ILLEGAL_SASL_STATE, "a second SaslHandshake")
        if mechanism != PLAIN:
            return self._fail(GatewayError.UNSUPPORTED_SASL_MECHANISM, f"SASL mechanism {quoted(mechanism)}")
        self._has_mechanism = True
        return ErrorCode.NONE

    def authenticate(self, message: bytes) -> ErrorCode | GatewayError:
        """Take PLAIN's message (RFC 4616): whom to act as, a name and a password, with zeros between."""
        if self.is_open or not self._has_mechanism:
            return self._fail(GatewayError.ILLEGAL_SASL_STATE, "SaslAuthenticate out of turn")
        acts_as, _, rest = message.partition(b"\0")
        name, _, password = rest.partition(b"\0")
        expected = (self._users or {}).get(name.decode(errors="replace"))
        matches = hmac.compare_digest(password, (expected or "").encode())
        if expected is None or not matches or acts_as not in (b"", name):
            return self._fail(GatewayError.SASL_AUTHENTICATION_FAILED, f"user {quoted(name)} is not let in")
        self.is_open = True
        return ErrorCode.NONE

    def _fail(self, error: GatewayError, why: str) -> GatewayError:
        self.failed = why
        return error
