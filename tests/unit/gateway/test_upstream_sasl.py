"""The gateway's side of SASL towards a broker, message by message."""

import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest

from gateway.upstream.connections import Sasl, SaslError
from kafka_why.connections.used_settings import ClientConfigError

PASSWORD = "secret"
SALT = b"salt of the user"


def scram() -> Sasl:
    return Sasl(
        {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "ann", "sasl_plain_password": PASSWORD}
    )


def server_first(client_first: bytes, iterations: int = 4096) -> bytes:
    nonce = client_first.rpartition(b"r=")[2]
    return b"r=" + nonce + b"xyz,s=" + base64.b64encode(SALT) + b",i=" + str(iterations).encode()


def server_final(client_first: bytes, first: bytes, client_final: bytes, password: str = PASSWORD) -> bytes:
    """Return the broker's signature. Source: RFC 5802, section 3."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), SALT, 4096)
    signed = b",".join([client_first[3:], first, client_final.rpartition(b",p=")[0]])
    key = hmac.digest(salted, b"Server Key", "sha256")
    return b"v=" + base64.b64encode(hmac.digest(key, signed, "sha256"))


def play(sasl: Sasl, password: str = PASSWORD) -> bool:
    exchange = sasl.begin()
    client_first = exchange.auth_bytes()
    exchange.receive(first := server_first(client_first))
    assert not exchange.is_done()
    exchange.receive(server_final(client_first, first, exchange.auth_bytes(), password))
    return exchange.is_done()


def test_scram_accepts_a_broker_that_signs_with_the_users_credentials() -> None:
    assert play(scram())


def test_scram_refuses_a_broker_that_does_not_have_the_users_credentials() -> None:
    with pytest.raises(SaslError, match="does not prove"):
        play(scram(), password="a guess")


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


def test_a_mechanism_that_the_gateway_does_not_have_is_named() -> None:
    with pytest.raises(ClientConfigError, match="GSSAPI"):
        Sasl({"sasl_mechanism": "GSSAPI"})
