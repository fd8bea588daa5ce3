"""The client's side of SASL: kafka-python's mechanisms over a raw client."""

from collections.abc import Mapping
from typing import Any

from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.protocol.api_key import ApiKey

from tests.harness.gateway import RawClient

Settings = Mapping[str, Any]


class GivenToken(AbstractTokenProvider):  # type: ignore[misc]
    """A token provider of kafka-python's client."""

    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def by_password(mechanism: str, name: str, password: str) -> Settings:
    """Return kafka-python's settings of PLAIN or SCRAM."""
    return {"sasl_mechanism": mechanism, "sasl_plain_username": name, "sasl_plain_password": password}


def by_token(token: str) -> Settings:
    """Return kafka-python's settings of OAUTHBEARER."""
    return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": GivenToken(token)}


async def authenticate(client: RawClient, settings: Settings, version: int = 2) -> Any:
    """Authenticate with kafka-python's mechanism. Return the last response to SaslAuthenticate, which is an
    error or completes the exchange.
    """
    mechanism = settings["sasl_mechanism"]
    handshake = await client.ask(ApiKey.SaslHandshake, 1, mechanism=mechanism)
    assert (handshake.error_code, mechanism in handshake.mechanisms) == (0, True)
    exchange = get_sasl_mechanism(mechanism)(**{"security_protocol": "SASL_SSL", **settings})
    while True:
        answer = await client.ask(ApiKey.SaslAuthenticate, version, auth_bytes=exchange.auth_bytes())
        if answer.error_code:
            return answer
        exchange.receive(answer.auth_bytes)
        if exchange.is_done():
            assert exchange.is_authenticated()
            return answer
