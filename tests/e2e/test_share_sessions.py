"""Share sessions of members with different rights: at a real broker with StandardAuthorizer, and at a gateway
that reaches it as a super user and checks the same ACLs for its clients.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

import pytest
import uvloop
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.api_key import ApiKey

from embedded.broker import EmbeddedBroker
from gateway.authorization.acls import Operation, ResourceType
from gateway.authorization.sources import AclOptions, CurrentAcls
from gateway.net.options import GatewayOptions
from gateway.net.server import Gateway
from gateway.security.authentication import ListenerSecurity
from gateway.service import serving
from gateway.upstream.cluster import Cluster
from gateway.upstream.share_groups import Coordinators
from kafka_why.connections import kafka_clients
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from streaming.service.topics import prepare_topics
from tests.e2e.gateway_clients import PARTITIONS, new_group, produce
from tests.e2e.harness import create_topic, topic_id_of, wait_until
from tests.harness.gateway import HOST, CoreBackend, RawClient
from tests.harness.kafkas_shares import JavaShares
from tests.harness.ports import free_address
from tests.harness.raw_client import connected
from tests.harness.sasl import authenticate, by_password
from tests.harness.secured_broker import Allowed, grant
from tests.harness.share_frames import FETCH, HEARTBEAT, beat
from tests.harness.users_listener import users_file, users_listener
from tests.harness.waiting import WAIT_TIMEOUT_S

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

READER, STRANGER, PASSWORD = "ann", "eve", "not-secret"
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = dict.fromkeys((READER, STRANGER), PASSWORD)
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f'{_LOGIN} required username="{READER}" password="{PASSWORD}";',
}
NO_SESSION = 122
GUESSES = 12
LAYOUT = TopicLayout.named("share-sessions", reply_partitions=1)


class Servers(NamedTuple):
    """The broker, its listener for users, and the gateway."""

    config: ClientConfig
    broker: Address
    gateway: Address
    acls: CurrentAcls
    runner: asyncio.Runner


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("share-sessions")
    ports, users, settings = users_listener(USERS, [])
    with (
        EmbeddedBroker(folder / "broker", ports=ports, overrides=settings) as broker,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        config = broker.client_config
        security = ListenerSecurity.read(None, None, users_file(folder, USERS))
        options = GatewayOptions(
            config, LAYOUT, Address(HOST, 0), security=security, share_groups=Coordinators.BROKERS
        )
        cluster, core = Cluster.of(config, options.limits), CoreBackend()
        acls = CurrentAcls.of(AclOptions(), cluster)
        gateway = Gateway(options, cluster, core, core, authorizer=acls.authorizer)
        runner.run(gateway.start())
        yield Servers(config, users, gateway.address, acls, runner)
        runner.run(gateway.close())


def append(config: ClientConfig, topic: str) -> None:
    with closing(kafka_clients.producer(config)) as producer:
        producer.send(topic, b"for readers only").get(30)


@asynccontextmanager
async def logged_in(address: Address, user: str) -> AsyncIterator[RawClient]:
    async with connected(address) as client:
        assert not (await authenticate(client, by_password("PLAIN", user, PASSWORD))).error_code
        yield client


def prepared(config: ClientConfig) -> tuple[str, str]:
    """Make a group that both users may read, and a topic that one of them may read."""
    group, topic = new_group(), f"secret-{uuid4()}"
    create_topic(config, topic, 1, {})
    settings = {"share.auto.offset.reset": "earliest"}
    with closing(kafka_clients.admin(config)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, configs=settings)])
    topic_acls = {READER: ("READ",), STRANGER: ("DESCRIBE",)}
    grant(config, (Allowed(user, "GROUP", group, "LITERAL", ("READ",)) for user in USERS))
    grant(config, (Allowed(user, "TOPIC", topic, "LITERAL", may) for user, may in topic_acls.items()))
    return group, topic


async def join(client: RawClient, group: str, topic: str) -> str:
    """Become a member that has the topic's partition. Return its id."""
    body = beat(group, [topic]) | {"member_id": str(uuid4())}
    while not (answer := await client.ask(HEARTBEAT, 1, **body)).assignment:
        body["member_epoch"] = answer.member_epoch
        await client.ask(ApiKey.FindCoordinator, 4, coordinator_keys=[group])
    return str(body["member_id"])


@pytest.mark.parametrize("where", ["broker", "gateway"])
def test_a_session_does_not_continue_for_a_user_without_rights(servers: Servers, where: str) -> None:
    """By its epoch, which is soon guessed."""
    config = servers.config
    group, topic = prepared(config)
    append(config, topic)
    topic_id = UUID(topic_id_of(config, topic))
    address = servers.broker if where == "broker" else servers.gateway
    reading = f"User:{READER}", "/", Operation.READ, ResourceType.TOPIC, topic
    limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 10_000, "max_records": 10, "batch_size": 10}

    async def play() -> None:
        while not servers.acls.authorizer.may(*reading):
            await servers.acls.refresh()
        async with logged_in(address, READER) as reader, logged_in(address, STRANGER) as stranger:
            member = await join(reader, group, topic)

            async def fetch(client: RawClient, epoch: int) -> int:
                """Return the number of bytes of records, or the error as a negative number."""
                named = [{"topic_id": topic_id, "partitions": [{"partition_index": 0}]}] * (epoch == 0)
                session = {"group_id": group, "member_id": member, "share_session_epoch": epoch}
                answer = await client.ask(FETCH, 2, **session, topics=named, **limits)
                if answer.error_code:
                    return -int(answer.error_code)
                return sum(len(p.records or b"") for topic in answer.responses for p in topic.partitions)

            while not await fetch(reader, 0):
                pass
            await asyncio.to_thread(append, config, topic)
            read = [await fetch(stranger, epoch) for epoch in range(1, GUESSES)]
            assert max(read) <= 0, "records"
            assert where == "broker" or {*read} == {-NO_SESSION}

    servers.runner.run(asyncio.wait_for(play(), WAIT_TIMEOUT_S))


def test_share_consumer_begins_new_sessions_after_a_gateway_restart(servers: Servers, tmp_path: Path) -> None:
    config = servers.config
    prepare_topics(config, LAYOUT)
    group, topic = prepared(config)
    options = GatewayOptions(
        config,
        LAYOUT,
        free_address(),
        security=ListenerSecurity.read(None, None, users_file(tmp_path, USERS)),
        acls=AclOptions(),
        share_groups=Coordinators.BROKERS,
    )
    first, second = (range(begin, begin + 10 * PARTITIONS, PARTITIONS) for begin in (0, 100))
    with JavaShares(str(options.listen), tmp_path, settings=LOGIN) as shares:
        with serving(options):
            member = shares.join(group, topic)
            produce(config, topic, first)
            wait_until(lambda: set(member.deliveries) == {*first}, "the records")
        with serving(options):
            produce(config, topic, second)
            wait_until(lambda: set(member.deliveries) == {*first, *second}, "the records after the restart")
            member.close()
