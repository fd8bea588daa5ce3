"""The authentication state of one connection: SaslHandshake, SaslAuthenticate, and KIP-368.

A session may expire: `connections.max.reauth.ms` after the authentication, or with the client's token. The
client gets the lifetime, and authenticates again before the session expires, with the same mechanism and
user. A client whose session has expired may only authenticate: any other request closes the connection.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import Self

from msgspec import Struct

from gateway.log_text import quoted
from gateway.security.mechanisms import (
    MS_PER_S,
    AuthenticationAccepted,
    AuthenticationRefused,
    Continues,
    ExchangeResult,
    ServerExchange,
)
from gateway.wire.codec import GatewayError
from kafka_why.contract.messages import ANONYMOUS, ErrorCode

MIN_REAUTHENTICATION_INTERVAL_S = 1.0
"""The minimum interval between two authentications on a connection, as in Kafka (KafkaChannel)."""

NO_LIMIT_MS = 0
_MAX_LIFETIME_MS = 2**63 - 1

Mechanisms = Mapping[str, Callable[[], ServerExchange]]
"""The function that starts an authentication, by mechanism name."""


class AuthenticateReply(Struct, frozen=True):
    """The response to SaslAuthenticate. `lifetime_ms` is 0 for a session that does not expire."""

    error: ErrorCode | GatewayError
    message: str | None = None
    auth_bytes: bytes = b""
    lifetime_ms: int = NO_LIMIT_MS


class ClientSession:
    """The authentication state of a connection.

    `mechanisms` returns the current mechanisms by name. It is None without SASL at the gateway. With
    `brokers_authenticate` a broker authenticates the client, and `accept` is called with the result.
    `principal` is the client's principal as Kafka writes it, `User:NAME`. It is `ANONYMOUS` until the client
    has authenticated. `failure` is the reason why the authentication failed, or None. After a failure the
    gateway closes the connection.
    """

    def __init__(
        self,
        mechanisms: Callable[[], Mechanisms] | None = None,
        *,
        principal: str = ANONYMOUS,
        max_reauth_ms: int = NO_LIMIT_MS,
        brokers_authenticate: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mechanisms = mechanisms
        self._clock = clock
        self._max_reauth_ms = max_reauth_ms
        self._mechanism: str | None = None  # of the first authentication, which later ones have to repeat
        self._exchange: ServerExchange | None = None  # set while an authentication is in progress
        self.is_authenticated = mechanisms is None and not brokers_authenticate
        """True if the client has ever authenticated, or need not authenticate."""
        self._reauthenticated_at_s = -math.inf
        self._expires_at_s: float | None = None  # None: never
        self.brokers_authenticate = brokers_authenticate
        self.is_sasl_required = not self.is_authenticated
        """True if clients have to authenticate."""
        self.principal = principal
        self.failure: str | None = None

    @classmethod
    def refused(cls, why: str) -> Self:
        """Return a session that refuses all requests."""
        session = cls(lambda: {})  # without any mechanism, no authentication can begin
        session.failure = why
        return session

    @property
    def is_open(self) -> bool:
        """True if all requests are served. False while the client authenticates again."""
        if not self.is_authenticated or self._exchange is not None:
            return False
        return self._expires_at_s is None or self._clock() < self._expires_at_s

    @property
    def has_ended(self) -> bool:
        """True if the session has expired, or while the client authenticates again."""
        return self.is_authenticated and not self.is_open

    def tenant(self, address: str) -> str:
        """Return the tenant of this client: its principal, or its address if it is anonymous."""
        return address if self.principal == ANONYMOUS else self.principal

    @property
    def mechanisms(self) -> list[str]:
        """The names of the mechanisms that a client may choose."""
        return [] if self._mechanisms is None else list(self._mechanisms())

    def handshake(self, mechanism: str) -> ErrorCode | GatewayError:
        """Begin an authentication with this mechanism. Return the error for the client."""
        if self._exchange is not None:
            return self._fail(GatewayError.ILLEGAL_SASL_STATE, "a second SaslHandshake")
        if self.is_authenticated and not self._may_reauthenticate():
            return GatewayError.ILLEGAL_SASL_STATE
        offered: Mechanisms = {} if self._mechanisms is None else self._mechanisms()
        if mechanism not in offered:
            return self._fail(GatewayError.UNSUPPORTED_SASL_MECHANISM, f"SASL mechanism {quoted(mechanism)}")
        self._exchange = offered[mechanism]()
        if self._mechanism not in (None, mechanism):
            self._exchange = _RefusingExchange(mechanism, str(self._mechanism))
        self._mechanism = mechanism
        return ErrorCode.NONE

    def authenticate(self, message: bytes) -> AuthenticateReply:
        """Evaluate the client's next message."""
        if self._exchange is None:
            if not self.is_open:  # a session that is open goes on after the error
                self.failure = "SaslAuthenticate out of turn"
            return AuthenticateReply(
                GatewayError.ILLEGAL_SASL_STATE, "SaslAuthenticate without a SaslHandshake before it"
            )
        outcome = self._refuse_other_user(self._exchange.evaluate(message))
        if isinstance(outcome, Continues):
            return AuthenticateReply(ErrorCode.NONE, auth_bytes=outcome.reply)
        if isinstance(outcome, AuthenticationRefused):
            during = "re-authentication" if self.is_authenticated else "authentication"
            error = self._fail(GatewayError.SASL_AUTHENTICATION_FAILED, outcome.why)
            default_message = (
                f"Authentication failed during {during} due to invalid credentials with SASL mechanism "
                f"{self._mechanism}"
            )
            return AuthenticateReply(error, outcome.message or default_message)
        lifetime_ms = self._lifetime_ms(outcome)
        self._open(outcome.name, lifetime_ms)
        return AuthenticateReply(
            ErrorCode.NONE, auth_bytes=outcome.reply, lifetime_ms=lifetime_ms or NO_LIMIT_MS
        )

    def accept(self, name: str, lifetime_ms: int) -> None:
        """Open the session of a client that a broker authenticated. With 0 ms the session does not expire."""
        self._open(name, lifetime_ms or None)

    def _open(self, name: str, lifetime_ms: int | None) -> None:
        self._exchange = None
        self.is_authenticated = True
        self.principal = principal_of(name)
        self._expires_at_s = None if lifetime_ms is None else self._clock() + lifetime_ms / MS_PER_S

    def _may_reauthenticate(self) -> bool:
        """Return True, and record the time, if the client may authenticate again.

        As in Kafka, only a session that expires is renewed, at most once a second.
        """
        now_s = self._clock()
        is_late_enough = now_s - self._reauthenticated_at_s >= MIN_REAUTHENTICATION_INTERVAL_S
        if self._expires_at_s is None or not is_late_enough:
            return False
        self._reauthenticated_at_s = now_s
        return True

    def _refuse_other_user(self, outcome: ExchangeResult) -> ExchangeResult:
        """Return the outcome, or a refusal if the outcome would change the user of the session."""
        if isinstance(outcome, AuthenticationAccepted) and self.is_authenticated:
            principal = principal_of(outcome.name)
            if principal != self.principal:
                return AuthenticationRefused(
                    f"re-authentication of {quoted(self.principal)} as {quoted(principal)}",
                    f"Cannot change principals during re-authentication from {self.principal} to {principal}",
                )
        return outcome

    def _lifetime_ms(self, accepted: AuthenticationAccepted) -> int | None:
        """Return the lifetime of the session, or None if it does not expire."""
        limits = [] if self._max_reauth_ms == NO_LIMIT_MS else [self._max_reauth_ms]
        if accepted.expires_at_ms is not None:
            limits.append(max(0, accepted.expires_at_ms - round(time.time() * MS_PER_S)))
        return min(*limits, _MAX_LIFETIME_MS) if limits else None

    def _fail(self, error: GatewayError, why: str) -> GatewayError:
        """Record the failure of the authentication. Return the error for the client."""
        self.failure = why
        return error


class _RefusingExchange:
    """An exchange that refuses re-authentication with another mechanism."""

    def __init__(self, mechanism: str, first_mechanism: str) -> None:
        self._message = (
            f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of "
            f"mechanism '{first_mechanism}'"
        )

    def evaluate(self, _: bytes) -> ExchangeResult:
        return AuthenticationRefused("re-authentication with another mechanism", self._message)


def principal_of(name: str) -> str:
    """Return the principal of a user as Kafka writes it, `User:NAME`."""
    return f"User:{name}"
