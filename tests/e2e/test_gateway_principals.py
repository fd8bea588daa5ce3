"""The principal that a secured broker sees: the gateway's own, or the client's. Each user may describe one
topic only, so the topics that a client sees identify its principal.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.protocol.api_key import ApiKey

from gateway.net.server import Gateway, GatewayOptions
from gateway.security.authentication import ListenerSecurity
from gateway.upstream import connections
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import Address, UpstreamLost
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from tests.e2e.harness import wait_until
from tests.harness.certificates import Authority
from tests.harness.gateway import BEAT, HEARTBEAT, CoreBackend, RawClient
from tests.harness.raw_client import connected
from tests.harness.sasl import authenticate
from tests.harness.secured_broker import ADMIN, GATEWAY, ClusterSecurity, SecuredBroker
from tests.harness.waiting import WAIT_TIMEOUT_S

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

HOST = "127.0.0.1"
UNKNOWN_MEMBER_ID = 25
PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# A machine that stands still for half of it fails no test.
LIFETIME_S = 4.0
TOPICS = {GATEWAY: "gateways", "alice": "alices", "bob": "bobs"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """Yield a broker where each user of TOPICS may use one topic. Sessions by PLAIN end."""
    folder = tmp_path_factory.mktemp("secured")
    security = ClusterSecurity(folder / "security", authorizes=True)
    lifetime = {"listener.name.client.plain.connections.max.reauth.ms": str(int(LIFETIME_S * 1000))}
    with SecuredBroker(folder, security, overrides=lifetime) as broker:
        with closing(kafka_clients.admin(broker.config_of(ADMIN))) as admin:
            options = {"num_partitions": 1, "replication_factor": 1}
            admin.create_topics(dict.fromkeys(TOPICS.values(), options), wait_for_metadata=True)
            allow = ACLPermissionType.ALLOW
            admin.create_acls(
                [
                    ACL(f"User:{user}", "*", operation, allow, ResourcePattern(ResourceType.TOPIC, topic))
                    for user, topic in TOPICS.items()
                    for operation in (ACLOperation.READ, ACLOperation.WRITE)
                ]
            )
        for user, topic in TOPICS.items():
            # The broker answers before its authorizer has the ACLs.
            with closing(kafka_clients.admin(broker.config_of(user))) as one:
                wait_until(partial(_sees, one, topic), f"the right of {user}")
        yield broker


def _sees(admin: KafkaAdminClient, topic: str) -> bool:
    return topic in admin.list_topics()


@asynccontextmanager
async def gateway_at(
    config: ClientConfig, *, brokers_authenticate: bool = False
) -> AsyncIterator[tuple[Gateway, CoreBackend]]:
    """Yield a gateway in front of a real broker and the coordinator's pure core."""
    core, security = (
        CoreBackend(),
        ListenerSecurity.read(None, None, None, brokers_authenticate=brokers_authenticate),
    )
    options = GatewayOptions(config, TopicLayout.named(), Address(HOST, 0), security=security)
    gateway = Gateway(options, Cluster.of(config, options.limits), core, core)
    try:
        await gateway.start()
        yield gateway, core
    finally:
        await gateway.close()


async def topics_of(client: RawClient) -> set[str]:
    answer = await client.ask(ApiKey.Metadata, 12, topics=None, allow_auto_topic_creation=False)
    return {topic.name for topic in answer.topics}


def login_of(broker: SecuredBroker, user: str, mechanism: str, folder: Path) -> ClientConfig:
    """Return a user's settings. `folder` gets the token."""
    if mechanism == "certificate":
        return broker.config_by_certificate(user)
    if mechanism == "OAUTHBEARER":
        token = folder / "token"
        token.write_text(broker.security.issuer.token(user))
        return broker.config_by_token(token.as_uri(), user, "unused")
    return broker.config_of(user, mechanism)


async def log_in(client: RawClient, config: ClientConfig) -> Any:
    """Return the last answer of a client's SASL exchange through the gateway."""
    return await authenticate(client, config.kafka_python_settings())


@pytest.mark.parametrize("mechanism", [*PASSWORDS, "OAUTHBEARER", "certificate"])
def test_broker_sees_the_gateways_principal(broker: SecuredBroker, mechanism: str, tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            gateway_at(login_of(broker, GATEWAY, mechanism, tmp_path)) as (gateway, _),
            connected(gateway.address) as client,
        ):
            assert await topics_of(client) == {TOPICS[GATEWAY]}

    uvloop.run(play())


@pytest.mark.parametrize("mechanism", [*PASSWORDS, "OAUTHBEARER"])
def test_the_broker_and_the_coordinator_see_the_clients_principal(
    broker: SecuredBroker, mechanism: str, tmp_path: Path
) -> None:
    async def play() -> None:
        async with (
            gateway_at(broker.config_of(GATEWAY), brokers_authenticate=True) as (gateway, core),
            connected(gateway.address) as client,
        ):
            await client.ask(ApiKey.ApiVersions, 0)
            answer = await log_in(client, login_of(broker, "alice", mechanism, tmp_path))
            assert answer.error_code == 0
            assert await topics_of(client) == {TOPICS["alice"]}
            assert (await client.ask(HEARTBEAT, 4, **BEAT)).error_code == UNKNOWN_MEMBER_ID
            assert core.asked[-1].principal == "User:alice"

    uvloop.run(play())


def test_client_refused_by_the_broker_is_not_served(broker: SecuredBroker, tmp_path: Path) -> None:
    """Bad credentials get the broker's answer, requests before any credentials get none."""
    wrong = ClientConfig(
        broker.bootstrap_servers,
        ClusterSecurity(tmp_path, users={"alice": "a guess"}).client_properties("alice", "SCRAM-SHA-512"),
    )

    async def play() -> None:
        async with gateway_at(broker.config_of(GATEWAY), brokers_authenticate=True) as (gateway, core):
            async with connected(gateway.address) as client:
                answer = await log_in(client, wrong)
                assert (answer.error_code, answer.error_message) == (
                    58,
                    "Authentication failed during authentication due to invalid credentials with SASL "
                    "mechanism SCRAM-SHA-512",
                )
                assert await client.is_closed()
            for api_key, body in ((HEARTBEAT, BEAT), (ApiKey.Metadata, {"topics": None})):
                async with connected(gateway.address) as client:
                    await client.send(api_key, 4, **body)
                    assert await client.is_closed()
            async with connected(gateway.address) as client:
                answer = await client.ask(ApiKey.SaslHandshake, 1, mechanism="GSSAPI")
                assert (answer.error_code, answer.mechanisms) == (33, [*PASSWORDS, "OAUTHBEARER"])
            assert core.asked == []

    uvloop.run(play())


def test_the_gateway_authenticates_again_before_its_session_ends(
    broker: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker closes a connection with a request after the session's end (KIP-368)."""
    # A request that is sent shortly before the session's end may come late.
    monkeypatch.setattr(connections, "_RENEWED_AFTER", (0.3, 0.4))

    async def play() -> None:
        async with (
            gateway_at(broker.config_of(GATEWAY, "PLAIN")) as (gateway, _),
            connected(gateway.address) as client,
        ):
            began_s = time.monotonic()
            while time.monotonic() - began_s < 1.5 * LIFETIME_S:
                assert await topics_of(client) == {TOPICS[GATEWAY]}
                await asyncio.sleep(0.1)

    uvloop.run(play())


def test_broker_refusing_the_gateway_is_reported_in_a_sentence(broker: SecuredBroker, tmp_path: Path) -> None:
    servers, security = broker.bootstrap_servers, broker.security
    strangers = ClusterSecurity(tmp_path / "strangers", users={GATEWAY: "a guess"})
    wrong = {**security.client_properties(GATEWAY, "PLAIN")}
    wrong["sasl.jaas.config"] = strangers.client_properties(GATEWAY, "PLAIN")["sasl.jaas.config"]
    good = security.client_properties(GATEWAY, "PLAIN")
    stranger = Authority(tmp_path / "authority").issue(GATEWAY)
    by_certificate = broker.config_by_certificate(GATEWAY)
    named_otherwise = servers.replace(HOST, "127.1")
    cases = {
        "authentication by PLAIN failed: Authentication failed: Invalid username or password": ClientConfig(
            servers, wrong
        ),
        "its certificate is not trusted: certificate signature failure": ClientConfig(
            servers, {**good, **strangers.trust()}
        ),
        "its certificate is not trusted: Hostname mismatch": ClientConfig(named_otherwise, good),
        "it does not accept the gateway's certificate": ClientConfig(
            by_certificate.bootstrap_servers,
            {**by_certificate.properties, "ssl.keystore.location": str(stranger.both)},
        ),
        "it closed the connection, as one that expects another security.protocol": ClientConfig(servers),
    }

    async def play() -> None:
        for why, config in cases.items():
            with pytest.raises(UpstreamLost) as error:
                async with gateway_at(config):
                    pass
            assert why in str(error.value)
            assert str(error.value).startswith(("the broker at ", "no TLS connection to the broker at "))
        unchecked = ClientConfig(named_otherwise, {**good, "ssl.endpoint.identification.algorithm": ""})
        async with gateway_at(unchecked) as (gateway, _), connected(gateway.address) as client:
            assert await topics_of(client) == {TOPICS[GATEWAY]}

    uvloop.run(play())


CREATED, MISSING_INTERNAL_TOPICS = "created", 3
STREAMS_HEARTBEAT = ApiKey.StreamsGroupHeartbeat


def missing_topics(answer: Any) -> str:
    """Return the detail of the status about missing internal topics, or "" without it."""
    assert answer.error_code == 0
    details = {status.status_code: status.status_detail for status in answer.status}
    return str(details.get(MISSING_INTERNAL_TOPICS, ""))


@pytest.fixture
def create_right(broker: SecuredBroker) -> None:
    """Let alice create a topic that the gateway may look up."""
    allow, topic = ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, CREATED)
    rights = ("alice", ACLOperation.CREATE), (GATEWAY, ACLOperation.DESCRIBE)
    with closing(kafka_clients.admin(broker.config_of(ADMIN))) as admin:
        admin.create_acls([ACL(f"User:{user}", "*", right, allow, topic) for user, right in rights])


@pytest.mark.usefixtures("create_right")
def test_ksq11_internal_topics_are_created_with_the_rights_of_the_client(broker: SecuredBroker) -> None:
    async def play(user: str) -> str:
        """Join a streams group, and return why its internal topic is missing in the end, or ""."""
        changelog = {"name": CREATED, "replication_factor": 1, "topic_configs": []}
        parts = {
            "subtopology_id": "0",
            "source_topics": [TOPICS[GATEWAY]],
            "state_changelog_topics": [changelog],
        }
        fields: dict[str, Any] = {"group_id": user, "member_id": "m", "endpoint_information_epoch": -1}
        first = {"topology": {"epoch": 0, "subtopologies": [parts]}, "rebalance_timeout_ms": 60_000}
        first |= {"active_tasks": [], "standby_tasks": [], "warmup_tasks": [], "process_id": "p"}
        async with (
            gateway_at(broker.config_of(GATEWAY), brokers_authenticate=True) as (gateway, _),
            connected(gateway.address) as client,
        ):
            await log_in(client, broker.config_of(user, "SCRAM-SHA-256"))
            topics = gateway._shared.services.streams_topics
            answer = await client.ask(STREAMS_HEARTBEAT, 1, **fields, **first, member_epoch=0)
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while (detail := missing_topics(answer)) and not topics.failures(f"User:{user}", [CREATED]):
                    await asyncio.sleep(0.1)
                    answer = await client.ask(
                        STREAMS_HEARTBEAT, 1, **fields, member_epoch=answer.member_epoch
                    )
            if detail:  # of the heartbeat before the failure
                answer = await client.ask(STREAMS_HEARTBEAT, 1, **fields, member_epoch=answer.member_epoch)
            return missing_topics(answer)

    assert "uthoriz" in uvloop.run(play("bob"))
    assert uvloop.run(play("alice")) == ""
    with closing(kafka_clients.admin(broker.config_of(ADMIN))) as admin:
        assert CREATED in admin.list_topics()
