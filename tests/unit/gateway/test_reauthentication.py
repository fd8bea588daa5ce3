"""KIP-368: a session ends unless its client authenticates again in time."""

import base64
import tracemalloc
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_key import ApiKey
from structlog.testing import capture_logs

from gateway.security.authentication import ListenerSecurity, SecuritySettings
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
from gateway.upstream.passthrough import UnreadableUser, user_name_in
from gateway.wire import codec
from gateway.wire.codec import GatewayError
from gateway.wire.framing import trimmed
from kafka_why.contract.messages import ErrorCode
from kafka_why.credentials import Users
from tests.harness.certificates import TokenIssuer
from tests.harness.examples import examples
from tests.harness.gateway import BEAT, HEARTBEAT, GatewayFixture, RawClient, played
from tests.harness.sasl import authenticate, by_password, by_token
from tests.harness.waiting import until
from tests.unit.gateway.test_security import DATA

USERS = DATA / "gateway_users"
HOUR_S = 3_600
FAILED, ILLEGAL_STATE = GatewayError.SASL_AUTHENTICATION_FAILED, GatewayError.ILLEGAL_SASL_STATE
ANN, BOB, WRONG = b"\0ann\0secret", b"\0bob\0secret", b"\0ann\0wrong"


class Hour:
    """A session of ann with an end, and its time in s."""

    def __init__(self) -> None:
        users = Users(["ann:secret", "bob:secret"])

        def begin() -> ServerExchange:
            return PlainExchange(users)

        self.now_s = 0.0
        self.session = ClientSession(
            lambda: {"PLAIN": begin, "OTHER": begin}, max_reauth_ms=HOUR_S * 1_000, clock=lambda: self.now_s
        )
        assert self.again() == ErrorCode.NONE

    def again(self, message: bytes = ANN, mechanism: str = "PLAIN") -> ErrorCode | GatewayError:
        """Return the error of an authentication."""
        begun = self.session.handshake(mechanism)
        if begun is not ErrorCode.NONE:
            return begun
        assert not self.session.is_open, "no other request is served meanwhile"
        return self.session.authenticate(message).error


@pytest.mark.parametrize("at_s", [HOUR_S / 2, HOUR_S * 3.0], ids=["before its end", "after its end"])
def test_a_client_that_authenticates_again_has_a_new_session(at_s: float) -> None:
    hour = Hour()
    hour.now_s = at_s
    assert hour.again() == ErrorCode.NONE
    assert (hour.session.principal, hour.session.failure) == ("User:ann", None)
    hour.now_s = at_s + HOUR_S - 1
    assert hour.session.is_open
    hour.now_s = at_s + HOUR_S
    assert not hour.session.is_open


@pytest.mark.parametrize(
    ("message", "mechanism", "said"),
    [
        (WRONG, "PLAIN", "Authentication failed: Invalid username or password"),
        (BOB, "PLAIN", "Cannot change principals during re-authentication from User:ann to User:bob"),
        (
            ANN,
            "OTHER",
            "SASL mechanism 'OTHER' requested by client is not supported for re-authentication of",
        ),
    ],
)
def test_reauthentication_with_another_user_password_or_mechanism_is_refused(
    message: bytes, mechanism: str, said: str
) -> None:
    hour = Hour()
    assert hour.session.handshake(mechanism) == ErrorCode.NONE
    reply = hour.session.authenticate(message)
    assert reply.error == FAILED
    assert (reply.message or "").startswith(said)
    assert hour.session.principal == "User:ann"
    assert hour.session.failure is not None


def test_session_is_renewed_at_most_once_a_second() -> None:
    """As in Kafka, which answers ILLEGAL_SASL_STATE then and keeps the connection."""
    hour = Hour()
    assert hour.again() == ErrorCode.NONE
    hour.now_s = 0.9
    assert hour.again() == ILLEGAL_STATE
    assert (hour.session.failure, hour.session.is_open) == (None, True)
    hour.now_s = 1.0
    assert hour.again() == ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 1, 2])
@played(security=ListenerSecurity(brokers_authenticate=True))
async def test_broker_session_lifetime_ends_the_client_session_in_every_version(
    world: GatewayFixture, version: int
) -> None:
    """Version 0 has no lifetime in its response, so the gateway asks the broker by version 1."""
    world.broker.answers[ApiKey.SaslHandshake] = {"error_code": 0, "mechanisms": ["PLAIN"]}
    said = {"error_code": 0, "error_message": None, "auth_bytes": b"", "session_lifetime_ms": 300}
    world.broker.answers[ApiKey.SaslAuthenticate] = said
    client = await world.client()
    await client.ask(ApiKey.SaslHandshake, 1, mechanism="PLAIN")
    answer = await client.ask(ApiKey.SaslAuthenticate, version, auth_bytes=ANN)
    assert (answer.error_code, answer.auth_bytes) == (0, b"")
    asked = world.broker.passed[-1]
    assert (asked.api_key, asked.api_version) == (ApiKey.SaslAuthenticate, max(version, 1))
    request = codec.decode_request(asked, world.broker.messages[-1])
    assert (asked.client_id, request.auth_bytes) == ("me", ANN)
    await session_ends(world)
    with capture_logs() as logs:
        await client.send(HEARTBEAT, 4, **BEAT)
        assert await client.is_closed()
    assert logs[0]["why"].startswith("the session ended")


async def session_ends(world: GatewayFixture) -> None:
    """Wait until the session of the newest client has ended."""
    session = world.gateway.connections()[-1]._session
    await until(lambda: session.has_ended)


async def expired(world: GatewayFixture, issuer: TokenIssuer) -> RawClient:
    """Return a client whose session has ended with its token."""
    client = await world.client()
    answer = await authenticate(client, by_token(issuer.token("ann", 1.0)))
    assert 0 <= answer.session_lifetime_ms <= 1_000
    await session_ends(world)
    return client


@pytest.mark.parametrize(("api_key", "version"), [(HEARTBEAT, 4), (ApiKey.ApiVersions, 0)])
@played(security=lambda issuer: ListenerSecurity(SecuritySettings(jwks=issuer.jwks)))
async def test_after_session_expiry_other_requests_close_the_connection(
    world: GatewayFixture, issuer: TokenIssuer, api_key: int, version: int
) -> None:
    client = await expired(world, issuer)
    with capture_logs() as logs:
        await client.send(api_key, version, **(BEAT if api_key == HEARTBEAT else {}))
        assert await client.is_closed()
    assert logs[0]["why"] == "the session ended before the client had authenticated again"
    assert world.core.asked == []


@played(
    security=lambda issuer: ListenerSecurity(
        SecuritySettings(
            users=USERS, jwks=issuer.jwks, max_reauth_ms=100_000, tokens=TokenSettings(clock_skew_s=HOUR_S)
        )
    )
)
async def test_session_ends_at_the_earlier_of_token_expiry_and_setting(
    world: GatewayFixture, issuer: TokenIssuer
) -> None:
    for lifetime_s in (HOUR_S, 1e18):
        answer = await authenticate(await world.client(), by_token(issuer.token("ann", lifetime_s)))
        assert answer.session_lifetime_ms == 100_000
    answer = await authenticate(await world.client(), by_token(issuer.token("ann", 50)))
    assert 0 <= answer.session_lifetime_ms <= 50_000
    # A token that is valid only by the clock's skew is good for no request.
    client = await world.client()
    answer = await authenticate(client, by_token(issuer.token("ann", -600)))
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
    await client.send(HEARTBEAT, 4, **BEAT)
    assert await client.is_closed()


@played(security=ListenerSecurity(SecuritySettings(users=USERS)), unauthenticated_frame_bytes=1_000)
async def test_reauthentication_has_the_size_limit_of_the_first_authentication(world: GatewayFixture) -> None:
    client = await world.client()
    assert (await authenticate(client, by_password("PLAIN", "ann", "secret"))).error_code == 0
    with capture_logs() as logs:
        await client.send(ApiKey.SaslAuthenticate, 2, auth_bytes=bytes(1_000))
        assert await client.is_closed()
    assert logs[0]["why"].startswith("a SASL request of 1")


SASL_USERS = Users(["ann:secret"], derived_mechanisms=["SCRAM-SHA-256"])

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
def tokens(issuer: TokenIssuer) -> TokenValidator:
    return TokenValidator(issuer.jwks.read_bytes(), TokenSettings())


EXCHANGES: dict[str, Callable[[TokenValidator], ServerExchange]] = {
    "PLAIN": lambda _: PlainExchange(SASL_USERS),
    "SCRAM-SHA-256": lambda _: ScramExchange("SCRAM-SHA-256", SASL_USERS),
    "OAUTHBEARER": OAuthBearerExchange,
}


@pytest.mark.parametrize("mechanism", EXCHANGES)
@pytest.mark.examples
@given(messages=st.lists(MESSAGES, min_size=1, max_size=3))
@examples(150)
def test_random_sasl_bytes_neither_raise_nor_authenticate(
    mechanism: str, tokens: TokenValidator, messages: list[bytes]
) -> None:
    session = ClientSession(lambda: {mechanism: lambda: EXCHANGES[mechanism](tokens)})
    assert session.handshake(mechanism) is ErrorCode.NONE
    for message in messages:
        session.authenticate(message)
        if session.failure is not None:
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


@pytest.mark.parametrize(
    ("mechanism", "first"), [("SCRAM-SHA-256", "n,,n={},r=abc"), ("OAUTHBEARER", "n,a={},")]
)
def test_memory_of_a_long_sasl_name_is_linear_in_its_length(
    tokens: TokenValidator, mechanism: str, first: str
) -> None:
    """Not a frame of the regular expression for each character: that is more than 50 bytes."""
    message = first.format("a" * 400_000).encode()
    exchange = EXCHANGES[mechanism](tokens)
    tracemalloc.start()
    try:
        assert isinstance(exchange.evaluate(message), AuthenticationRefused)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(message)
    finally:
        tracemalloc.stop()


def token(**claims: object) -> bytes:
    """Return the first message of OAUTHBEARER with a token that has these claims."""
    parts = [{"alg": "none"}, claims]
    encoded = b".".join(base64.urlsafe_b64encode(msgspec.json.encode(part)).rstrip(b"=") for part in parts)
    return b"n,,\x01auth=Bearer " + encoded + b".\x01\x01"


@pytest.mark.parametrize(
    ("mechanism", "first", "name"),
    [
        ("PLAIN", b"\0ann\0secret", "ann"),
        ("PLAIN", b"ann\0ann\0secret", "ann"),
        ("PLAIN", "\0zoë\0secret".encode(), "zoë"),
        ("SCRAM-SHA-256", b"n,,n=ann,r=abc", "ann"),
        ("SCRAM-SHA-512", b"n,a=ann,n=ann,r=abc,tokenauth=false", "ann"),
        ("SCRAM-SHA-512", b"n,,n=a=2Cb=3Dc,r=abc", "a,b=c"),
        ("SCRAM-SHA-512", b"n,,n=a=3D2C,r=abc", "a=2C"),  # unescaped once only
        ("OAUTHBEARER", token(sub="ann"), "ann"),
        ("OAUTHBEARER", token(sub=" ann\n"), "ann"),
        ("OAUTHBEARER", b"n,a=ann," + token(sub="ann")[3:], "ann"),
        ("OAUTHBEARER", token(sub="ann")[:-1] + b"traceId=1\x01\x01", "ann"),
    ],
)
def test_user_name_is_read_from_forwarded_sasl_message(mechanism: str, first: bytes, name: str) -> None:
    assert user_name_in(mechanism, first) == name


@pytest.mark.parametrize(
    ("mechanism", "first"),
    [
        ("PLAIN", b""),
        ("PLAIN", b"ann"),
        ("PLAIN", b"\0\0secret"),
        ("PLAIN", b"\0\xff\0secret"),
        ("SCRAM-SHA-256", b""),
        ("SCRAM-SHA-256", b"n,,n=,r=abc"),
        ("SCRAM-SHA-256", b"n,,m=later,n=ann,r=abc"),
        ("SCRAM-SHA-256", b"n,,n=\xff,r=abc"),
        ("OAUTHBEARER", b"\x01"),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer abc\x01\x01"),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer a.b.c\x01\x01"),
        ("OAUTHBEARER", token(name="ann")),
        ("OAUTHBEARER", token(sub=7)),
        ("OAUTHBEARER", token(sub="")),
        ("OAUTHBEARER", token(sub=" \x01")),
        ("OAUTHBEARER", token(sub="ann").replace(b"Bearer", b"Basic")),
        # The broker's pattern for a=... allows control characters, but no second "=".
        ("OAUTHBEARER", b"n,a=x\x01y," + token(sub="ann")[3:]),
    ],
)
def test_forwarded_sasl_message_without_a_user_name_is_refused(mechanism: str, first: bytes) -> None:
    with pytest.raises(UnreadableUser):
        user_name_in(mechanism, first)


def test_delegation_token_is_refused_because_the_message_lacks_its_owner() -> None:
    with pytest.raises(UnreadableUser, match="owner"):
        user_name_in("SCRAM-SHA-256", b"n,,n=token-id,r=abc,tokenauth=true")
