"""SASL with several mechanisms at once, by the mechanisms of kafka-python's client."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kafka.protocol.api_key import ApiKey
from structlog.testing import capture_logs

from cli.gateway import gateway_user
from gateway.security.authentication import MECHANISMS, ListenerSecurity, SecuritySettings
from gateway.security.mechanisms import TokenSettings
from tests.harness.gateway import GatewayFixture, RawClient, played
from tests.harness.gateway_requests import BEAT, HEARTBEAT
from tests.harness.sasl import authenticate, by_password, by_token
from tests.harness.tokens import TokenIssuer

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
FAILED, UNSUPPORTED = 58, 33


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> TokenIssuer:
    return TokenIssuer(tmp_path_factory.mktemp("tokens"))


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text("ann:secret\n")
    return path


def secured(users: Path | None, **given: Any) -> ListenerSecurity:
    return ListenerSecurity(SecuritySettings(users=users, **given))


async def served(client: RawClient) -> bool:
    return bool((await client.ask(HEARTBEAT, 4, **BEAT)).error_code == 25)


def salted(users: Path, password: str, *options: str) -> Path:
    """Return the file with bob's password, and the line of `group-coordinator gateway-user` for ann."""
    done = CliRunner().invoke(gateway_user, ["ann", *options], input=f"{password}\n")
    assert done.exit_code == 0, done.output
    users.write_text(f"bob:secret\n{done.output}")
    return users


@played(security=lambda users, issuer: secured(users, jwks=issuer.jwks, mechanisms=MECHANISMS))
async def test_one_listener_offers_all_mechanisms(
    world: GatewayFixture, users: Path, issuer: TokenIssuer
) -> None:
    ways = [by_password(name, "ann", "secret") for name in ("PLAIN", *SCRAM)]
    for settings in [*ways, by_token(issuer.token("ann"))]:
        client = await world.client()
        assert (await authenticate(client, settings)).error_code == 0
        assert await served(client)
    assert {request.principal for request in world.core.asked} == {"User:ann"}
    refused = await (await world.client()).ask(ApiKey.SaslHandshake, 1, mechanism="GSSAPI")
    assert (refused.error_code, refused.mechanisms) == (UNSUPPORTED, list(MECHANISMS))


@pytest.mark.parametrize("mechanism", SCRAM)
@played(
    security=lambda users, mechanism: secured(
        salted(users, "pa:ss=wo,rd", "--mechanism", mechanism), mechanisms=("PLAIN", *SCRAM)
    )
)
async def test_scram_entry_serves_only_its_own_mechanism(
    world: GatewayFixture, users: Path, mechanism: str
) -> None:
    answer = await authenticate(await world.client(), by_password(mechanism, "ann", "pa:ss=wo,rd"))
    assert answer.error_code == 0
    for other in {"PLAIN", *SCRAM} - {mechanism}:
        answer = await authenticate(await world.client(), by_password(other, "ann", "pa:ss=wo,rd"))
        assert answer.error_code == FAILED


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
@played(security=lambda users, mechanism: secured(users, mechanisms=(mechanism,)))
async def test_an_unknown_user_and_a_wrong_password_get_the_same_answer(
    world: GatewayFixture, users: Path, mechanism: str
) -> None:
    answers = []
    with capture_logs() as logs:
        for name, password in (("ann", "wrong"), ("nobody", "secret"), ("nobody", "")):
            client = await world.client()
            answers.append(await authenticate(client, by_password(mechanism, name, password)))
            assert await client.is_closed()
    assert "authentication of user" in logs[0]["why"]  # lines are limited to one a second
    assert "secret" not in str(logs) + str(answers)
    assert {(answer.error_code, answer.error_message) for answer in answers} == {
        (FAILED, answers[0].error_message)
    }


@played(security=lambda users: secured(salted(users, "secret", "--iterations", "5000")))
async def test_unknown_scram_user_gets_a_salt_like_a_known_one(world: GatewayFixture, users: Path) -> None:
    """The same one at each attempt, with the iterations of the others."""
    seen: dict[str, set[tuple[int, str]]] = {"ann": set(), "nobody": set()}
    for name, replies in seen.items():
        for _ in range(2):
            client = await world.client()
            await client.ask(ApiKey.SaslHandshake, 1, mechanism="SCRAM-SHA-512")
            first = await client.ask(ApiKey.SaslAuthenticate, 2, auth_bytes=b"n,,n=%s,r=abc" % name.encode())
            assert first.error_code == 0
            nonce, salt, iterations = first.auth_bytes.decode().split(",")
            assert nonce.startswith("r=abc")
            replies.add((len(salt), f"{salt} {iterations}"))
    (known,), (unknown,) = seen.values()
    assert known[0] == unknown[0]
    assert known[1].endswith(" i=5000") and unknown[1].endswith(" i=5000")


def scram_first(text: bytes) -> tuple[str, bytes]:
    return "SCRAM-SHA-256", text


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ("PLAIN", b""),
        ("PLAIN", b"\0ann"),
        ("PLAIN", b"\0\0"),
        ("PLAIN", b"\0\xff\0\xff"),
        ("PLAIN", b"bob\0ann\0secret"),
        scram_first(b""),
        scram_first(b"y,,n=ann,r=abc"),
        scram_first(b"p=tls-unique,,n=ann,r=abc"),
        scram_first(b"n,a=bob,n=ann,r=abc"),
        scram_first(b"n,,n=ann,r=abc,tokenauth=true"),
        scram_first(b"n,,m=ext,n=ann,r=abc"),
        scram_first(b"n,,n=,r=abc"),
        scram_first(b"n,,n=an=n,r=abc"),
        scram_first(b"n,,n=ann,r="),
        scram_first("n,,n=żółć,r=abc".encode()),
        scram_first(b"n,,n=%s,r=abc" % (b"a" * 2_000)),
        ("OAUTHBEARER", b""),
        ("OAUTHBEARER", b"\x01"),
        ("OAUTHBEARER", b"n,,\x01\x01"),
        ("OAUTHBEARER", b"n,,\x01auth=Basic abc\x01\x01"),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer a b\x01\x01"),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer \xff\x01\x01"),
    ],
)
@played(security=lambda users, issuer: secured(users, jwks=issuer.jwks, mechanisms=MECHANISMS))
async def test_malformed_sasl_message_is_refused(
    world: GatewayFixture, users: Path, issuer: TokenIssuer, mechanism: str, message: bytes
) -> None:
    client = await world.client()
    await client.ask(ApiKey.SaslHandshake, 1, mechanism=mechanism)
    assert (await client.ask(ApiKey.SaslAuthenticate, 2, auth_bytes=message)).error_code == FAILED
    assert await client.is_closed()


@pytest.mark.parametrize(
    "last",
    [
        b"c=biws,r=%s,p=",
        b"c=biws,r=%s",
        b"c=biws,r=%s,p=####",
        b"c=biws,r=%s,p=AAA",
        b"c=eSws,r=%s,p=AAAA",
        b"c=biws,r=abc,p=AAAA",
        b"c=biws,r=%s,p=" + b"A" * 43 + b"=",
    ],
)
@played(security=lambda users: secured(users, mechanisms=("SCRAM-SHA-256",)))
async def test_final_scram_message_without_proof_is_refused(
    world: GatewayFixture, users: Path, last: bytes
) -> None:
    client = await world.client()
    await client.ask(ApiKey.SaslHandshake, 1, mechanism="SCRAM-SHA-256")
    first = await client.ask(ApiKey.SaslAuthenticate, 2, auth_bytes=b"n,,n=ann,r=abc")
    nonce = first.auth_bytes.split(b",")[0][2:]
    message = last.replace(b"%s", nonce)
    assert (await client.ask(ApiKey.SaslAuthenticate, 2, auth_bytes=message)).error_code == FAILED
    assert await client.is_closed()


@played(security=lambda issuer: secured(None, jwks=issuer.jwks))
async def test_invalid_token_gets_its_status_and_an_error(world: GatewayFixture, issuer: TokenIssuer) -> None:
    client = await world.client()
    await client.ask(ApiKey.SaslHandshake, 1, mechanism="OAUTHBEARER")
    expired = b"n,,\x01auth=Bearer %s\x01\x01" % issuer.token("ann", -3_600).encode()
    first = await client.ask(ApiKey.SaslAuthenticate, 2, auth_bytes=expired)
    assert (first.error_code, first.auth_bytes) == (0, b'{"status":"invalid_token"}')
    with capture_logs() as logs:
        last = await client.ask(ApiKey.SaslAuthenticate, 2, auth_bytes=b"\x01")
        assert (last.error_code, last.error_message) == (FAILED, '{"status":"invalid_token"}')
        assert await client.is_closed()
    assert logs[0]["why"] == "the token is not valid: ExpiredSignatureError"
    assert expired.decode() not in str(logs)


@played(security=lambda issuer: secured(None, jwks=issuer.jwks, tokens=TokenSettings(sub_claim_name="user")))
async def test_token_authenticates_only_its_own_user(world: GatewayFixture, issuer: TokenIssuer) -> None:
    token = issuer.token("nobody", user="ann").encode()
    for acts_as, code in ((b"", 0), (b"a=ann", 0), (b"a=bob", FAILED)):
        client = await world.client()
        await client.ask(ApiKey.SaslHandshake, 1, mechanism="OAUTHBEARER")
        message = b"n,%s,\x01auth=bEaReR  %s\x01traceId=7\x01\x01" % (acts_as, token)
        assert (await client.ask(ApiKey.SaslAuthenticate, 2, auth_bytes=message)).error_code == code
    client = await world.client()
    assert (await authenticate(client, by_token(token.decode()))).error_code == 0
    await served(client)
    assert world.core.asked[-1].principal == "User:ann"
