"""Connections to the brokers behind the gateway: TCP, TLS, and SASL as the gateway's own principal."""

import asyncio
import random
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol, Self, cast

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.scram import SaslMechanismScram, ScramClient
from kafka.protocol.api_key import ApiKey

from gateway.limits import Limits
from gateway.wire import codec
from gateway.wire.framing import ProtocolError, size_prefix
from kafka_why.connections.address import Address as Address
from kafka_why.connections.used_settings import ClientConfigError
from kafka_why.errors import UserFacingError

# The gateway's side of SASL towards the brokers, without IO: PLAIN, SCRAM and OAUTHBEARER.


MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The mechanisms that the gateway can use, and whose user names it can read from a client's exchange."""

# The minimum that Kafka's brokers store: org.apache.kafka.common.security.scram.internals.ScramMechanism.
_MIN_ITERATIONS = 4096
# The maximum number of cached salted passwords. A broker has one salt for a user and mechanism until the
# password changes.
_SALTED_MAX = 16


class SaslError(ValueError):
    """The broker violates the exchange's protocol. In the error's text, `it` is the broker."""


class ClientExchange(Protocol):
    """The client's side of one authentication: `auth_bytes` and `receive` alternate until `is_done`."""

    def auth_bytes(self) -> bytes:
        """Return the client's next message. May block while a token is requested."""

    def receive(self, auth_bytes: bytes) -> object:
        """Evaluate the broker's answer. Raises SaslError."""

    def is_done(self) -> bool:
        """Return True if client and broker have accepted each other."""


class Sasl:
    """The gateway's own SASL credentials. Raises ClientConfigError for an unknown mechanism.

    `settings` have kafka-python's names, such as `sasl_mechanism`. A user name for SCRAM is already escaped
    (RFC 5802, section 5.1).
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.mechanism: str = settings["sasl_mechanism"]
        if self.mechanism not in MECHANISMS:
            raise ClientConfigError(
                f"sasl.mechanism is {self.mechanism}, and the gateway has {', '.join(MECHANISMS)}"
            )
        self._settings = dict(settings)
        self._salted: dict[tuple[bytes, int], bytes] = {}
        """Salted passwords for SCRAM, by salt and number of iterations."""

    def begin(self) -> ClientExchange:
        """Begin an authentication."""
        # Without `security_protocol`, because kafka-python would log a warning about it for each connection.
        sasl_settings = {name: value for name, value in self._settings.items() if name.startswith("sasl_")}
        if self.mechanism.startswith("SCRAM-"):
            return cast(ClientExchange, _Scram(sasl_settings, self._salted))
        return cast(ClientExchange, get_sasl_mechanism(self.mechanism)(**sasl_settings))


class _Scram(SaslMechanismScram):  # type: ignore[misc]
    """The SCRAM exchange of kafka-python, with cached salted passwords. Its `receive` raises SaslError."""

    def __init__(self, settings: Mapping[str, Any], salted: dict[tuple[bytes, int], bytes]) -> None:
        super().__init__(**settings)
        self._scram_client = _CachingScramClient(
            settings["sasl_plain_username"], settings["sasl_plain_password"], self.mechanism
        )
        self._scram_client.salted = salted

    def receive(self, auth_bytes: bytes) -> object:
        try:
            return super().receive(auth_bytes)
        except SaslError:
            raise
        except (KeyError, ValueError) as error:
            # Only a broker with the user's credentials can sign the exchange, which its last message does.
            is_last_message = bool(self._state)
            problem = (
                "does not prove that it has the user's credentials" if is_last_message else "is malformed"
            )
            raise SaslError(f"its message of the SCRAM exchange {problem}") from error


class _CachingScramClient(ScramClient):  # type: ignore[misc]
    """kafka-python's calculation of SCRAM messages, with a cache, because salting a password is slow."""

    salted: dict[tuple[bytes, int], bytes]
    salted_password: bytes

    def create_salted_password(self, salt: bytes, iterations: int) -> None:
        """Set the salted password, from `salted` if it has been calculated before."""
        if iterations < _MIN_ITERATIONS:
            # An impostor could request few iterations, and find the password from the proof.
            raise SaslError(f"it asks for {iterations} iterations of SCRAM, fewer than {_MIN_ITERATIONS}")
        key = salt, iterations
        if key not in self.salted:
            super().create_salted_password(salt, iterations)
            if len(self.salted) >= _SALTED_MAX:
                self.salted.clear()
            self.salted[key] = self.salted_password
        self.salted_password = self.salted[key]


# Connections to the brokers behind the gateway: TCP, TLS, and SASL as the gateway's own principal.


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """The access to brokers. `tls` is None for plain text. `sasl` is None if the gateway does not
    authenticate itself by SASL.
    """

    tls: ssl.SSLContext | None = None
    sasl: Sasl | None = field(default=None, repr=False)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the access of a Kafka client's settings, which have kafka-python's names. Raises
        ClientConfigError.
        """
        protocol = settings.get("security_protocol", "PLAINTEXT")
        tls = settings["ssl_context"] if protocol in ("SSL", "SASL_SSL") else None
        return cls(tls, Sasl(settings) if protocol.startswith("SASL_") else None)

    def without_sasl(self) -> Self:
        """Return the access for a connection on which the client authenticates itself."""
        return replace(self, sasl=None)


PLAIN_TEXT = BrokerAccess()


_SIZE_BYTES = 4
# Up to twice this many bytes of an unread response are buffered. The rest stays at the broker.
READ_BYTES = 64 * 1024

CLIENT_ID = "gateway"
SOFTWARE: codec.Fields = MappingProxyType({"client_software_name": CLIENT_ID, "client_software_version": "1"})
"""The body of the gateway's ApiVersions requests from version 3 on."""
_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2
_UNSUPPORTED_SASL_MECHANISM = 33
# The bounds of the part of its lifetime after which a session is renewed, as in Java's client. The part is
# random, so that sessions that began together are not renewed together.
_RENEWED_AFTER = 0.85, 0.95
_TEXT_MAX_CHARS = 200


class UpstreamLost(UserFacingError, ConnectionError):
    """A broker cannot be reached, or closed the connection."""


class UpstreamRefused(UpstreamLost):
    """A broker and the gateway do not accept each other's certificate or credentials."""


class Upstream:
    """A connection to a broker. Responses come in the order of the requests."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        address: Address,
        limits: Limits,
        access: BrokerAccess,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._address = address
        self._limits = limits
        self._access = access
        self._unread_bytes: int | None = None
        """The number of unread bytes of the next response, or None before its size is read."""
        self._has_answered = False
        self._reauthenticate_at_s: float | None = None  # on the event loop's clock; None: never

    @classmethod
    async def open(cls, address: Address, limits: Limits, access: BrokerAccess = PLAIN_TEXT) -> Self:
        """Connect, and authenticate if `access` has SASL. Raises UpstreamLost."""
        try:
            async with asyncio.timeout(limits.connect_timeout_s):
                reader, writer = await asyncio.open_connection(
                    address.host,
                    address.port,
                    limit=READ_BYTES,
                    ssl=access.tls,
                    server_hostname=None if access.tls is None else address.host,
                )
        except ssl.SSLError as error:
            raise UpstreamRefused(
                f"no TLS connection to the broker at {address}: {_reason(error)}"
            ) from error
        except OSError as error:  # a TimeoutError is one
            raise UpstreamLost(f"no connection to the broker at {address}: {error!r}") from error
        upstream = cls(reader, writer, address, limits, access)
        try:
            await upstream.authenticate()
        except BaseException:
            upstream.close()
            raise
        return upstream

    @property
    def ended(self) -> bool:
        """True if the broker has closed the connection and all its responses are read."""
        return self._reader.at_eof()

    @property
    def is_reauthentication_due(self) -> bool:
        """True if the gateway has to authenticate again, because the broker limits a session's lifetime
        (KIP-368).
        """
        return (
            self._reauthenticate_at_s is not None
            and asyncio.get_running_loop().time() >= self._reauthenticate_at_s
        )

    async def authenticate(self) -> None:
        """Authenticate if `access` has SASL. No request may be in flight. Raises UpstreamLost."""
        if self._access.sasl is None:
            return
        try:
            async with asyncio.timeout(self._limits.upstream_timeout_s):
                lifetime_ms = await self._log_in()
        except TimeoutError as error:
            raise self._lost_error(
                f"no authentication within {self._limits.upstream_timeout_s:g} s"
            ) from error
        self._reauthenticate_at_s = None
        if lifetime_ms > 0:
            part_of_lifetime = random.uniform(*_RENEWED_AFTER)  # noqa: S311 - no secret
            renewed_after_s = lifetime_ms / 1000 * part_of_lifetime
            self._reauthenticate_at_s = asyncio.get_running_loop().time() + renewed_after_s

    async def _log_in(self) -> int:
        """Authenticate, and return the session's lifetime in ms, or 0 if it has no end."""
        assert self._access.sasl is not None, "the caller has checked it"
        mechanism = self._access.sasl.mechanism
        handshake = await self._ask(ApiKey.SaslHandshake, _HANDSHAKE_VERSION, {"mechanism": mechanism})
        if handshake.error_code == _UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(handshake.mechanisms)
            raise self._refused_error(f"it has no SASL mechanism {mechanism}, it has {offered}")
        if handshake.error_code:
            raise self._refused_error(
                f"it does not authenticate by SASL at this port (error {handshake.error_code})"
            )
        exchange = self._access.sasl.begin()
        lifetime_ms = 0
        while not exchange.is_done():
            try:
                # In a thread, because a token may have to be requested.
                message = await asyncio.to_thread(exchange.auth_bytes)
            except Exception as error:
                raise self._refused_error(f"no message of {mechanism} could be built: {error}") from error
            answer = await self._ask(ApiKey.SaslAuthenticate, _AUTHENTICATE_VERSION, {"auth_bytes": message})
            if answer.error_code:
                why = answer.error_message or f"error {answer.error_code}"
                raise self._refused_error(f"authentication by {mechanism} failed: {why[:_TEXT_MAX_CHARS]}")
            try:
                exchange.receive(answer.auth_bytes)
            except SaslError as error:
                raise self._refused_error(str(error)) from error
            lifetime_ms = answer.session_lifetime_ms
        return lifetime_ms

    async def _ask(self, api_key: int, api_version: int, body: codec.Fields) -> Any:
        await self.send(codec.encode_request(api_key, api_version, 0, CLIENT_ID, body))
        try:
            return codec.decode_response(api_key, api_version, await self.receive())
        except ProtocolError as error:
            raise self._lost_error(f"its response is malformed: {error}") from error

    async def request(self, message: bytes) -> bytes:
        """Authenticate again if that is due, send a request, and return the response. Raises UpstreamLost.

        No other request may be in flight.
        """
        try:
            async with asyncio.timeout(self._limits.upstream_timeout_s):
                if self.is_reauthentication_due:
                    await self.authenticate()
                await self.send(message)
                return await self.receive()
        except BaseException as error:
            # On an open connection, a late response would be mistaken for the response to the next request.
            self.close()
            if isinstance(error, TimeoutError):
                raise self._lost_error(f"no answer within {self._limits.upstream_timeout_s:g} s") from error
            raise

    async def send(self, message: bytes) -> None:
        """Send a request. Raises UpstreamLost."""
        try:
            self._writer.writelines((size_prefix(len(message)), message))
            await self._writer.drain()
        except OSError as error:
            raise self._lost_error(_reason(error)) from error

    async def receive(self) -> bytes:
        """Return the next response. If this is cancelled, no response is lost. Raises UpstreamLost."""
        response = await self._read_exactly(await self.next_response_size())
        self._has_answered, self._unread_bytes = True, None
        return response

    async def next_response_size(self) -> int:
        """Return the size of the next response, whose bytes remain unread. The size has no limit. Raises
        UpstreamLost.
        """
        if self._unread_bytes is None:
            size = int.from_bytes(await self._read_exactly(_SIZE_BYTES), "big", signed=True)
            if size < 0:
                raise self._lost_error(f"it sent a response of {size} bytes")
            self._unread_bytes = size
        return self._unread_bytes

    async def receive_part(self) -> bytes:
        """Wait for the next bytes of the response whose size was read, and return them. Raises
        UpstreamLost.
        """
        assert self._unread_bytes, "a part of the response is unread"
        try:
            part = await self._reader.read(self._unread_bytes)
        except OSError as error:
            raise self._lost_error(_reason(error)) from error
        if not part:
            raise self._lost_error("it closed the connection within a response")
        self._has_answered = True
        self._unread_bytes -= len(part)
        if self._unread_bytes == 0:
            self._unread_bytes = None  # the size of the next response is not read yet
        return part

    async def _read_exactly(self, size: int) -> bytes:
        try:
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            hint = "" if self._has_answered else ", as one that expects another security.protocol"
            raise self._lost_error(f"it closed the connection{hint}") from error
        except OSError as error:
            raise self._lost_error(_reason(error)) from error

    def close(self) -> None:
        """Close the connection. Bytes not yet sent are lost."""
        self._writer.transport.abort()

    def _lost_error(self, why: str) -> UpstreamLost:
        return UpstreamLost(f"the broker at {self._address} is lost: {why}")

    def _refused_error(self, why: str) -> UpstreamRefused:
        return UpstreamRefused(f"the broker at {self._address}: {why}")


def _reason(error: Exception) -> str:
    """Return the reason why a connection failed. The text of OpenSSL is in attributes of an SSLError."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).replace("_", " ").lower()
        if "alert" in reason and ("certificate" in reason or "unknown ca" in reason):
            return f"it does not accept the gateway's certificate: {reason}"
        return reason
    return repr(error)
