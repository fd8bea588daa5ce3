"""The server's side of SASL: PLAIN and SCRAM. An exchange evaluates the client's bytes and returns the
server's.
"""

import binascii
import hashlib
import hmac
import re
import secrets
from base64 import b64decode, b64encode
from typing import Protocol

from msgspec import Struct

from gateway.log_text import quoted
from gateway.wire.sasl import NAME_PATTERN, unescaped
from kafka_why.credentials import HASHES, ScramCredential, Users

# The limit of a principal's length, because it is in every history entry that its requests cause.
MAX_NAME_CHARS = 1_024


class AuthenticationAccepted(Struct, frozen=True):
    """The client is this user. `expires_at_ms` is the time at which its credential expires, or None if it
    does not.
    """

    name: str
    reply: bytes = b""
    expires_at_ms: int | None = None


class Continues(Struct, frozen=True):
    """The client has to send another message."""

    reply: bytes


class AuthenticationRefused(Struct, frozen=True):
    """The authentication failed. `why` is for the log. `message` is for the client, and does not reveal which
    part of its credentials is wrong. If it is None, the client gets a sentence that is the same for all
    mechanisms.
    """

    why: str
    message: str | None = None


ExchangeResult = AuthenticationAccepted | Continues | AuthenticationRefused


class ServerExchange(Protocol):
    """The server's side of one authentication."""

    def evaluate(self, message: bytes) -> ExchangeResult:
        """Evaluate the client's next message. Never raises for any bytes."""


PLAIN = "PLAIN"

_PARTS = 3
_MESSAGE = "Authentication failed: Invalid username or password"


class PlainExchange:
    """An authentication by PLAIN."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def evaluate(self, message: bytes) -> ExchangeResult:
        """Check the name and the password in the only message."""
        parts = message.split(b"\0")
        if len(parts) != _PARTS:
            return AuthenticationRefused("a PLAIN message that has not three parts")
        acts_as, name, password = parts
        try:
            user = name.decode()
        except UnicodeDecodeError:
            return AuthenticationRefused(f"authentication of user {quoted(name)} failed", _MESSAGE)
        is_right = self._users.has_password(user, password) and len(user) <= MAX_NAME_CHARS
        if not is_right or acts_as not in (b"", name):
            return AuthenticationRefused(f"authentication of user {quoted(name)} failed", _MESSAGE)
        return AuthenticationAccepted(user)


# SASL/SCRAM, the server's side (RFC 5802, RFC 7677), with the bounds of Kafka's ScramSaslServer.
#
# The messages have no channel binding, and a client may act only for itself. Delegation tokens (the extension
# `tokenauth`) are refused. Unlike Kafka, this server checks that the client's last message repeats the header
# of its first, as the RFC demands.


_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = r"(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*"
_BASE64 = r"[A-Za-z0-9/+]*={0,2}"
_FIRST = re.compile(
    rf"(?P<header>n,(?:a=(?P<acts_as>{NAME_PATTERN}))?,)"
    rf"(?P<bare>n=(?P<name>{NAME_PATTERN}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_FINAL = re.compile(
    rf"(?P<without_proof>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_NONCE_BYTES = 24


class ScramExchange:
    """An authentication by SCRAM, with two messages of the client."""

    def __init__(self, mechanism: str, users: Users) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._users = users
        self._first: _First | None = None

    def evaluate(self, message: bytes) -> ExchangeResult:
        """Evaluate the first message, and then the last one."""
        try:
            text = message.decode("ascii")
        except UnicodeDecodeError:
            return AuthenticationRefused(f"a {self._mechanism} message that is not ASCII")
        return self._begin(text) if self._first is None else self._decide(text, self._first)

    def _begin(self, text: str) -> ExchangeResult:
        match = _FIRST.fullmatch(text)
        if match is None:
            return AuthenticationRefused(f"a malformed first message of {self._mechanism}")
        if ",tokenauth=true" in match["extensions"].lower():
            return AuthenticationRefused("a delegation token, where no such tokens are known")
        name = unescaped(match["name"])
        if len(name) > MAX_NAME_CHARS:
            return AuthenticationRefused(f"user {quoted(name)} has too long a name")
        if match["acts_as"] is not None and unescaped(match["acts_as"]) != name:
            return AuthenticationRefused(
                f"user {quoted(name)} asks to act for another",
                "Authentication failed: Client requested an authorization id that is different from username",
            )
        self._first = first = _First(self._users, self._mechanism, name, match)
        return Continues(first.reply.encode())

    def _decide(self, text: str, first: "_First") -> ExchangeResult:
        match = _FINAL.fullmatch(text)
        if match is None:
            return AuthenticationRefused(f"a malformed last message of {self._mechanism}")
        try:
            channel, proof = (b64decode(match[part], validate=True) for part in ("channel", "proof"))
        except binascii.Error:
            return AuthenticationRefused(f"a malformed last message of {self._mechanism}")
        signed = f"{first.bare},{first.reply},{match['without_proof']}".encode()
        signature = hmac.digest(first.credential.stored_key, signed, self._hash)
        is_right = (
            self._proves(first.credential, signature, proof)
            & hmac.compare_digest(match["nonce"], first.nonce)
            & hmac.compare_digest(channel, first.header.encode())
            & first.is_known
        )
        if not is_right:
            return AuthenticationRefused(f"authentication of user {quoted(first.name)} failed")
        verifier = hmac.digest(first.credential.server_key, signed, self._hash)
        return AuthenticationAccepted(first.name, b"v=" + b64encode(verifier))

    def _proves(self, credential: ScramCredential, signature: bytes, proof: bytes) -> bool:
        """Return True if the client knows the key whose hash is stored."""
        sized = proof.ljust(len(signature), b"\0")[: len(signature)]
        client_key = bytes(a ^ b for a, b in zip(signature, sized, strict=True))
        stored_key = hashlib.new(self._hash, client_key).digest()
        return hmac.compare_digest(stored_key, credential.stored_key) & (len(proof) == len(signature))


class _First:
    """The client's first message and the reply to it, against which the last message is checked."""

    def __init__(self, users: Users, mechanism: str, name: str, match: re.Match[str]) -> None:
        self.name = name
        self.header, self.bare = match["header"], match["bare"]
        self.credential, self.is_known = users.credential(mechanism, name)
        self.nonce = match["nonce"] + secrets.token_urlsafe(_NONCE_BYTES)
        salt = b64encode(self.credential.salt).decode()
        self.reply = f"r={self.nonce},s={salt},i={self.credential.iterations}"
