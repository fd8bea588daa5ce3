"""Real clients authenticate: each SASL mechanism at one gateway, and client certificates."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaException
from kafka import KafkaConsumer

from gateway.net.server import GatewayOptions
from gateway.security.authentication import MECHANISMS, ClientAuth, ListenerSecurity, SecuritySettings
from gateway.service import serving
from kafka_why.contract.kafka.history import EntryType
from tests.e2e.gateway_clients import ConfluentMember, PythonMember, new_group, share
from tests.e2e.harness import history_of, wait_until
from tests.harness.certificates import Authority, TokenIssuer
from tests.harness.java_tools import JavaTools
from tests.harness.sasl import GivenToken

pytestmark = pytest.mark.e2e

PASSWORD = "s3cret, with=signs"
REAUTHENTICATION_MS = 2_000
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass(frozen=True)
class Identities:
    """The credentials of the gateway's clients: passwords, tokens and certificates."""

    authority: Authority
    issuer: TokenIssuer
    users: Path

    def in_python(self, mechanism: str, name: str, password: str = PASSWORD) -> Mapping[str, Any]:
        """Return kafka-python's settings."""
        settings = {"security_protocol": "SASL_SSL", "ssl_cafile": str(self.authority.certificate)}
        if mechanism == "OAUTHBEARER":
            given: dict[str, Any] = {"sasl_oauth_token_provider": GivenToken(self.issuer.token(name))}
        else:
            given = {"sasl_plain_username": name, "sasl_plain_password": password}
        return {**settings, "sasl_mechanism": mechanism, **given}

    def in_confluent(self, mechanism: str, name: str, password: str = PASSWORD) -> Mapping[str, Any]:
        """Return librdkafka's settings."""
        settings = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(self.authority.certificate)}
        given: dict[str, Any] = {"sasl.username": name, "sasl.password": password}
        if mechanism == "OAUTHBEARER":
            given = {"oauth_cb": lambda _: (self.issuer.token(name), time.time() + 600)}
        return {**settings, "sasl.mechanism": mechanism, **given}

    def in_java(self, mechanism: str, name: str) -> Mapping[str, str]:
        """Return the settings of Kafka's own consumer for SCRAM, with `_` for `.`."""
        login = f'{SCRAM_MODULE} required username="{name}" password="{PASSWORD}";'
        trust = {"ssl_truststore_type": "PEM", "ssl_truststore_location": str(self.authority.certificate)}
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": mechanism,
            "sasl_jaas_config": login,
            **trust,
        }


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> Identities:
    folder = tmp_path_factory.mktemp("identities")
    users = folder / "users"
    users.write_text(f"ann:{PASSWORD}\ncid:{PASSWORD}\n")
    return Identities(Authority(folder), TokenIssuer(folder), users)


@pytest.fixture(scope="module")
def gateway(options: GatewayOptions, identities: Identities) -> Iterator[str]:
    """Yield a gateway that offers every mechanism, and whose sessions expire soon."""
    settings = SecuritySettings(
        keystore=identities.authority.issue("gateway").both,
        users=identities.users,
        jwks=identities.issuer.jwks,
        mechanisms=MECHANISMS,
        max_reauth_ms=REAUTHENTICATION_MS,
    )
    with serving(replace(options, security=ListenerSecurity(settings))) as address:
        yield str(address)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sasl_mechanism_accepts_valid_credentials(
    gateway: str, identities: Identities, topic: str, mechanism: str
) -> None:
    in_python = identities.in_python(mechanism, "ann")
    with closing(KafkaConsumer(bootstrap_servers=gateway, **in_python)) as consumer:
        assert topic in consumer.topics()
    librdkafka = ConfluentConsumer(
        {"bootstrap.servers": gateway, "group.id": "g", **identities.in_confluent(mechanism, "ann")}
    )
    with closing(librdkafka):
        librdkafka.poll(0)  # begins the callback for the token
        assert topic in librdkafka.list_topics(timeout=30).topics


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_mechanism_rejects_bad_credentials(gateway: str, identities: Identities, mechanism: str) -> None:
    """A user that does not exist. tests/unit/gateway/test_sasl.py has wrong passwords, by kafka-python."""
    errors: list[str] = []
    wrong = identities.in_confluent(mechanism, "nobody")
    settings = {"bootstrap.servers": gateway, "group.id": "g", "error_cb": lambda e: errors.append(e.str())}
    librdkafka = ConfluentConsumer({**settings, **wrong})
    with closing(librdkafka):
        wait_until(lambda: librdkafka.poll(0.1) is None and errors != [], "librdkafka's error")
    assert "authentication" in errors[0].lower()


def test_members_reauthenticate_and_history_names_their_principals(
    gateway: str, options: GatewayOptions, identities: Identities, topic: str, tmp_path: Path
) -> None:
    """Their clients authenticate again (KIP-368), so the group does not rebalance."""
    group_id, tools = new_group(), JavaTools(gateway, tmp_path)
    with ExitStack() as stack:
        in_java = identities.in_java("SCRAM-SHA-512", "cid")
        third = stack.enter_context(tools.console_consumer(group_id, topic, **in_java))
        in_python = identities.in_python("SCRAM-SHA-512", "ann")
        first = stack.enter_context(closing(PythonMember(gateway, group_id, topic, settings=in_python)))
        in_confluent = identities.in_confluent("OAUTHBEARER", "bob")
        second = stack.enter_context(
            closing(ConfluentMember(gateway, group_id, topic, settings=in_confluent))
        )
        share(first, second, third)
        until_s = time.monotonic() + 2.5 * REAUTHENTICATION_MS / 1_000
        while time.monotonic() < until_s:
            first.poll()
            second.poll()
        first.commit()
        share(first, second, third)
    history = history_of(options.client_config, options.layout, group_id)
    added = [entry for entry in history if entry.type is EntryType.MEMBER_ADDED]
    assert sorted(str(entry.principal) for entry in added) == ["User:ann", "User:bob", "User:cid"]


def test_client_certificate_identifies_its_client(
    options: GatewayOptions, identities: Identities, topic: str
) -> None:
    authority, group_id = identities.authority, new_group()
    settings = SecuritySettings(
        keystore=authority.issue("gateway").both,
        truststore=authority.certificate,
        client_auth=ClientAuth.REQUIRED,
    )
    ann, bob = authority.issue("ann", organization="Example"), authority.issue("bob")
    ca = str(authority.certificate)
    with ExitStack() as stack:
        address = str(stack.enter_context(serving(replace(options, security=ListenerSecurity(settings)))))
        in_python = {"ssl_cafile": ca, "ssl_certfile": str(ann.chain), "ssl_keyfile": str(ann.key)}
        python_settings = {"security_protocol": "SSL", **in_python}
        first = stack.enter_context(closing(PythonMember(address, group_id, topic, settings=python_settings)))
        in_confluent = {"ssl.certificate.location": str(bob.chain), "ssl.key.location": str(bob.key)}
        confluent_settings = {"security.protocol": "SSL", "ssl.ca.location": ca, **in_confluent}
        second = stack.enter_context(
            closing(ConfluentMember(address, group_id, topic, settings=confluent_settings))
        )
        share(first, second)
        stranger = {"bootstrap.servers": address, "security.protocol": "SSL", "ssl.ca.location": ca}
        librdkafka = stack.enter_context(closing(ConfluentConsumer({**stranger, "group.id": "g"})))
        with pytest.raises(KafkaException):
            librdkafka.list_topics(timeout=3)
    history = history_of(options.client_config, options.layout, group_id)
    added = {entry.principal for entry in history if entry.type is EntryType.MEMBER_ADDED}
    assert added == {"User:CN=ann,O=Example", "User:CN=bob"}
