"""SASL at the gateway and towards a broker, and the users file."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kafka.protocol.api_key import ApiKey
from structlog.testing import capture_logs

from cli.gateway import gateway_user
from gateway.security.authentication import MECHANISMS, ListenerSecurity, SecuritySettings
from gateway.security.mechanisms import TokenSettings
from gateway.upstream.connections import Sasl, SaslError
from kafka_why.connections.used_settings import ClientConfigError
from kafka_why.credentials import InvalidEntry, ScramCredential, Users
from tests.harness.certificates import TokenIssuer
from tests.harness.gateway import BEAT, HEARTBEAT, GatewayFixture, RawClient, played
from tests.harness.sasl import authenticate, by_password, by_token

SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
FAILED = 58


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
async def test_one_listener_offers_all_sasl_mechanisms(
    world: GatewayFixture, users: Path, issuer: TokenIssuer
) -> None:
    ways = [by_password(name, "ann", "secret") for name in ("PLAIN", *SCRAM)]
    for settings in [*ways, by_token(issuer.token("ann"))]:
        client = await world.client()
        assert (await authenticate(client, settings)).error_code == 0
        assert await served(client)
    assert {request.principal for request in world.core.asked} == {"User:ann"}


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


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ("PLAIN", b""),
        ("PLAIN", b"\0ann"),
        ("PLAIN", b"\0\0"),
        ("PLAIN", b"\0\xff\0\xff"),
        ("PLAIN", b"bob\0ann\0secret"),
        ("PLAIN", b"\0ann\0secret\0"),
        ("SCRAM-SHA-256", b""),
        ("SCRAM-SHA-256", b"y,,n=ann,r=abc"),
        ("SCRAM-SHA-256", b"p=tls-unique,,n=ann,r=abc"),
        ("SCRAM-SHA-256", b"n,a=bob,n=ann,r=abc"),
        ("SCRAM-SHA-256", b"n,,n=ann,r=abc,tokenauth=true"),
        ("SCRAM-SHA-256", b"n,,m=ext,n=ann,r=abc"),
        ("SCRAM-SHA-256", b"n,,n=,r=abc"),
        ("SCRAM-SHA-256", b"n,,n=an=n,r=abc"),
        ("SCRAM-SHA-256", b"n,,n=ann,r="),
        ("SCRAM-SHA-256", "n,,n=żółć,r=abc".encode()),
        ("SCRAM-SHA-256", b"n,,n=%s,r=abc" % (b"a" * 2_000)),
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
async def test_malformed_final_scram_message_is_refused(
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
async def test_invalid_token_gets_a_status_then_an_error(world: GatewayFixture, issuer: TokenIssuer) -> None:
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


KEY = base64.b64encode(bytes(32)).decode()
# RFC 7677, section 3: user `user` with the password `pencil`.
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
STORED = "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
SERVER = "wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="


def test_password_is_the_rest_of_the_line_after_the_first_colon() -> None:
    users = Users(["# people", "", "ann:sec:ret", "bob: zażółć ", "eve:a SCRAM-SHA-256"])
    assert users.has_password("ann", b"sec:ret")
    assert users.has_password("bob", " zażółć ".encode())
    assert users.has_password("eve", b"a SCRAM-SHA-256")
    assert users.mechanisms == ("PLAIN",)
    for name, password in (("ann", b""), ("ann", b"sec"), ("nobody", b""), ("nobody", b"sec:ret"), ("", b"")):
        assert not users.has_password(name, password)


def test_scram_entry_equals_what_kafka_stores() -> None:
    text = f"salt={SALT},stored_key={STORED},server_key={SERVER},iterations=4096"
    users = Users([f"user:SCRAM-SHA-256=[{text}]", "user:pencil"])
    credential, is_known = users.credential("SCRAM-SHA-256", "user")
    assert is_known
    assert credential.entry("SCRAM-SHA-256") == f"SCRAM-SHA-256=[{text}]"
    assert users.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    for secret in (SALT, STORED, SERVER, "pencil"):
        assert secret not in repr(credential) + repr(users)


@pytest.mark.parametrize("options", [[], ["--mechanism", "SCRAM-SHA-256", "--iterations", "16384"]])
def test_gateway_user_command_writes_a_scram_entry(options: list[str]) -> None:
    made = [CliRunner().invoke(gateway_user, ["ann", *options], input="pencil\r\nx\n") for _ in range(2)]
    assert {one.exit_code for one in made} == {0}
    assert made[0].output != made[1].output, "each entry has a salt of its own"
    (mechanism,) = Users(made[0].output.splitlines()).mechanisms
    assert mechanism == (options[1] if options else "SCRAM-SHA-512")
    assert "pencil" not in made[0].output


@pytest.mark.parametrize("name", ["", "a:b", "#ann", "a\nb"])
def test_gateway_user_command_refuses_a_name_that_does_not_fit_a_line(name: str) -> None:
    done = CliRunner().invoke(gateway_user, [name], input="secret\n")
    assert done.exit_code == 1
    assert done.output.startswith("Error: a name ")


def test_gateway_user_command_needs_a_password() -> None:
    done = CliRunner().invoke(gateway_user, ["ann"], input="\n")
    assert (done.exit_code, done.output) == (1, "Error: the standard input has no password\n")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("", "has salt, stored_key, server_key, iterations"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY}", "has salt, stored_key"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations=1,x=1", "has salt, stored_key"),
        (f"salt=#,stored_key={KEY},server_key={KEY},iterations=4096", "have to be base64"),
        (f"salt=ż,stored_key={KEY},server_key={KEY},iterations=4096", "have to be base64"),
        (f"salt=,stored_key={KEY},server_key={KEY},iterations=4096", "has the wrong size"),
        (f"salt={SALT},stored_key={SALT},server_key={KEY},iterations=4096", "has the wrong size"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations=4095", "4096 to 16384"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations=16385", "4096 to 16384"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations={'9' * 5000}", "4096 to 16384"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations=-1", "4096 to 16384"),
        (f"salt={SALT},stored_key={KEY},server_key={KEY},iterations=٤٠٩٦", "4096 to 16384"),
    ],
)
def test_unusable_entry_is_reported_with_its_line_number(fields: str, why: str) -> None:
    with pytest.raises(InvalidEntry, match=f"line 2: .*{why}") as refused:
        Users(["ann:secret", f"bob:SCRAM-SHA-256=[{fields}]"])
    assert SALT not in str(refused.value)


@pytest.mark.parametrize("damaged", ["{} ", " {}", "{}\r", "{}x"])
def test_damaged_scram_entry_is_not_taken_for_a_password(damaged: str) -> None:
    """Whoever can read the file could use it as one."""
    entry = ScramCredential.of("SCRAM-SHA-256", "x").entry("SCRAM-SHA-256")
    for one in (damaged.format(entry), entry.lower(), entry[:-1], "SCRAM-SHA-256"):
        with pytest.raises(InvalidEntry, match="line 1: a malformed SCRAM entry") as refused:
            Users([f"ann:{one}"])
        assert "stored_key" not in str(refused.value)


@pytest.mark.parametrize(
    "lines",
    [
        ["ann"],
        ["ann:"],
        [":secret"],
        ["ann:secret", "ann:other"],
        [f"ann:{ScramCredential.of('SCRAM-SHA-512', 'x').entry('SCRAM-SHA-512')}"] * 2,
    ],
)
def test_invalid_lines_of_a_users_file_are_refused(lines: list[str]) -> None:
    with pytest.raises(InvalidEntry, match=f"line {len(lines)}: ") as refused:
        Users(lines)
    assert "secret" not in str(refused.value) and "other" not in str(refused.value)


PASSWORD = "secret"
SALT_TEXT = b"salt of the user"


def scram() -> Sasl:
    return Sasl(
        {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "ann", "sasl_plain_password": PASSWORD}
    )


def server_first(client_first: bytes, iterations: int = 4096) -> bytes:
    nonce = client_first.rpartition(b"r=")[2]
    return b"r=" + nonce + b"xyz,s=" + base64.b64encode(SALT_TEXT) + b",i=" + str(iterations).encode()


def test_scram_refuses_a_broker_that_does_not_have_the_users_credentials() -> None:
    exchange = scram().begin()
    exchange.receive(server_first(exchange.auth_bytes()))
    assert exchange.auth_bytes() and not exchange.is_done()
    with pytest.raises(SaslError, match="does not prove"):
        exchange.receive(b"v=" + base64.b64encode(bytes(32)))


def test_scram_refuses_fewer_iterations_than_kafka_stores() -> None:
    exchange = scram().begin()
    with pytest.raises(SaslError, match="4095 iterations"):
        exchange.receive(server_first(exchange.auth_bytes(), iterations=4095))


@pytest.mark.parametrize(
    "answer",
    [
        lambda first: b"",
        lambda first: b"r=other,s=c2FsdA==,i=4096",
        lambda first: server_first(first).replace(b"i=4096", b"i=x"),
        lambda first: server_first(first).replace(b",i=4096", b""),
        lambda first: server_first(first, iterations=1_000_001),  # all clients would wait for their end
        lambda first: b"\xff",
    ],
)
def test_scram_refuses_a_malformed_answer(answer: Callable[[bytes], bytes]) -> None:
    exchange = scram().begin()
    with pytest.raises(SaslError, match="malformed"):
        exchange.receive(answer(exchange.auth_bytes()))


def test_scram_repr_and_message_show_no_password() -> None:
    assert PASSWORD not in repr(scram())
    assert PASSWORD not in repr(scram().begin())


def test_unsupported_mechanism_is_named_in_the_error() -> None:
    with pytest.raises(ClientConfigError, match="GSSAPI"):
        Sasl({"sasl_mechanism": "GSSAPI"})
