"""Clients of both libraries at a real broker with TLS and SASL: who may connect, and what others are told."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from cli import main
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.connections.refusals import ClusterRefused
from streaming.service.topics import TopicsError, prepare_topics
from tests.e2e.harness import new_layout
from tests.harness.certificates import Authority, TokenEndpoint, TokenIssuer
from tests.harness.commands import invoke
from tests.harness.secured_broker import ADMIN, TOOLS, SecuredBroker, write_properties

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

SECRET = "k3y-0f-the-house"
# The error follows the attempt that the broker refused. A busy machine needs the later attempts.
FIRST_ATTEMPT_MS = 700
TIMEOUT_MS = 20_000
# The error that comes after the last attempt only, which is the second one and has most of the time.
GUESS_TIMEOUT_MS = 6_000
ATTEMPT_FACTOR = 10


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture(scope="module")
def endpoint(secured: SecuredBroker) -> Iterator[TokenEndpoint]:
    with TokenEndpoint(secured.security.issuer, {ADMIN: SECRET}) as endpoint:
        yield endpoint


def reading(config: ClientConfig) -> Consumer:
    return kafka_clients.answers_consumer(config, max_record_bytes=1_000_000, on_error=lambda _: None)


def use(config: ClientConfig) -> None:
    """Create a topic by kafka-python, write to it and read it by librdkafka."""
    topic = "used"
    with closing(kafka_clients.admin(config)) as admin:
        if topic not in admin.list_topics():
            admin.create_topics({topic: {"num_partitions": 1}}, wait_for_metadata=True)
    producer = kafka_clients.request_producer(config, timeout_ms=20_000, max_request_bytes=1_000_000)
    failed: list[object] = []
    producer.produce(topic, b"value", partition=0, on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(20) == 0
    assert failed == [None]
    with closing(reading(config)) as consumer:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20, cached=False)
        consumer.assign([TopicPartition(topic, 0, end - 1)])
        record = consumer.poll(20)
        assert record is not None
        assert (record.error(), record.value()) == (None, b"value")


Config = Callable[[SecuredBroker, TokenEndpoint, Path], ClientConfig]
GOOD: dict[str, Config] = {
    "PLAIN": lambda broker, _, __: broker.config_of(TOOLS, "PLAIN"),
    "SCRAM-SHA-256": lambda broker, _, __: broker.config_of(TOOLS, "SCRAM-SHA-256"),
    "SCRAM-SHA-512": lambda broker, _, __: broker.config_of(TOOLS, "SCRAM-SHA-512"),
    "certificate": lambda broker, _, __: broker.config_by_certificate("alice"),
    "token endpoint": lambda broker, endpoint, _: broker.config_by_token(endpoint.url, ADMIN, SECRET),
    "token in a file": lambda broker, _, folder: by_token_file(
        broker, folder, broker.security.issuer.token("alice")
    ),
}


@pytest.mark.parametrize("config", GOOD.values(), ids=GOOD)
def test_valid_credentials_are_accepted(
    secured: SecuredBroker, endpoint: TokenEndpoint, tmp_path: Path, config: Config
) -> None:
    use(config(secured, endpoint, tmp_path))


def by_token_file(secured: SecuredBroker, folder: Path, token: str) -> ClientConfig:
    (folder / "token").write_text(token)
    properties = secured.security.token_properties((folder / "token").as_uri(), "", "")
    module = properties["sasl.jaas.config"].split()[0]
    return ClientConfig(secured.bootstrap_servers, properties | {"sasl.jaas.config": f"{module} required;"})


@pytest.fixture(autouse=True)
def short_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_clients, "FIRST_ATTEMPT_MS", FIRST_ATTEMPT_MS)
    monkeypatch.setattr(kafka_clients, "ATTEMPT_FACTOR", ATTEMPT_FACTOR)


def refused(config: ClientConfig, timeout_ms: int = TIMEOUT_MS) -> str:
    with pytest.raises(ClusterRefused) as raised:
        kafka_clients.admin(config, bootstrap_timeout_ms=timeout_ms)
    return str(raised.value)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_wrong_password_is_reported(secured: SecuredBroker, mechanism: str) -> None:
    properties = secured.security.client_properties(TOOLS, mechanism)
    login = properties["sasl.jaas.config"].replace("Passw0rd", SECRET)
    reason = refused(ClientConfig(secured.bootstrap_servers, properties | {"sasl.jaas.config": login}))
    expected = f"the broker at {secured.bootstrap_servers} refuses the login as {TOOLS} by {mechanism}: "
    assert reason.startswith(expected)
    assert SECRET not in reason


def test_commands_report_a_refused_login_without_the_secret(secured: SecuredBroker, tmp_path: Path) -> None:
    properties = secured.security.client_properties(TOOLS, "SCRAM-SHA-512")
    login = properties["sasl.jaas.config"].replace("Passw0rd", SECRET)
    write_properties(tmp_path / "client.properties", properties | {"sasl.jaas.config": login})
    config = ClientConfig.read(tmp_path / "client.properties", secured.bootstrap_servers)
    reason = f"the broker at {config} refuses the login as {TOOLS} by SCRAM-SHA-512: "
    with pytest.raises(TopicsError, match=reason):  # what `run` says
        prepare_topics(config, new_layout())
    arguments = ["--bootstrap-servers", str(config), "--client-config", str(tmp_path / "client.properties")]
    done = invoke(main, ["groups", "list", *arguments])
    assert done.exit_code == 1
    assert reason in done.stderr
    assert SECRET not in done.output


def test_forged_token_is_reported(secured: SecuredBroker, tmp_path: Path) -> None:
    forged = TokenIssuer(tmp_path / "other").token("alice")
    reason = refused(by_token_file(secured, tmp_path, forged))
    assert reason.startswith(f"the broker at {secured.bootstrap_servers} refuses the login by OAUTHBEARER: ")
    assert forged not in reason


def test_refusal_of_the_token_endpoint_is_reported(secured: SecuredBroker, endpoint: TokenEndpoint) -> None:
    assert refused(secured.config_by_token(endpoint.url, ADMIN, "wrong")) == (
        f"the token endpoint {endpoint.url} gives client {ADMIN} no token: it answers 401 invalid_client"
    )


def test_untrusted_broker_is_reported(secured: SecuredBroker, tmp_path: Path) -> None:
    properties = secured.security.client_properties(TOOLS)
    properties["ssl.truststore.location"] = str(Authority(tmp_path, "another").certificate)
    assert refused(ClientConfig(secured.bootstrap_servers, properties)) == (
        f"the certificate of the broker at {secured.bootstrap_servers} is not trusted (ssl.truststore): "
        "unable to get local issuer certificate"
    )


@pytest.mark.parametrize("has_one", [False, True])
def test_missing_trusted_client_certificate_is_reported(
    secured: SecuredBroker, tmp_path: Path, has_one: bool
) -> None:
    config = secured.config_by_certificate("alice")
    properties = {"security.protocol": "SSL", **secured.security.trust()}
    if has_one:
        properties["ssl.keystore.location"] = str(Authority(tmp_path, "another").issue("alice").both)
    reason = refused(ClientConfig(config.bootstrap_servers, properties), GUESS_TIMEOUT_MS)
    # The broker's alert is sometimes lost with the connection.
    expected = (
        "requires a client certificate that it trusts (ssl.keystore)",
        "or a certificate (ssl.keystore)?",
    )
    assert reason.startswith(f"the broker at {config.bootstrap_servers} ")
    assert reason.endswith(expected)


def test_wrong_security_protocol_is_reported(secured: SecuredBroker) -> None:
    servers = secured.bootstrap_servers
    assert refused(ClientConfig(servers), GUESS_TIMEOUT_MS) == (
        f"the broker at {servers} does not speak PLAINTEXT (security.protocol)"
    )
    trusting = ClientConfig(servers, {"security.protocol": "SSL", **secured.security.trust()})
    assert "closes connections by SSL" in refused(trusting, GUESS_TIMEOUT_MS)
    mutual = secured.config_by_certificate(TOOLS)
    login = secured.security.client_properties(TOOLS)
    both = ClientConfig(mutual.bootstrap_servers, dict(mutual.properties) | login)
    assert refused(both) == (
        f"the broker at {mutual.bootstrap_servers} expects no login on this port (security.protocol)"
    )


def test_wrong_password_of_librdkafka_is_refused(secured: SecuredBroker) -> None:
    properties = secured.security.client_properties(TOOLS, "SCRAM-SHA-256")
    login = properties["sasl.jaas.config"].replace("Passw0rd", "wrong")
    config = ClientConfig(secured.bootstrap_servers, properties | {"sasl.jaas.config": login})
    with closing(reading(config)) as consumer, pytest.raises(KafkaException):
        consumer.list_topics(timeout=2)
