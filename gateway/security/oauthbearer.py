"""SASL/OAUTHBEARER (RFC 7628): the client sends a JSON Web Token, which is checked as Kafka's validator does.

For an invalid token the reply is the status as JSON, and the client's next message gets the error.
"""

import json
import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jwt
from jwt.exceptions import InvalidSignatureError, PyJWTError
from msgspec import Struct

from gateway.log_text import quoted
from gateway.security.mechanisms import (
    MAX_NAME_CHARS,
    AuthenticationAccepted,
    AuthenticationRefused,
    Continues,
    ExchangeResult,
)
from gateway.wire.sasl import NAME_PATTERN, trimmed, unescaped

OAUTHBEARER = "OAUTHBEARER"

_INVALID = '{"status":"invalid_token"}'
_PAIRS = re.compile(r"(?P<key>[A-Za-z]+)=(?P<value>[\x21-\x7e \t\r\n]+)\x01")
_FIRST = re.compile(
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
    """Kafka's settings `sasl.oauthbearer.*`. Without an issuer or an audience, any is accepted."""

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
        usable = _ALGORITHMS.get((key["kty"], key.get("crv")), ()) if key.get("use", "sig") == "sig" else ()
        algorithms = tuple(name for name in usable if name == key.get("alg", name))
        if algorithms:
            self._keys.append(_Key(key.get("kid"), jwt.PyJWK(dict(key)).key, algorithms))

    def check(self, token: str) -> AuthenticationAccepted:
        """Return the user of a valid token, and its expiry. Raises InvalidToken."""
        claims = self._claims(token)
        claimed = claims.get(self._settings.sub_claim_name)
        name = trimmed(claimed) if isinstance(claimed, str) else ""
        if not 0 < len(name.strip()) <= len(name) <= MAX_NAME_CHARS:
            raise InvalidToken("its subject is not a name")
        if not _is_scope(claims.get(self._settings.scope_claim_name)):
            raise InvalidToken("its scope is neither a text nor a list of texts")
        return AuthenticationAccepted(name, expires_at_ms=int(claims["exp"]) * MS_PER_S)

    def _claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token with a valid signature. Claims may be of any type and size, so an
        error that they cause is a refusal.
        """
        refused = InvalidToken("no key of the JWKS file fits it")
        try:
            header = jwt.get_unverified_header(token)
            for key in self._keys:
                if header.get("kid") in (None, key.key_id) and header["alg"] in key.algorithms:
                    try:
                        return self._decoded(token, key)
                    except InvalidSignatureError as error:
                        refused = InvalidToken(type(error).__name__)
        except Exception as error:
            raise InvalidToken(type(error).__name__) from error
        raise refused

    def _decoded(self, token: str, key: "_Key") -> dict[str, Any]:
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
    """A public key, and the algorithms of its signatures."""

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
        match = _FIRST.fullmatch(message.decode("latin-1"))
        auth = None if match is None else dict(_PAIRS.findall(match["pairs"])).get("auth")
        given = None if auth is None else _AUTH.fullmatch(auth)
        if match is None or given is None or given["scheme"].lower() != "bearer":
            return AuthenticationRefused("a malformed message of OAUTHBEARER")
        try:
            token = self._tokens.check(given["token"])
        except InvalidToken as error:
            self._refused = AuthenticationRefused(f"the token is not valid: {error}", _INVALID)
            return Continues(_INVALID.encode())
        acts_as = match["acts_as"]
        if acts_as is not None and unescaped(acts_as) != token.name:
            return AuthenticationRefused(
                f"user {quoted(token.name)} asks to act for another",
                "Authentication failed: Client requested an authorization id that is different from the "
                "token's principal name",
            )
        return token


def _is_scope(scope: object) -> bool:
    if isinstance(scope, list):
        return all(isinstance(one, str) for one in scope)
    return scope is None or isinstance(scope, str)


def remaining_ms(expires_at_ms: int) -> int:
    """Return the milliseconds until a credential expires, 0 if it has expired."""
    return max(0, expires_at_ms - round(time.time() * MS_PER_S))
