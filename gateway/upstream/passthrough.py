"""A client's SASL exchange with the broker behind its listener. The broker decides. The gateway relays the
messages and reads the name of the user, which it trusts once the broker has accepted the client.
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


class CannotRead(ValueError):
    """The gateway cannot read the user in a client's message. The error's text is a sentence."""


@dataclass(frozen=True, slots=True)
class SaslReply:
    """The broker's response to a SASL request, and its meaning."""

    response: bytes
    accepted: str | None = None  # the user whom the broker has authenticated
    lifetime_ms: int = 0  # the session's lifetime, 0 if it has no end
    failed: str | None = None  # the reason to disconnect the client after the response


class PassedSasl:
    """The SASL requests of one client's connection, including re-authentication (KIP-368)."""

    def __init__(self) -> None:
        self._mechanism: str | None = None
        self._name: str | None = None

    @property
    def is_running(self) -> bool:
        """True between the first and the last request of an authentication."""
        return self._mechanism is not None

    async def relay(self, header: RequestHeader, message: bytes, upstream: Upstream) -> SaslReply:
        """Relay a SASL request, and return the reply. No other request may be pending. Raises ProtocolError,
        UpstreamLost.
        """
        request = codec.decode_passed(header, message)
        if header.api_key == ApiKey.SaslHandshake:
            return await self._handshake(header, request, message, upstream)
        return await self._authenticate(header, request, message, upstream)

    async def _handshake(
        self, header: RequestHeader, request: Any, message: bytes, upstream: Upstream
    ) -> SaslReply:
        self._mechanism = self._name = None
        if request.mechanism not in MECHANISMS:
            error = GatewayError.UNSUPPORTED_SASL_MECHANISM
            fields = {"error_code": error, "mechanisms": list(MECHANISMS)}
            return SaslReply(
                codec.encode_response(header, fields), failed=f"SASL mechanism {quoted(request.mechanism)}"
            )
        response, answer = await _ask(header, message, upstream)
        if answer.error_code:
            return SaslReply(
                response, failed=f"the broker refused a SaslHandshake: error {answer.error_code}"
            )
        self._mechanism = request.mechanism
        return SaslReply(response)

    async def _authenticate(
        self, header: RequestHeader, request: Any, message: bytes, upstream: Upstream
    ) -> SaslReply:
        if self._name is None and self._mechanism is not None:
            try:
                self._name = name_in(self._mechanism, request.auth_bytes)
            except CannotRead as error:
                code = GatewayError.SASL_AUTHENTICATION_FAILED
                fields = {"error_code": code, "error_message": str(error), "auth_bytes": b""}
                return SaslReply(codec.encode_response(header, fields), failed=str(error))
        # In version 0 the broker does not report when the session ends, so the request is sent in version 1.
        raised = header.at_version(max(header.api_version, _FIRST_WITH_LIFETIME))
        sent = message[:2] + raised.api_version.to_bytes(2, "big") + message[4:]
        response, answer = await _ask(raised, sent, upstream)
        if raised != header:
            fields = {name: getattr(answer, name) for name in ("error_code", "error_message", "auth_bytes")}
            response = codec.encode_response(header, fields)
        if answer.error_code:
            who = "" if self._name is None else f" of user {quoted(self._name)}"
            return SaslReply(response, failed=f"authentication{who} failed at the broker")
        if self._name is None or not self._is_end(answer.auth_bytes):
            return SaslReply(response)
        name, self._name, self._mechanism = self._name, None, None
        return SaslReply(response, name, answer.session_lifetime_ms)

    def _is_end(self, auth_bytes: bytes) -> bool:
        """Return True if the broker's answer without an error is the last of the exchange.

        The last answer of SCRAM has the broker's signature. An answer of OAUTHBEARER is empty, unless it has
        an error, which the client has to answer.
        """
        if str(self._mechanism).startswith("SCRAM-"):
            return auth_bytes.startswith(b"v=")
        return not auth_bytes


async def _ask(header: RequestHeader, message: bytes, upstream: Upstream) -> tuple[bytes, Any]:
    await upstream.send(message)
    response = await upstream.receive()
    if correlation_id_of(response) != header.correlation_id:
        raise UpstreamLost("the broker answered another request")
    return response, codec.decode_response(header.api_key, header.api_version, response)


def name_in(mechanism: str, first: bytes) -> str:
    """Return the user's name in the first message of an exchange. Raises CannotRead.

    Sources: RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628 (OAUTHBEARER).
    """
    try:
        if mechanism == "PLAIN":
            name = first.split(b"\0")[1].decode()
        elif mechanism == "OAUTHBEARER":
            name = _subject(first)
        else:
            name = _scram_name(first.decode())
    except (ValueError, IndexError, KeyError, msgspec.MsgspecError) as error:
        if isinstance(error, CannotRead):
            raise
        raise CannotRead(f"the gateway finds no user in a message of {mechanism}") from error
    if not name:
        raise CannotRead(f"the user in a message of {mechanism} has no name")
    return name


def _scram_name(first: str) -> str:
    """Return the name in `n,[a=AUTHORIZATION-ID],n=NAME,r=NONCE[,extensions]`."""
    _, _, name, *rest = first.split(",")
    if "tokenauth=true" in (attribute.lower() for attribute in rest):
        raise CannotRead("a delegation token does not name its owner")
    attribute, _, escaped = name.partition("=")
    if attribute != "n":
        raise CannotRead("a message of SCRAM without a name")
    return unescaped(escaped)


def _subject(first: bytes) -> str:
    r"""Return the subject of the JWT in `n,[a=AUTHORIZATION-ID],\x01auth=Bearer TOKEN\x01...\x01\x01`."""
    fields = dict(field.split(b"=", 1) for field in first.split(b"\x01")[1:] if field)
    scheme, _, token = fields[b"auth"].partition(b" ")
    payload = token.strip().split(b".")[1]
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))
    except binascii.Error as error:
        raise CannotRead("a token that is no JWT") from error
    if scheme.lower() != b"bearer" or not isinstance(subject := claims["sub"], str):
        raise CannotRead("a token without the claim sub")
    return trimmed(subject)
