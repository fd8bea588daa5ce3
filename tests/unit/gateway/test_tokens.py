"""The check of OAUTHBEARER's tokens against a JWKS file."""

import hashlib
import hmac
import json
import time
from base64 import urlsafe_b64encode
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import get_default_algorithms

from gateway.security.mechanisms import InvalidJwks, InvalidToken, TokenSettings, TokenValidator

RSA_KEY = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
KEYS: dict[str, Any] = {
    "RS256": RSA_KEY,
    "RS512": RSA_KEY,
    "PS256": RSA_KEY,
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "ES384": ec.generate_private_key(ec.SECP384R1()),
    "ES512": ec.generate_private_key(ec.SECP521R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
NOW_S = int(time.time())
# The tests may run long after this module was imported.
A_DAY_S = 86_400
CLAIMS: dict[str, Any] = {"sub": "ann", "iat": NOW_S, "exp": NOW_S + A_DAY_S}


def public(algorithm: str, **fields: str) -> dict[str, Any]:
    """Return the public key of an algorithm as in a JWKS file."""
    to_jwk: Any = get_default_algorithms()[algorithm].to_jwk
    found = to_jwk(KEYS[algorithm].public_key(), as_dict=True)
    return {name: value for name, value in found.items() if name != "key_ops"} | fields


def validator(*keys: dict[str, Any], **settings: Any) -> TokenValidator:
    return TokenValidator(json.dumps({"keys": keys}).encode(), TokenSettings(**settings))


def signed(algorithm: str = "ES256", key_id: str | None = None, **claims: Any) -> str:
    """Return a token; a claim of None is left out."""
    body = {name: value for name, value in (CLAIMS | claims).items() if value is not None}
    return jwt.encode(body, KEYS[algorithm], algorithm, headers={} if key_id is None else {"kid": key_id})


@pytest.mark.parametrize("algorithm", KEYS)
def test_each_signature_algorithm_is_verified_with_its_key(algorithm: str) -> None:
    token = validator(public(algorithm)).check(signed(algorithm))
    assert (token.name, token.expires_at_ms) == ("ann", (NOW_S + A_DAY_S) * 1_000)
    other = {"ES256": ec.generate_private_key(ec.SECP256R1())}.get(algorithm)
    if other is not None:
        with pytest.raises(InvalidToken, match="InvalidSignatureError"):
            validator(public(algorithm)).check(jwt.encode(CLAIMS, other, algorithm))
    with pytest.raises(InvalidToken):
        validator(public(algorithm)).check(f"{signed(algorithm)[:-6]}AAAAAA")


def test_key_with_an_algorithm_serves_only_that_algorithm() -> None:
    tokens = validator(public("RS256", alg="RS256"))
    assert tokens.check(signed("RS256")).name == "ann"
    with pytest.raises(InvalidToken, match="no key of the JWKS file fits it"):
        tokens.check(signed("RS512"))


def unsigned(algorithm: str, secret: bytes | None) -> str:
    """Return a token without a private key: not signed, or by a secret that everybody knows."""
    header = {"alg": algorithm, "typ": "JWT"}
    parts = [urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, CLAIMS)]
    said = b".".join(parts)
    signature = b"" if secret is None else hmac.digest(secret, said, hashlib.sha256)
    return b".".join([said, urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def test_a_token_signed_with_the_public_key_as_a_secret_is_refused() -> None:
    tokens = validator(public("RS256"))
    key = RSA_KEY.public_key()
    for secret in (
        key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(public("RS256")).encode(),
        b"",
        None,
    ):
        for algorithm in ("HS256", "none", "None"):
            with pytest.raises(InvalidToken):
                tokens.check(unsigned(algorithm, secret))


def test_token_is_verified_with_the_key_it_names() -> None:
    tokens = validator(public("ES256", kid="new"), public("RS256", kid="old"))
    assert tokens.check(signed("ES256", "new")).name == "ann"
    assert tokens.check(signed("RS256", "old")).name == "ann"
    for algorithm, key_id in (("ES256", "old"), ("ES256", "unknown"), ("ES384", "new")):
        with pytest.raises(InvalidToken, match="no key of the JWKS file fits it"):
            tokens.check(signed(algorithm, key_id))
    # A token that names none is of any key.
    assert tokens.check(signed("ES256")).name == "ann"
    several = validator(public("RS256"), other_key(), public("ES256"))
    assert several.check(signed("ES256")).name == "ann"
    with pytest.raises(InvalidToken, match="InvalidSignatureError"):
        validator(public("RS256"), other_key()).check(signed("ES256"))


def other_key() -> dict[str, Any]:
    """Return a public key whose private key signs nothing here."""
    key = ec.generate_private_key(ec.SECP256R1()).public_key()
    to_jwk: Any = get_default_algorithms()["ES256"].to_jwk
    return dict(to_jwk(key, as_dict=True))


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": NOW_S - A_DAY_S}, "ExpiredSignatureError"),
        ({"exp": None}, "MissingRequiredClaimError"),
        ({"iat": None}, "MissingRequiredClaimError"),
        ({"iat": NOW_S + A_DAY_S}, "ImmatureSignatureError"),
        ({"nbf": NOW_S + A_DAY_S}, "ImmatureSignatureError"),
        ({"sub": None}, "its subject is not a name"),
        ({"sub": ""}, "its subject is not a name"),
        ({"sub": "  "}, "its subject is not a name"),
        ({"sub": "\x01"}, "its subject is not a name"),
        ({"sub": ["ann"]}, "its subject is not a name"),
        ({"sub": "a" * 1_025}, "its subject is not a name"),
        ({"scope": 7}, "its scope is neither"),
        ({"scope": ["a", 7]}, "its scope is neither"),
    ],
)
def test_invalid_token_claims_are_rejected(claims: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidToken, match=why):
        validator(public("ES256")).check(signed(**claims))


@pytest.mark.parametrize("subject", ["ann", " ann", "ann ", "\t\x01ann\r\n"])
def test_token_subject_is_trimmed_as_by_kafka(subject: str) -> None:
    """Otherwise two principals would look the same, and the ACLs of one would not hold for the other."""
    assert validator(public("ES256")).check(signed(sub=subject)).name == "ann"
    assert validator(public("ES256")).check(signed(sub="\xa0ann")).name == "\xa0ann"


def test_issuer_and_audience_are_required_if_configured() -> None:
    tokens = validator(public("ES256"), issuer="https://idp", audience=("kafka", "gateway"))
    assert tokens.check(signed(iss="https://idp", aud=["other", "gateway"])).name == "ann"
    for claims in ({"iss": "https://idp"}, {"aud": "kafka"}, {"iss": "https://other", "aud": "kafka"}):
        with pytest.raises(InvalidToken):
            tokens.check(signed(**claims))
    with pytest.raises(InvalidToken):
        tokens.check(signed(iss="https://idp", aud="other"))
    anybodys = validator(public("ES256"))
    assert anybodys.check(signed(iss="https://other", aud="other")).name == "ann"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a JSON Web Key Set"),
        (b"[]", "not a JSON Web Key Set"),
        (b"\xff", "not a JSON Web Key Set"),
        (b'{"keys": 7}', "not a JSON Web Key Set"),
        (b'{"keys": [7]}', "not a JSON Web Key Set"),
        (b'{"keys": []}', "no public key"),
        (b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', "no public key"),
        (b'{"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]}', "not a JSON Web Key Set"),
        (b'{"keys": [{"kty": "EC", "crv": "P-256", "d": "c2VjcmV0"}]}', "private key"),
        (b"[" * 100_000, "not a JSON Web Key Set"),
    ],
)
def test_a_jwks_file_that_cannot_be_used_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(InvalidJwks, match=why):
        TokenValidator(content, TokenSettings())


def test_jwks_keys_not_meant_for_signatures_are_ignored() -> None:
    others = [public("RS256", use="enc"), {"kty": "EC", "crv": "secp256k1"}, {"kty": "new"}]
    tokens = validator(*others, public("ES256"))
    assert tokens.check(signed()).name == "ann"
