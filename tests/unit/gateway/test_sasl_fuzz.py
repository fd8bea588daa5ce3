"""Whatever bytes a client sends, an exchange raises nothing and lets nobody in."""

import tracemalloc
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.security.mechanisms import (
    AuthenticationAccepted,
    AuthenticationRefused,
    OAuthBearerExchange,
    PlainExchange,
    ScramExchange,
    ServerExchange,
    TokenSettings,
    TokenValidator,
)
from gateway.security.session import ClientSession
from gateway.wire.framing import trimmed
from kafka_why.contract.messages import ErrorCode
from kafka_why.credentials import Users
from tests.harness.examples import examples
from tests.harness.tokens import TokenIssuer

USERS = Users(["ann:secret"], derived=["SCRAM-SHA-256"])
EXCHANGES = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")

NAMES = st.sampled_from(["ann", "bob", "", "=2C", "=3D", "ż", "a" * 2_000])
BASE64 = st.sampled_from(["", "AAAA", "biws", "A", "=", "####", "A" * 43 + "="]) | st.binary(max_size=40).map(
    lambda data: b64encode(data).decode()
)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SCRAM_FIRST = st.builds(
    "{}n={},r={}{}".format,
    st.sampled_from(["n,,", "y,,", "n,a=ann,", "n,a=bob,", "p=x,,", ""]),
    NAMES,
    st.sampled_from(["abc", "", ",", "ż"]) | st.text(max_size=8),
    st.sampled_from(["", ",tokenauth=true", ",ext=1", ",=", ",a"]),
)
SCRAM_LAST = st.builds("c={},r={},p={}".format, BASE64, st.sampled_from(["abc", "{nonce}", ""]), BASE64)
TOKENS = st.builds("{}.{}.{}".format, BASE64, BASE64, BASE64) | st.text(max_size=30)
OAUTH = st.builds(
    "{}\x01{}={} {}\x01{}\x01".format,
    st.sampled_from(["n,,", "n,a=ann,", "y,,", ""]),
    st.sampled_from(["auth", "other", ""]),
    st.sampled_from(["Bearer", "bearer", "Basic", ""]),
    TOKENS,
    st.sampled_from(["", "k=v\x01", "k\x01", "auth=Bearer x\x01"]),
)
MESSAGES = st.one_of(
    st.binary(max_size=60), *(texts.map(str.encode) for texts in (SCRAM_FIRST, SCRAM_LAST, OAUTH))
)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> TokenIssuer:
    return TokenIssuer(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="module")
def tokens(issuer: TokenIssuer) -> TokenValidator:
    return TokenValidator(issuer.jwks.read_bytes(), TokenSettings())


def exchange_of(mechanism: str, tokens: TokenValidator) -> ServerExchange:
    if mechanism == "OAUTHBEARER":
        return OAuthBearerExchange(tokens)
    return PlainExchange(USERS) if mechanism == "PLAIN" else ScramExchange(mechanism, USERS)


@pytest.mark.parametrize("mechanism", EXCHANGES)
@pytest.mark.examples
@given(messages=st.lists(MESSAGES, min_size=1, max_size=3))
@examples(150)
def test_random_sasl_bytes_neither_raise_nor_authenticate(
    mechanism: str, tokens: TokenValidator, messages: list[bytes]
) -> None:
    session = ClientSession(lambda: {mechanism: lambda: exchange_of(mechanism, tokens)})
    assert session.handshake(mechanism) is ErrorCode.NONE
    for message in messages:
        session.authenticate(message)
        if session.failed is not None:
            break
    assert not session.is_open


@pytest.mark.examples
@given(claims=st.dictionaries(st.sampled_from(["sub", "exp", "iat", "nbf", "aud", "iss", "scope"]), JSON))
@examples(100)
def test_random_claims_of_a_signed_token_never_raise(
    issuer: TokenIssuer, tokens: TokenValidator, claims: dict[str, Any]
) -> None:
    token = issuer.token("ann", **claims)
    message = b"n,,\x01auth=Bearer %s\x01\x01" % token.encode()
    outcome = OAuthBearerExchange(tokens).evaluate(message)
    if isinstance(outcome, AuthenticationAccepted):
        assert outcome.name == trimmed(claims.get("sub", "ann"))
        assert outcome.expires_at_ms is not None


def test_valid_credentials_are_accepted(issuer: TokenIssuer, tokens: TokenValidator) -> None:
    """So the properties above do not hold because nobody ever is."""
    plain = PlainExchange(USERS).evaluate(b"\0ann\0secret")
    by_token = OAuthBearerExchange(tokens).evaluate(
        b"n,,\x01auth=Bearer %s\x01\x01" % issuer.token("ann").encode()
    )
    for outcome in (plain, by_token):
        assert isinstance(outcome, AuthenticationAccepted) and outcome.name == "ann"
    assert isinstance(PlainExchange(USERS).evaluate(b"\0ann\0secret\0"), AuthenticationRefused)


@pytest.mark.parametrize(
    ("mechanism", "first"), [("SCRAM-SHA-256", "n,,n={},r=abc"), ("OAUTHBEARER", "n,a={},")]
)
def test_memory_of_a_long_sasl_name_is_linear_in_its_length(
    tokens: TokenValidator, mechanism: str, first: str
) -> None:
    """Not a frame of the regular expression for each character: that is more than 50 bytes."""
    message = first.format("a" * 400_000).encode()
    is_scram = mechanism.startswith("SCRAM-")
    exchange: ServerExchange = ScramExchange(mechanism, USERS) if is_scram else OAuthBearerExchange(tokens)
    tracemalloc.start()
    try:
        assert isinstance(exchange.evaluate(message), AuthenticationRefused)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(message)
    finally:
        tracemalloc.stop()
