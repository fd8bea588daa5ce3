"""The SASL exchange of a client whose credentials the broker checks. The gateway relays the messages and
reads the name of the user, which it trusts once the broker has accepted the client.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import msgspec
from kafka.protocol.api_key import ApiKey

from gateway.log_text import quoted
from gateway.upstream.connections import MECHANISMS, Upstream, UpstreamLost
from gateway.wire import codec
from gateway.wire.codec import GatewayError
from gateway.wire.framing import RequestHeader, correlation_id_of, trimmed, unescaped

# Version 1 of SaslAuthenticate differs from version 0 only in this field of the response.
_FIRST_WITH_LIFETIME = 1


class UnreadableUser(ValueError):
    """The gateway cannot read the user's name in a client's message. The client gets the error's text."""


@dataclass(frozen=True, slots=True)
class SaslReply:
    """The broker's response to a SASL request, and its meaning."""

    response: bytes
    accepted: str | None = None  # the user whom the broker has authenticated
    lifetime_ms: int = 0  # the session's lifetime, 0 if it has no end
    failure: str | None = None  # the reason to disconnect the client after the response


@dataclass(slots=True)
class SaslRelay:
    """The SASL requests of one client's connection, including re-authentication (KIP-368)."""

    _mechanism: str | None = None
    """The mechanism of the current authentication, or None if none is in progress."""
    _name: str | None = None
    """The user's name in the client's first message of the authentication."""

    @property
    def is_running(self) -> bool:
        """True between the first and the last request of an authentication."""
        return self._mechanism is not None

    async def relay(self, header: RequestHeader, message: bytes, upstream: Upstream) -> SaslReply:
        """Relay a SASL request, and return the reply. No other request may be pending at `upstream`. Raises
        ProtocolError, UpstreamLost.
        """
        request = codec.decode_passed(header, message)
        if header.api_key == ApiKey.SaslHandshake:
            return await self._handshake(header, request, message, upstream)
        return await self._authenticate(header, request, message, upstream)

    async def _handshake(
        self, header: RequestHeader, request: Any, message: bytes, upstream: Upstream
    ) -> SaslReply:
        """Relay a SaslHandshake, or refuse a mechanism whose messages the gateway cannot read."""
        self._mechanism = self._name = None
        if request.mechanism not in MECHANISMS:
            error = GatewayError.UNSUPPORTED_SASL_MECHANISM
            fields = {"error_code": error, "mechanisms": list(MECHANISMS)}
            return SaslReply(
                codec.encode_response(header, fields), failure=f"SASL mechanism {quoted(request.mechanism)}"
            )
        response, decoded = await _ask(header, message, upstream)
        if decoded.error_code:
            return SaslReply(
                response, failure=f"the broker refused a SaslHandshake: error {decoded.error_code}"
            )
        self._mechanism = request.mechanism
        return SaslReply(response)

    async def _authenticate(
        self, header: RequestHeader, request: Any, message: bytes, upstream: Upstream
    ) -> SaslReply:
        """Relay a SaslAuthenticate, or refuse it if the user's name cannot be read."""
        if self._name is None and self._mechanism is not None:
            try:
                self._name = user_name_in(self._mechanism, request.auth_bytes)
            except UnreadableUser as error:
                code = GatewayError.SASL_AUTHENTICATION_FAILED
                fields = {"error_code": code, "error_message": str(error), "auth_bytes": b""}
                return SaslReply(codec.encode_response(header, fields), failure=str(error))
        # In version 0 the broker does not report when the session ends, so the request is sent in version 1.
        upgraded = header.at_version(max(header.api_version, _FIRST_WITH_LIFETIME))
        # The version is the third and the fourth byte.
        upgraded_message = message[:2] + upgraded.api_version.to_bytes(2, "big") + message[4:]
        response, decoded = await _ask(upgraded, upgraded_message, upstream)
        if upgraded != header:  # the client gets a response in its own version
            fields = {name: getattr(decoded, name) for name in ("error_code", "error_message", "auth_bytes")}
            response = codec.encode_response(header, fields)
        if decoded.error_code:
            of_user = "" if self._name is None else f" of user {quoted(self._name)}"
            return SaslReply(response, failure=f"authentication{of_user} failed at the broker")
        if self._name is None or not self._is_last(decoded.auth_bytes):  # the exchange continues
            return SaslReply(response)
        reply = SaslReply(response, accepted=self._name, lifetime_ms=decoded.session_lifetime_ms)
        self._mechanism = self._name = None
        return reply

    def _is_last(self, auth_bytes: bytes) -> bool:
        """Return True if `auth_bytes`, in a response without an error code, end the exchange.

        At the end, SCRAM has the broker's signature, and PLAIN and OAUTHBEARER have no bytes. If OAUTHBEARER
        has bytes, they describe an error, and the client has to answer.
        """
        if self._mechanism in ("PLAIN", "OAUTHBEARER"):
            return not auth_bytes
        return auth_bytes.startswith(b"v=")


async def _ask(header: RequestHeader, message: bytes, upstream: Upstream) -> tuple[bytes, Any]:
    """Send a request, and return the broker's response: its bytes, and the decoded message."""
    await upstream.send(message)
    response = await upstream.receive()
    if correlation_id_of(response) != header.correlation_id:
        raise UpstreamLost("the broker answered another request")
    return response, codec.decode_response(header.api_key, header.api_version, response)


def user_name_in(mechanism: str, first: bytes) -> str:
    """Return the user's name in the first message of an exchange. Raises UnreadableUser.

    Sources: RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628 (OAUTHBEARER).
    """
    try:
        if mechanism == "PLAIN":
            name = first.split(b"\0")[1].decode()
        elif mechanism == "OAUTHBEARER":
            name = _subject(first)
        else:
            name = _scram_name(first.decode())
    except UnreadableUser:
        raise
    except (ValueError, IndexError, KeyError, msgspec.MsgspecError) as error:
        raise UnreadableUser(f"the gateway finds no user in a message of {mechanism}") from error
    if not name:
        raise UnreadableUser(f"the user in a message of {mechanism} has no name")
    return name


def _scram_name(first: str) -> str:
    """Return the name in `n,[a=AUTHORIZATION-ID],n=NAME,r=NONCE[,extensions]`."""
    _, _, name_attribute, *other_attributes = first.split(",")
    if "tokenauth=true" in (attribute.lower() for attribute in other_attributes):
        raise UnreadableUser("a delegation token does not name its owner")
    key, _, escaped_name = name_attribute.partition("=")
    if key != "n":
        raise UnreadableUser("a message of SCRAM without a name")
    return unescaped(escaped_name)


def _subject(first: bytes) -> str:
    r"""Return the subject of the JWT in `n,[a=AUTHORIZATION-ID],\x01auth=Bearer TOKEN\x01...\x01\x01`."""
    fields = dict(field.split(b"=", 1) for field in first.split(b"\x01")[1:] if field)
    scheme, _, token = fields[b"auth"].partition(b" ")
    payload = token.strip().split(b".")[1]  # base64 without padding
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    except binascii.Error as error:
        raise UnreadableUser("a token that is no JWT") from error
    if scheme.lower() != b"bearer" or not isinstance(subject := claims["sub"], str):
        raise UnreadableUser("no bearer token with the claim sub")
    return trimmed(subject)
