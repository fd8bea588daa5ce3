"""Tests of a broker that is not shared, because it has a coordinator's settings and is killed: its folder,
its settings beside those that a gateway shows, and the reader of the query's answers while it is down.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Any

import pytest
import uvloop
from confluent_kafka import KafkaException
from kafka.protocol.api_key import ApiKey

from embedded.broker import EmbeddedBroker
from gateway.net.server import Gateway, GatewayOptions
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import Address
from gateway.upstream.share_groups import Coordinators
from kafka_why.connections import kafka_clients
from kafka_why.contract.codec import encode
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode, ReleaseGroupResponse
from state.config import CoordinatorConfig
from state.kafka.protocols import GROUP_CONFIG_NAMES
from streaming.replica.audit import OVERDUE_AFTER_S, AnswerDifference, Audit, ReplicaPosition
from streaming.replica.responses_reader import ResponsesReader
from streaming.service.topics import prepare_topics
from tests.e2e.gateway_clients import new_group
from tests.e2e.harness import new_layout, wait_until
from tests.harness.gateway import HOST, CoreBackend, RawClient
from tests.harness.raw_client import connected
from tests.harness.share_frames import SOFTWARE
from tests.harness.waiting import WAIT_TIMEOUT_S

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

BROKER, GROUP = 4, 32  # ConfigResource.Type
NODE_ID = "1"
# What the broker and the coordinator are given.
GIVEN = {
    "group.max.size": "7",
    "group.initial.rebalance.delay.ms": "5",
    "group.consumer.session.timeout.ms": "50000",
    "group.consumer.assignors": "range",
    "group.share.heartbeat.interval.ms": "6000",
    "group.streams.heartbeat.interval.ms": "7000",
    "offsets.retention.minutes": "77",
}
OWN = {
    "consumer.session.timeout.ms": "51000",
    "consumer.heartbeat.interval.ms": "6000",
    "share.session.timeout.ms": "52000",
    "share.auto.offset.reset": "earliest",
    "streams.num.standby.replicas": "1",
}
# No request changes a coordinator's settings.
READ_ONLY = tuple(f"group.{kind}.assignment.interval.ms" for kind in ("consumer", "share", "streams"))

Entries = dict[str, dict[str, Any]]


@asynccontextmanager
async def gateway_of(broker: EmbeddedBroker) -> AsyncIterator[Address]:
    """Yield a gateway whose coordinator, the pure core, has the share groups."""
    core = CoreBackend()
    core.config = CoordinatorConfig().with_settings(GIVEN)
    config, listen = broker.client_config, Address(HOST, 0)
    options = GatewayOptions(config, TopicLayout.named(), listen, share_groups=Coordinators.OURS)
    gateway = Gateway(options, Cluster.of(config, options.limits), core, core)
    try:
        await gateway.start()
        yield gateway.address
    finally:
        await gateway.close()


async def shown(client: RawClient, kind: int, name: str) -> Entries:
    """Return the whole answer, by the names of the settings."""
    entry: dict[str, Any] = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = await client.ask(
        ApiKey.DescribeConfigs, 4, resources=[entry], include_synonyms=True, include_documentation=True
    )
    (found,) = answer.results
    assert (found.error_code, found.error_message) == (0, "")
    return {config.name: config.to_dict() for config in found.configs}


async def awaited(read: Callable[[], Any], name: str, value: str) -> Entries:
    """Return the settings once this one has its value. A broker applies a change after it answers."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while (found := await read())[name]["value"] != value:
            await asyncio.sleep(0.01)
    return dict(found)


async def alter(client: RawClient, group: str) -> None:
    configs = [{"name": name, "value": value, "config_operation": 0} for name, value in OWN.items()]
    entry = {"resource_type": GROUP, "resource_name": group, "configs": configs}
    (answer,) = (await client.ask(ApiKey.IncrementalAlterConfigs, 1, resources=[entry])).responses
    assert answer.error_code == 0, answer.error_message


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder = tmp_path_factory.mktemp("broker")
    folder.chmod(0o755)
    with EmbeddedBroker(folder, overrides=GIVEN) as broker:
        yield broker


def test_settings_are_shown_as_a_broker_shows_them(broker: EmbeddedBroker) -> None:
    async def play() -> None:
        async with (
            gateway_of(broker) as address,
            connected(address) as client,
            connected(Address.parse(broker.bootstrap_servers)) as direct,
        ):
            for one in (client, direct):
                await one.ask(ApiKey.ApiVersions, 4, **SOFTWARE)
            compare_brokers(await shown(client, BROKER, NODE_ID), await shown(direct, BROKER, NODE_ID))
            own, without = new_group(), new_group()
            compare_groups(await shown(client, GROUP, without), await shown(direct, GROUP, without))
            await alter(client, own)
            await alter(direct, own)
            last = "streams.num.standby.replicas"
            at_broker = await awaited(lambda: shown(direct, GROUP, own), last, OWN[last])
            compare_groups(await shown(client, GROUP, own), at_broker)

    uvloop.run(play())


def compare_groups(ours: Entries, kafkas: Entries) -> None:
    assert set(ours) == set(kafkas) == set(GROUP_CONFIG_NAMES)
    for name, entry in kafkas.items():
        assert ours[name] == entry


def compare_brokers(ours: Entries, kafkas: Entries) -> None:
    names = [name for name in ours if name.startswith(("group.", "offsets.", "offset.metadata."))]
    assert set(GIVEN) < set(names)
    for name in names:
        if name in READ_ONLY:
            kafkas[name]["read_only"] = True
        assert ours[name] == kafkas[name]


def test_broker_segments_are_unreadable_to_other_users(broker: EmbeddedBroker) -> None:
    """Other users must read records through the broker, which checks ACLs."""
    kept = [*(broker.data_dir / "log").rglob("*")]
    assert any(path.suffix == ".log" and path.stat().st_size for path in kept)
    assert [path for path in kept if path.stat().st_mode & 0o077] == []
    assert broker.data_dir.stat().st_mode & 0o777 == 0o755


HERE = ReplicaPosition({0: 5}, 1_000)
BATCH_S = 100.0


def answer(request: str) -> bytes:
    return encode(
        ReleaseGroupResponse(group_id="g", correlation_id="c", request=request, error_code=ErrorCode.NONE)
    )


@contextmanager
def reading(broker: EmbeddedBroker, layout: TopicLayout, audit: Audit) -> Iterator[ResponsesReader]:
    """Yield a reader whose clock is far behind the only batch."""
    prepare_topics(broker.client_config, layout)
    reader = ResponsesReader(
        broker.client_config,
        layout,
        audit,
        lambda: None,
        ReplicaId(1, 1),
        compares=True,
        now_s=lambda: BATCH_S + 2 * OVERDUE_AFTER_S,
    )
    try:
        wait_until(lambda: begins(reader), "leaders of the new topic's partitions")
        yield reader
    finally:
        reader.stop()


def begins(reader: ResponsesReader) -> bool:
    try:
        reader.begin()
    except KafkaException:
        return False
    return True


def test_audit_reports_no_missing_answer_before_it_has_read_the_topic(broker: EmbeddedBroker) -> None:
    """More answers than one poll returns precede it."""
    audit, layout = Audit(), new_layout()
    others = [f"other-{number}" for number in range(2_000)]
    with reading(broker, layout, audit) as reader:
        with closing(kafka_clients.producer(broker.client_config)) as producer:
            for request in (*others, "r"):
                producer.send(layout.responses_topic, answer(request), partition=0)
            producer.flush()
        audit.add_early({"r": answer("r")}, HERE)
        audit.committed(HERE, BATCH_S)
        reader.read()
        assert reader.difference is None
        assert audit.compared == 1


def test_audit_reports_no_missing_answer_while_brokers_are_unavailable(broker: EmbeddedBroker) -> None:
    """The query's answer may be on the topic. When the brokers are back, a later batch shows it."""
    audit, layout = Audit(), new_layout()
    with reading(broker, layout, audit) as reader:
        audit.add_early({"r": answer("r")}, HERE)
        audit.committed(HERE, BATCH_S)
        broker.kill()
        reader.read()
        assert reader.difference is None
        broker.start()

        def shows() -> bool:
            """Return True if a later batch shows it. The reader reconnects, and partitions get leaders."""
            audit.committed(HERE, BATCH_S)
            reader.read()
            return reader.difference is not None

        wait_until(shows, "the difference")
        assert reader.difference == AnswerDifference("r", answer("r"), None)
