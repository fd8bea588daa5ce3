"""Share sessions of members with different rights: at a real broker with StandardAuthorizer, and at a gateway
that reaches it as a super user and checks the same ACLs for its clients.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import uvloop
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    ResourcePatternFilter,
)
from kafka.admin import ResourceType as KafkasType
from kafka.protocol.api_key import ApiKey

from connections import kafka_clients
from connections.address import Address
from connections.client_config import ClientConfig
from embedded.broker import EmbeddedBroker
from gateway.authorization.acls import Operation, ResourceType
from gateway.authorization.sources import AclOptions, CurrentAcls
from gateway.net.options import GatewayOptions
from gateway.net.server import Gateway
from gateway.security.authentication import Security
from gateway.service import serving
from gateway.upstream.cluster import Cluster
from gateway.upstream.share_groups import Coordinators
from records.layout import TopicLayout
from streaming.service.topics import prepare_topics
from tests.e2e.gateway_clients import PARTITIONS, new_group, produce
from tests.e2e.harness import create_topic, topic_id_of, wait_until
from tests.e2e.test_gateway import free_address
from tests.harness.gateway import HOST, CoreBackend, RawClient
from tests.harness.kafkas_shares import JavaShares
from tests.harness.sasl import authenticate, by_password
from tests.harness.secured_broker import Allowed, grant
from tests.harness.share_frames import ACKNOWLEDGE, FETCH, HEARTBEAT, beat
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
INVALID_REQUEST, NO_SESSION, ACCEPT = 42, 122, 1
GUESSES = 12


@dataclass(frozen=True)
class Servers:
    """The broker, its listener for users, and the gateway."""

    config: ClientConfig
    broker: Address
    gateway: Address
    acls: CurrentAcls
    runner: asyncio.Runner

    def of(self, where: str) -> Address:
        return self.broker if where == "broker" else self.gateway


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("share-sessions")
    ports, users, settings = users_listener(USERS, [])
    with (
        EmbeddedBroker(folder / "broker", ports=ports, overrides=settings) as broker,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        serving = gateway_before(broker.client_config, folder)
        gateway, acls = runner.run(serving.__aenter__())
        yield Servers(broker.client_config, users, gateway, acls, runner)
        runner.run(serving.__aexit__(None, None, None))


@asynccontextmanager
async def gateway_before(config: ClientConfig, folder: Path) -> AsyncIterator[tuple[Address, CurrentAcls]]:
    options = GatewayOptions(
        config,
        TopicLayout.named(),
        Address(HOST, 0),
        security=Security.read(None, None, users_file(folder, USERS)),
        share_groups=Coordinators.BROKERS,
    )
    cluster, core = Cluster.of(config, options.limits), CoreBackend()
    acls = CurrentAcls.of(AclOptions(), cluster)
    gateway = Gateway(options, cluster, core, core, authorizer=acls.authorizer)
    await gateway.start()
    try:
        yield gateway.address, acls
    finally:
        await gateway.close()


@dataclass(frozen=True)
class Connected:
    """A user's connection, from which it sends requests of any member of the group."""

    client: RawClient
    group: str
    topic_id: UUID

    async def ask(
        self, api: int, member: str, epoch: int, *, names: bool = False, accepts: bool = False, **fields: Any
    ) -> Any:
        """The answer to a ShareFetch or ShareAcknowledge, which may name the topic, or accept a record."""
        batches = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [ACCEPT]}] if accepts else []
        partitions = [{"partition_index": 0, "acknowledgement_batches": batches}]
        topics = [{"topic_id": self.topic_id, "partitions": partitions}] if names or accepts else []
        limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 10_000, "max_records": 10, "batch_size": 10}
        session = {"group_id": self.group, "member_id": member, "share_session_epoch": epoch}
        fields = {**session, "topics": topics, **(limits if api == FETCH else {}), **fields}
        return await self.client.ask(api, 2, **fields)

    async def fetch(self, member: str, epoch: int, *, names: bool = False, accepts: bool = False) -> int:
        """The number of bytes of records in a ShareFetch's response, or its error, as a negative number."""
        answer = await self.ask(FETCH, member, epoch, names=names, accepts=accepts)
        if answer.error_code:
            return -int(answer.error_code)
        return sum(len(p.records or b"") for topic in answer.responses for p in topic.partitions)

    async def join(self, topic: str) -> str:
        """Become a member that has the topic's partition. Returns its id."""
        body = beat(self.group, [topic]) | {"member_id": str(uuid4())}
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not (answer := await self.client.ask(HEARTBEAT, 1, **body)).assignment:
                body["member_epoch"] = answer.member_epoch
                await self.client.ask(ApiKey.FindCoordinator, 4, coordinator_keys=[self.group])
        return str(body["member_id"])


@dataclass(frozen=True)
class Scene:
    """A member of a user that may read the topic, and another user that may read the group only."""

    servers: Servers
    topic: str
    reader: Connected
    stranger: Connected
    member: str

    async def begin_at_the_end(self) -> None:
        """The member has the records that there are, and then there is one more."""
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while not await self.reader.fetch(self.member, 0, names=True):
                pass
        await asyncio.to_thread(append, self.servers.config, self.topic)


def append(config: ClientConfig, topic: str) -> None:
    with closing(kafka_clients.producer(config)) as producer:
        producer.send(topic, b"for readers only").get(30)


def revoke(config: ClientConfig, topic: str) -> None:
    """Delete all ACLs of a topic."""
    pattern = ResourcePatternFilter(KafkasType.TOPIC, topic, ACLResourcePatternType.ANY)
    with closing(kafka_clients.admin(config)) as admin:
        admin.delete_acls([ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)])


async def follow_acls(acls: CurrentAcls, topic: str, *, may_read: bool) -> None:
    """Wait until the gateway knows whether the reader may read the topic."""
    reading = f"User:{READER}", "/", Operation.READ, ResourceType.TOPIC, topic
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while acls.authorizer.may(*reading) != may_read:
            await acls.refresh()


@asynccontextmanager
async def connected(address: Address, user: str, group: str, topic_id: UUID) -> AsyncIterator[Connected]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    with closing(writer):
        client = RawClient(reader, writer)
        assert not (await authenticate(client, by_password("PLAIN", user, PASSWORD))).error_code
        yield Connected(client, group, topic_id)


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


def play(servers: Servers, where: str, test: Callable[[Scene], Awaitable[None]]) -> None:
    """Play with a group and a topic of its own, at the broker's listener for users or at the gateway."""
    config = servers.config
    group, topic = prepared(config)
    append(config, topic)

    async def played() -> None:
        args = group, UUID(topic_id_of(config, topic))
        await follow_acls(servers.acls, topic, may_read=True)
        async with (
            connected(servers.of(where), READER, *args) as reader,
            connected(servers.of(where), STRANGER, *args) as stranger,
        ):
            await test(Scene(servers, topic, reader, stranger, await reader.join(topic)))

    servers.runner.run(played())


@pytest.mark.parametrize("where", ["broker", "gateway"])
def test_a_session_does_not_continue_for_a_user_without_rights(servers: Servers, where: str) -> None:
    """By its epoch, which is soon guessed."""

    async def test(scene: Scene) -> None:
        await scene.begin_at_the_end()
        read = [await scene.stranger.fetch(scene.member, epoch) for epoch in range(1, GUESSES)]
        assert max(read) <= 0, "records"
        assert where == "broker" or {*read} == {-NO_SESSION}

    play(servers, where, test)


@pytest.mark.parametrize("where", ["broker", "gateway"])
def test_a_session_that_a_member_begins_anew_does_not_continue_for_another_beginner(
    servers: Servers, where: str
) -> None:
    """A user without rights begins the member's session, without the topic, and then the member does."""

    async def test(scene: Scene) -> None:
        assert await scene.stranger.fetch(scene.member, 0) == 0
        await scene.begin_at_the_end()
        read = [await scene.stranger.fetch(scene.member, epoch) for epoch in range(1, GUESSES)]
        assert max(read) <= 0, "records"

    play(servers, where, test)


@pytest.mark.parametrize("where", ["broker", "gateway"])
def test_a_session_does_not_survive_the_loss_of_rights_by_a_beginning_that_is_refused(
    servers: Servers, where: str
) -> None:
    """A broker refuses a ShareFetch that renews locks and asks for records, and keeps the session."""

    async def test(scene: Scene) -> None:
        await scene.begin_at_the_end()
        await asyncio.to_thread(revoke, scene.servers.config, scene.topic)
        await follow_acls(scene.servers.acls, scene.topic, may_read=False)
        assert (
            await scene.reader.ask(FETCH, scene.member, 0, is_renew_ack=True)
        ).error_code == INVALID_REQUEST
        read = [await scene.reader.fetch(scene.member, epoch) for epoch in range(1, GUESSES)]
        assert max(read) <= 0, "records"

    play(servers, where, test)


def test_a_session_is_not_ended_from_another_connection(servers: Servers) -> None:
    """Nor are the member's records released, which a broker does for whoever may read the group."""

    async def test(scene: Scene) -> None:
        await scene.begin_at_the_end()
        ended = await scene.stranger.ask(ACKNOWLEDGE, scene.member, -1)
        assert ended.error_code == NO_SESSION
        assert await scene.reader.fetch(scene.member, 1, accepts=True) > 0

    play(servers, "gateway", test)


def test_kafkas_share_consumer_begins_new_sessions_after_a_restart_of_the_gateway(
    servers: Servers, tmp_path: Path
) -> None:
    config, layout = servers.config, TopicLayout.named("share-sessions", reply_partitions=1)
    prepare_topics(config, layout)
    group, topic = prepared(config)
    options = GatewayOptions(
        config,
        layout,
        free_address(),
        security=Security.read(None, None, users_file(tmp_path, USERS)),
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
