"""A record that no member of a share group can process, through the gateway with a real broker: `why` and the
page name it.
"""

import asyncio
import json
from contextlib import AsyncExitStack, closing
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.api_key import ApiKey

from cli import main
from connections import kafka_clients
from connections.address import Address
from connections.client_config import ClientConfig
from embedded.broker import EmbeddedBroker
from gateway.net.options import GatewayOptions
from gateway.service import serving
from gateway.upstream.share_groups import Coordinators
from insight.page.deliveries import KeptDeliveries
from insight.why.deliveries.reading import read_deliveries
from insight.why.history import read_history
from records.layout import TopicLayout
from streaming.service.topics import prepare_topics
from tests.e2e.gateway_clients import PARTITIONS, new_group, produce
from tests.e2e.harness import create_topic
from tests.harness.raw_client import RawClient
from tests.harness.share_frames import ACKNOWLEDGE, FETCH, HEARTBEAT, SOFTWARE
from tests.unit.insight.test_page_access import answer
from tests.unit.insight.test_page_access import serving as page_of

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

POISON, RECORDS, LIMIT = 7, 20, 3
PARTITION = 0
ACCEPT, RELEASE = 1, 2
PATIENCE_S = 60.0
"""How long a group takes to give its first partition."""


class Member:
    """A member of a share group, by frames. It accepts all records but one, which it gives back."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self._address, self._group, self._topic = address, group, topic
        self._member_id = str(uuid4())
        self._epoch = 0
        self._topic_id: Any = None
        self._beats: RawClient
        self._records: RawClient

    async def join(self, connections: AsyncExitStack) -> None:
        """Become a member, and wait for the partition."""
        self._beats, self._records = await connected(self._address), await connected(self._address)
        for client in (self._beats, self._records):
            connections.callback(client.writer.close)
        found = await self._beats.ask(ApiKey.Metadata, 12, topics=[{"name": self._topic, "topic_id": None}])
        self._topic_id = found.topics[0].topic_id
        epoch = 0
        names: list[str] | None = [self._topic]
        async with asyncio.timeout(PATIENCE_S):
            while True:
                got = await self._beats.ask(
                    HEARTBEAT,
                    1,
                    group_id=self._group,
                    member_id=self._member_id,
                    member_epoch=epoch,
                    rack_id=None,
                    subscribed_topic_names=names,
                )
                if got.assignment is not None and got.assignment.topic_partitions:
                    return
                epoch, names = (epoch, names) if got.error_code else (got.member_epoch, None)
                await asyncio.sleep(0.2)  # the broker's group coordinator has no event to wait for

    async def fetch(self) -> list[Any]:
        """Get records, and return the ranges of them."""
        got = await self._ask(
            FETCH, max_wait_ms=200, min_bytes=1, max_bytes=1 << 20, max_records=100, batch_size=100
        )
        return [one for topic in got.responses for p in topic.partitions for one in p.acquired_records]

    async def answer(self, ranges: list[Any]) -> list[int]:
        """Accept all that was got but the poison. Returns the delivery counts of that."""
        batches = [
            {
                "first_offset": one.first_offset,
                "last_offset": one.last_offset,
                "acknowledge_types": [
                    RELEASE if offset == POISON else ACCEPT
                    for offset in range(one.first_offset, one.last_offset + 1)
                ],
            }
            for one in ranges
        ]
        got = await self._ask(ACKNOWLEDGE, batches)
        assert [p.error_code for topic in got.responses for p in topic.partitions] == [0]
        return [one.delivery_count for one in ranges if one.first_offset <= POISON <= one.last_offset]

    async def _ask(self, key: int, batches: list[Any] | None = None, **fields: int) -> Any:
        partition = {"partition_index": PARTITION, "acknowledgement_batches": batches or []}
        got = await self._records.ask(
            key,
            2,
            group_id=self._group,
            member_id=self._member_id,
            share_session_epoch=self._epoch,
            topics=[{"topic_id": self._topic_id, "partitions": [partition]}],
            **fields,
        )
        assert got.error_code == 0
        self._epoch += 1
        return got


async def connected(address: str) -> RawClient:
    """A connection of a client that has asked for versions, by which the gateway knows the feature."""
    host, _, port = address.rpartition(":")
    client = RawClient(*await asyncio.open_connection(host, int(port)))
    await client.ask(ApiKey.ApiVersions, 4, **SOFTWARE)
    return client


async def give_back(address: str, group: str, topic: str) -> list[int]:
    """Two members take turns until the poison does not come again. Returns its delivery counts."""
    counts: list[int] = []
    silent = 0
    async with AsyncExitStack() as connections, asyncio.timeout(2 * PATIENCE_S):
        members = [Member(address, group, topic) for _ in range(2)]
        for member in members:
            await member.join(connections)
        while silent < 2 * len(members) or not counts:
            for member in members:
                ranges = await member.fetch()
                silent = 0 if ranges else silent + 1
                if ranges:
                    counts += await member.answer(ranges)
    return counts


def set_up(servers: ClientConfig, group: str) -> None:
    """Give the group its settings, at the broker: through the gateway they would wait for the coordinator."""
    settings = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": str(LIMIT)}
    with closing(kafka_clients.admin(servers)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, configs=settings)])


@pytest.fixture
def options(broker: EmbeddedBroker) -> GatewayOptions:
    """A gateway's before a coordinator that does not run: the brokers coordinate share groups."""
    layout = TopicLayout.named("share-deliveries", reply_partitions=1)
    prepare_topics(broker.client_config, layout)
    address = Address("127.0.0.1", 0)
    return GatewayOptions(broker.client_config, layout, address, share_groups=Coordinators.BROKERS)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"orders-{uuid4()}"
    create_topic(broker.client_config, name, 1, {})
    return name


def test_sp32_why_and_the_page_name_a_record_that_nobody_can_process(
    broker: EmbeddedBroker, options: GatewayOptions, topic: str
) -> None:
    group = new_group()
    produce(broker.bootstrap_servers, topic, range(0, RECORDS * PARTITIONS, PARTITIONS))
    set_up(broker.client_config, group)
    with serving(options) as address:
        counts = asyncio.run(give_back(str(address), group, topic))
    assert counts == [1, 2, 3], "the limit of the group"

    command = ["why", group, "--bootstrap-servers", broker.bootstrap_servers, "--prefix", "share-deliveries"]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    poison = f"{topic}-{PARTITION}@{POISON}: delivered 3 times (limit 3), released 3 times by "
    assert poison in told.stdout
    assert "archived, or a dead letter (inferred" in told.stdout
    shown = json.loads(CliRunner().invoke(main, [*command, "-o", "json"]).stdout)["deliveries"]
    assert sum(one["accepted"] for one in shown["rows"]) == RECORDS - 1
    assert sum(one["delivered"] for one in shown["rows"]) == RECORDS - 1 + LIMIT
    assert (shown["verdict"], shown["is_limit_known"]) == ("poison", True)

    kept = KeptDeliveries(partial(read_deliveries, options.client_config, options.layout))
    with page_of(read=partial(read_history, options.client_config, options.layout), deliveries=kept) as page:
        status, _, body = answer(page, f"/group?id={group}")
    assert (status, poison in body.decode()) == (200, True)
