"""KIP-368: a session ends, and goes on if its client authenticates again in time."""

from pathlib import Path

import pytest
from kafka.protocol.api_key import ApiKey
from structlog.testing import capture_logs

from gateway.security.authentication import ListenerSecurity, SecuritySettings
from gateway.security.mechanisms import PlainExchange, ServerExchange, TokenSettings
from gateway.security.session import ClientSession
from gateway.wire import codec
from gateway.wire.codec import GatewayError
from kafka_why.contract.messages import ErrorCode
from kafka_why.credentials import Users
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.gateway_requests import BEAT, HEARTBEAT
from tests.harness.sasl import authenticate, by_password, by_token
from tests.harness.tokens import TokenIssuer
from tests.harness.waiting import until

USERS = Path(__file__).parents[2] / "data" / "gateway_users"
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
        return begun if begun is not ErrorCode.NONE else self.session.authenticate(message).error


@pytest.mark.parametrize("at_s", [HOUR_S / 2, HOUR_S * 3.0], ids=["before its end", "after its end"])
def test_a_client_that_authenticates_again_has_a_new_session(at_s: float) -> None:
    hour = Hour()
    hour.now_s = at_s
    assert hour.again() == ErrorCode.NONE
    assert (hour.session.principal, hour.session.failed) == ("User:ann", None)
    hour.now_s = at_s + HOUR_S - 1
    assert hour.session.is_open
    hour.now_s = at_s + HOUR_S
    assert not hour.session.is_open


def test_no_other_request_is_served_during_reauthentication() -> None:
    hour = Hour()
    assert hour.session.handshake("PLAIN") == ErrorCode.NONE
    assert not hour.session.is_open
    assert hour.session.authenticate(ANN).error == ErrorCode.NONE
    assert hour.session.is_open


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
    assert hour.session.failed is not None


def test_session_is_renewed_at_most_once_a_second() -> None:
    """As in Kafka, which answers ILLEGAL_SASL_STATE then and keeps the connection."""
    hour = Hour()
    assert hour.again() == ErrorCode.NONE
    hour.now_s = 0.9
    assert hour.again() == ILLEGAL_STATE
    assert (hour.session.failed, hour.session.is_open) == (None, True)
    hour.now_s = 1.0
    assert hour.again() == ErrorCode.NONE


@pytest.mark.parametrize("version", [0, 1, 2])
@played(security=ListenerSecurity(by_broker=True))
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


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> TokenIssuer:
    return TokenIssuer(tmp_path_factory.mktemp("tokens"))


def by_tokens(issuer: TokenIssuer) -> ListenerSecurity:
    return ListenerSecurity(SecuritySettings(jwks=issuer.jwks))


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
@played(security=lambda issuer: by_tokens(issuer))
async def test_after_session_expiry_other_requests_close_the_connection(
    world: GatewayFixture, issuer: TokenIssuer, api_key: int, version: int
) -> None:
    client = await expired(world, issuer)
    with capture_logs() as logs:
        await client.send(api_key, version, **(BEAT if api_key == HEARTBEAT else {}))
        assert await client.is_closed()
    assert logs[0]["why"] == "the session ended before the client had authenticated again"
    assert world.core.asked == []


def test_session_ends_at_the_earlier_of_token_expiry_and_setting(issuer: TokenIssuer) -> None:
    tokens = TokenSettings(clock_skew_s=HOUR_S)
    settings = SecuritySettings(users=USERS, jwks=issuer.jwks, max_reauth_ms=100_000, tokens=tokens)

    @played(security=ListenerSecurity(settings))
    async def play(world: GatewayFixture) -> None:
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

    play()


@played(security=ListenerSecurity(SecuritySettings(users=USERS)), unauthenticated_frame_bytes=1_000)
async def test_reauthentication_has_the_size_limit_of_the_first_authentication(world: GatewayFixture) -> None:
    client = await world.client()
    assert (await authenticate(client, by_password("PLAIN", "ann", "secret"))).error_code == 0
    with capture_logs() as logs:
        await client.send(ApiKey.SaslAuthenticate, 2, auth_bytes=bytes(1_000))
        assert await client.is_closed()
    assert logs[0]["why"].startswith("a SASL request of 1")
