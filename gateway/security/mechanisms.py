"""The server's side of SASL: PLAIN, SCRAM and OAUTHBEARER.

OAUTHBEARER (RFC 7628): the client sends a JSON Web Token, which is checked as by Kafka's validator. The reply
to an invalid token is the status as JSON. The reply to the client's next message is the error.
"""

import binascii
import hashlib
import hmac
import json
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

import jwt
from jwt.exceptions import InvalidSignatureError, PyJWTError
from msgspec import Struct

from gateway.log_text import quoted
from gateway.wire.framing import NAME_PATTERN, trimmed, unescaped
from kafka_why.credentials import HASHES, ScramCredential, Users

# The limit of a principal's length, because the principal is in every history entry that its requests cause.
MAX_NAME_CHARS = 1_024


class AuthenticationAccepted(Struct, frozen=True):
    """The client is the user `name`. `expires_at_ms` is the time at which the client's credential expires, or
    None if it does not expire.
    """

    name: str
    reply: bytes = b""
    expires_at_ms: int | None = None


class Continues(Struct, frozen=True):
    """The client has to send another message."""

    reply: bytes


class AuthenticationRefused(Struct, frozen=True):
    """The authentication failed."""

    why: str  # for the log
    # The text for the client, or None for the text that all mechanisms have in common. It does not reveal
    # which part of the credentials is wrong.
    message: str | None = None


ExchangeResult = AuthenticationAccepted | Continues | AuthenticationRefused


class ServerExchange(Protocol):
    """The server's side of one authentication."""

    def evaluate(self, message: bytes) -> ExchangeResult:
        """Evaluate the client's next message, which may be any bytes. Raises nothing."""


PLAIN = "PLAIN"

_PLAIN_PARTS = 3
_PLAIN_REFUSED = "Authentication failed: Invalid username or password"


class PlainExchange:
    """An authentication by PLAIN."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def evaluate(self, message: bytes) -> ExchangeResult:
        """Check the name and the password in the only message."""
        parts = message.split(b"\0")
        if len(parts) != _PLAIN_PARTS:
            return AuthenticationRefused("a PLAIN message that has not three parts")
        acts_as, name, password = parts
        try:
            user = name.decode()
        except UnicodeDecodeError:
            return AuthenticationRefused(f"authentication of user {quoted(name)} failed", _PLAIN_REFUSED)
        is_authentic = self._users.has_password(user, password) and len(user) <= MAX_NAME_CHARS
        is_for_itself = acts_as in (b"", name)
        if not is_authentic or not is_for_itself:
            return AuthenticationRefused(f"authentication of user {quoted(name)} failed", _PLAIN_REFUSED)
        return AuthenticationAccepted(user)


# SASL/SCRAM, the server's side (RFC 5802, RFC 7677), with the bounds of Kafka's ScramSaslServer.
#
# The messages have no channel binding, and a client may act only for itself. Delegation tokens (the extension
# `tokenauth`) are refused. Unlike Kafka, this server checks that the client's last message repeats the header
# of the first message, as the RFC demands.


_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = r"(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*"
_BASE64 = r"[A-Za-z0-9/+]*={0,2}"
_SCRAM_FIRST = re.compile(
    rf"(?P<header>n,(?:a=(?P<acts_as>{NAME_PATTERN}))?,)"
    rf"(?P<bare>n=(?P<name>{NAME_PATTERN}),r=(?P<nonce>{_PRINTABLE})(?P<extensions>{_EXTENSIONS}))"
)
_SCRAM_LAST = re.compile(
    rf"(?P<without_proof>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)
_NONCE_BYTES = 24


class ScramExchange:
    """An authentication by SCRAM, with two messages of the client."""

    def __init__(self, mechanism: str, users: Users) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._users = users
        self._first: _FirstMessage | None = None

    def evaluate(self, message: bytes) -> ExchangeResult:
        """Evaluate the first message, and then the last one."""
        try:
            text = message.decode("ascii")
        except UnicodeDecodeError:
            return AuthenticationRefused(f"a {self._mechanism} message that is not ASCII")
        return self._evaluate_first(text) if self._first is None else self._evaluate_last(text, self._first)

    def _evaluate_first(self, text: str) -> ExchangeResult:
        """Evaluate the first message, and reply with the nonce, the salt and the iterations."""
        match = _SCRAM_FIRST.fullmatch(text)
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
        self._first = first = _FirstMessage(self._users, self._mechanism, name, match)
        return Continues(first.reply.encode())

    def _evaluate_last(self, text: str, first: "_FirstMessage") -> ExchangeResult:
        """Check the proof in the last message, and reply with the server's signature."""
        match = _SCRAM_LAST.fullmatch(text)
        if match is None:
            return AuthenticationRefused(f"a malformed last message of {self._mechanism}")
        try:
            channel, proof = (b64decode(match[part], validate=True) for part in ("channel", "proof"))
        except binascii.Error:
            return AuthenticationRefused(f"a malformed last message of {self._mechanism}")
        auth_message = f"{first.bare},{first.reply},{match['without_proof']}".encode()
        signature = hmac.digest(first.credential.stored_key, auth_message, self._hash)
        # `&` evaluates all checks, so that the time does not reveal which of them fails.
        is_authentic = (
            self._proves(first.credential, signature, proof)
            & hmac.compare_digest(match["nonce"], first.nonce)
            & hmac.compare_digest(channel, first.header.encode())
            & first.is_known
        )
        if not is_authentic:
            return AuthenticationRefused(f"authentication of user {quoted(first.name)} failed")
        verifier = hmac.digest(first.credential.server_key, auth_message, self._hash)
        return AuthenticationAccepted(first.name, b"v=" + b64encode(verifier))

    def _proves(self, credential: ScramCredential, signature: bytes, proof: bytes) -> bool:
        """Return True if the client knows the key whose hash is stored: the proof is this key XOR the
        signature.
        """
        # A proof of a wrong length is refused only at the end, so that the time does not reveal it.
        padded_proof = proof.ljust(len(signature), b"\0")[: len(signature)]
        client_key = bytes(a ^ b for a, b in zip(signature, padded_proof, strict=True))
        stored_key = hashlib.new(self._hash, client_key).digest()
        return hmac.compare_digest(stored_key, credential.stored_key) & (len(proof) == len(signature))


class _FirstMessage:
    """The client's first message and the reply to it, against which the last message is checked."""

    def __init__(self, users: Users, mechanism: str, name: str, match: re.Match[str]) -> None:
        self.name = name
        self.header, self.bare = (
            match["header"],
            match["bare"],
        )  # RFC 5802: gs2-header, client-first-message-bare
        self.credential, self.is_known = users.credential(mechanism, name)
        self.nonce = match["nonce"] + secrets.token_urlsafe(_NONCE_BYTES)
        salt = b64encode(self.credential.salt).decode()
        self.reply = f"r={self.nonce},s={salt},i={self.credential.iterations}"


OAUTHBEARER = "OAUTHBEARER"

_INVALID_STATUS = '{"status":"invalid_token"}'
_PAIRS = re.compile(r"(?P<key>[A-Za-z]+)=(?P<value>[\x21-\x7e \t\r\n]+)\x01")
_OAUTH_FIRST = re.compile(
    rf"n,(?:a=(?P<acts_as>{NAME_PATTERN}))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_.a-zA-Z0-9]+)", re.ASCII)

# By type and curve of the key. Signatures with a secret that both sides know (HS256 and the like) are
# refused, because a JWKS file has public keys.
_ALGORITHMS: Mapping[tuple[str, str | None], tuple[str, ...]] = MappingProxyType(
    {
        ("RSA", None): ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
        ("EC", "P-256"): ("ES256",),
        ("EC", "P-384"): ("ES384",),
        ("EC", "P-521"): ("ES512",),
        ("OKP", "Ed25519"): ("EdDSA",),
    }
)
MS_PER_S = 1_000


class InvalidJwks(ValueError):
    """A JWKS file cannot be used."""


class InvalidToken(ValueError):
    """A token is not valid. The message has no part of the token."""


class TokenSettings(Struct, frozen=True, kw_only=True):
    """Kafka's settings `sasl.oauthbearer.*`. Without `issuer`, tokens of any issuer are accepted, and without
    `audience` tokens for any audience.
    """

    issuer: str | None = None
    audience: tuple[str, ...] = ()
    scope_claim_name: str = "scope"
    sub_claim_name: str = "sub"
    clock_skew_s: int = 30


class TokenValidator:
    """A validator of tokens with the public keys of a JWKS file."""

    def __init__(self, jwks: bytes, settings: TokenSettings) -> None:
        """Read the keys. Raises InvalidJwks."""
        self._settings = settings
        self._keys: list[_Key] = []
        try:
            for key in json.loads(jwks)["keys"]:
                self._add(key)
        except InvalidJwks:
            raise
        except (PyJWTError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidJwks(f"it is not a JSON Web Key Set: {type(error).__name__}") from error
        if not self._keys:
            raise InvalidJwks("it has no public key for signatures")

    def _add(self, key: Mapping[str, Any]) -> None:
        """Add a key. Keys for encryption, and keys of unsupported types and curves, are skipped."""
        if "d" in key:
            raise InvalidJwks("it has a private key")
        # A key without `use` is for signatures, and a key without `alg` is for all algorithms of its type.
        is_for_signatures = key.get("use", "sig") == "sig"
        of_type = _ALGORITHMS.get((key["kty"], key.get("crv")), ()) if is_for_signatures else ()
        algorithms = tuple(name for name in of_type if name == key.get("alg", name))
        if algorithms:
            self._keys.append(_Key(key.get("kid"), jwt.PyJWK(dict(key)).key, algorithms))

    def check(self, token: str) -> AuthenticationAccepted:
        """Return the user of a valid token, and the token's expiry. Raises InvalidToken."""
        claims = self._claims(token)
        claimed = claims.get(self._settings.sub_claim_name)
        name = trimmed(claimed) if isinstance(claimed, str) else ""
        is_blank = not name.strip()
        if is_blank or len(name) > MAX_NAME_CHARS:
            raise InvalidToken("its subject is not a name")
        if not _is_scope(claims.get(self._settings.scope_claim_name)):
            raise InvalidToken("its scope is neither a text nor a list of texts")
        return AuthenticationAccepted(name, expires_at_ms=int(claims["exp"]) * MS_PER_S)

    def _claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token with a valid signature. Raises InvalidToken."""
        refusal = InvalidToken("no key of the JWKS file fits it")
        try:
            header = jwt.get_unverified_header(token)
            for key in self._keys:
                if header.get("kid") in (None, key.key_id) and header["alg"] in key.algorithms:
                    try:
                        return self._decode(token, key)
                    except InvalidSignatureError as error:
                        refusal = InvalidToken(type(error).__name__)  # another key may fit
        # Claims may have any type and size, so any error that they cause refuses the token.
        except Exception as error:
            raise InvalidToken(type(error).__name__) from error
        raise refusal

    def _decode(self, token: str, key: "_Key") -> dict[str, Any]:
        """Return the claims of a token that this key has signed. Raises PyJWT's errors."""
        settings = self._settings
        claims: dict[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=key.algorithms,
            issuer=settings.issuer,
            audience=settings.audience or None,
            leeway=settings.clock_skew_s,
            options={
                "require": ["exp", "iat"],
                "verify_aud": bool(settings.audience),
                "verify_sub": False,
            },
        )
        return claims


class _Key(Struct, frozen=True):
    """A public key, and the algorithms for which it may be used."""

    key_id: object
    key: Any
    algorithms: tuple[str, ...]


class OAuthBearerExchange:
    """An authentication by OAUTHBEARER."""

    def __init__(self, tokens: TokenValidator) -> None:
        self._tokens = tokens
        self._refused: AuthenticationRefused | None = None

    def evaluate(self, message: bytes) -> ExchangeResult:
        """Check the token in the first message. If it is not valid, refuse the client at its second
        message.
        """
        if self._refused is not None:
            return self._refused
        match = _OAUTH_FIRST.fullmatch(message.decode("latin-1"))
        auth_text = None if match is None else dict(_PAIRS.findall(match["pairs"])).get("auth")
        auth = None if auth_text is None else _AUTH.fullmatch(auth_text)
        if match is None or auth is None or auth["scheme"].lower() != "bearer":
            return AuthenticationRefused("a malformed message of OAUTHBEARER")
        try:
            accepted = self._tokens.check(auth["token"])
        except InvalidToken as error:
            self._refused = AuthenticationRefused(f"the token is not valid: {error}", _INVALID_STATUS)
            return Continues(_INVALID_STATUS.encode())
        acts_as = match["acts_as"]
        if acts_as is not None and unescaped(acts_as) != accepted.name:
            return AuthenticationRefused(
                f"user {quoted(accepted.name)} asks to act for another",
                "Authentication failed: Client requested an authorization id that is different from the "
                "token's principal name",
            )
        return accepted


def _is_scope(scope: object) -> bool:
    if isinstance(scope, list):
        return all(isinstance(part, str) for part in scope)
    return scope is None or isinstance(scope, str)
