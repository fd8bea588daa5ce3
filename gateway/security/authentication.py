"""Which clients may connect: TLS at the listeners, and names with passwords (SASL/PLAIN)."""

import hmac
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gateway.wire.errors import GatewayError
from gateway.wire.log_text import quoted
from state.errors import ErrorCode
from state.messages import ANONYMOUS

PLAIN = "PLAIN"


class SecurityError(ValueError):
    """A certificate, a key or a users file cannot be used."""


@dataclass(frozen=True, slots=True)
class Security:
    """`tls` None: plain text. `users` holds passwords by name, None: the gateway does not authenticate its
    clients. With `by_broker` the broker behind a listener authenticates them by SASL.
    """

    tls: ssl.SSLContext | None = None
    users: Mapping[str, str] | None = field(default=None, repr=False)
    by_broker: bool = False

    @classmethod
    def read(
        cls, certificate: Path | None, key: Path | None, users: Path | None, *, by_broker: bool = False
    ) -> "Security":
        """Read PEM files and a users file. Without `key`, the certificate's file also has the key. Raises
        SecurityError.
        """
        if by_broker and users is not None:
            raise SecurityError("the brokers authenticate the clients, so a users file would have no use")
        if key is not None and certificate is None:
            raise SecurityError("a TLS key needs its certificate")
        tls = None if certificate is None else _tls_context(certificate, key)
        return cls(tls, None if users is None else _read_users(users), by_broker)


def _tls_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # includes SSLError
        raise SecurityError(f"the TLS certificate {certificate} cannot be used: {error}") from error
    return context


def _read_users(path: Path) -> dict[str, str]:
    """Read one `NAME:PASSWORD` a line. Empty lines and lines that begin with # are skipped."""
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
    """The state of a connection's authentication.

    `principal` is who the client is, as Kafka writes it: `User:NAME`. It is `ANONYMOUS` until the client has
    authenticated. `failed` is the reason why the authentication failed, after which the gateway closes the
    connection. None if it has not failed. With `by_broker` the broker behind the listener authenticates the
    client.
    """

    def __init__(self, users: Mapping[str, str] | None, *, by_broker: bool = False) -> None:
        self._users = users
        self.by_broker = by_broker
        self._has_mechanism = False
        self._ends_at_s: float | None = None
        self.is_open = users is None and not by_broker
        self.principal = ANONYMOUS
        self.failed: str | None = None

    @property
    def is_asked(self) -> bool:
        """Whether clients have to authenticate."""
        return self._users is not None or self.by_broker

    @property
    def has_ended(self) -> bool:
        """Whether the client should have authenticated again by now (KIP-368)."""
        return self._ends_at_s is not None and time.monotonic() >= self._ends_at_s

    def accept(self, name: str, lifetime_ms: int) -> None:
        """The broker has accepted the client as this user, for so long (0: without end)."""
        self.principal = f"User:{name}"
        self.is_open = True
        self._ends_at_s = time.monotonic() + lifetime_ms / 1000 if lifetime_ms else None

    def handshake(self, mechanism: str) -> ErrorCode | GatewayError:
        """Accept the mechanism. PLAIN is the only one."""
        if self.is_open or self._has_mechanism:
            return self._fail(GatewayError.ILLEGAL_SASL_STATE, "a second SaslHandshake")
        if mechanism != PLAIN:
            return self._fail(GatewayError.UNSUPPORTED_SASL_MECHANISM, f"SASL mechanism {quoted(mechanism)}")
        self._has_mechanism = True
        return ErrorCode.NONE

    def authenticate(self, message: bytes) -> ErrorCode | GatewayError:
        """Check PLAIN's message (RFC 4616): authorization identity, name and password, separated by NUL."""
        if self.is_open or not self._has_mechanism:
            return self._fail(GatewayError.ILLEGAL_SASL_STATE, "SaslAuthenticate out of turn")
        acts_as, _, rest = message.partition(b"\0")
        name, _, password = rest.partition(b"\0")
        expected = (self._users or {}).get(name.decode(errors="replace"))
        matches = hmac.compare_digest(password, (expected or "").encode())
        if expected is None or not matches or acts_as not in (b"", name):
            return self._fail(
                GatewayError.SASL_AUTHENTICATION_FAILED, f"authentication of user {quoted(name)} failed"
            )
        self.principal = f"User:{name.decode()}"
        self.is_open = True
        return ErrorCode.NONE

    def _fail(self, error: GatewayError, why: str) -> GatewayError:
        self.failed = why
        return error
