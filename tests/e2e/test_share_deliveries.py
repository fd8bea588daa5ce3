"""A record that no KafkaShareConsumer can process, through the gateway with a real broker: `why` and the page
name it.
"""

import json
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner
from kafka.admin import ConfigResource, ConfigResourceType

from cli import main
from embedded.broker import EmbeddedBroker
from gateway.net.server import GatewayOptions
from gateway.service import serving
from gateway.upstream.share_groups import Coordinators
from kafka_why.connections import kafka_clients
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.page.deliveries import DeliveriesCache
from kafka_why.why.deliveries.report import read_deliveries
from kafka_why.why.history import read_history
from streaming.service.topics import prepare_topics
from tests.e2e.gateway_clients import PARTITIONS, new_group, produce
from tests.e2e.harness import create_topic, wait_until
from tests.harness.kafkas_shares import JavaShares
from tests.unit.kafka_why.test_page_access import answer
from tests.unit.kafka_why.test_page_access import serving as page_of

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

POISON, RECORDS, LIMIT = 7, 20, 3
PARTITION = 0
VALUES = range(0, RECORDS * PARTITIONS, PARTITIONS)
"""Of the records, by offset."""
POISON_VALUE = VALUES[POISON]


def give_back(address: str, group: str, topic: str, folder: Path) -> list[int]:
    """Let two members fetch until the poison record does not come again. Return its delivery counts."""
    with JavaShares(address, folder) as shares, ExitStack() as stack:
        members = [stack.enter_context(shares.join(group, topic, str(POISON_VALUE))) for _ in range(2)]

        def counts() -> list[int]:
            return sorted(count for member in members for count in member.deliveries.get(POISON_VALUE, ()))

        def are_done() -> bool:
            return len(counts()) >= LIMIT and {value for m in members for value in m.deliveries} == {*VALUES}

        wait_until(are_done, "the records came, and the poison to its limit")
        last = len(VALUES) * PARTITIONS
        produce(address, topic, [last])
        wait_until(lambda: any(last in member.deliveries for member in members), "one more record")
        return counts()


def set_up(servers: ClientConfig, group: str) -> None:
    """Give the group its settings, at the broker: through the gateway they would wait for the coordinator."""
    settings = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": str(LIMIT)}
    with closing(kafka_clients.admin(servers)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.GROUP, group, configs=settings)])


@pytest.fixture
def options(broker: EmbeddedBroker) -> GatewayOptions:
    """Return a gateway's before a coordinator that does not run: the brokers coordinate share groups."""
    layout = TopicLayout.named("share-deliveries", reply_partitions=1)
    prepare_topics(broker.client_config, layout)
    address = Address("127.0.0.1", 0)
    return GatewayOptions(broker.client_config, layout, address, share_groups=Coordinators.BROKERS)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"orders-{uuid4()}"
    create_topic(broker.client_config, name, 1, {})
    return name


def test_sp32_why_and_page_name_a_poison_record(
    broker: EmbeddedBroker, options: GatewayOptions, topic: str, tmp_path: Path
) -> None:
    group = new_group()
    produce(broker.bootstrap_servers, topic, VALUES)
    set_up(broker.client_config, group)
    with serving(options) as address:
        counts = give_back(str(address), group, topic, tmp_path)
    assert counts == [1, 2, 3], "the limit of the group"

    command = ["why", group, "--bootstrap-servers", broker.bootstrap_servers, "--prefix", "share-deliveries"]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    poison = f"{topic}-{PARTITION}@{POISON}: delivered 3 times (limit 3), released 3 times by "
    assert poison in told.stdout
    assert "archived, or a dead letter (inferred" in told.stdout
    shown = json.loads(CliRunner().invoke(main, [*command, "-o", "json"]).stdout)["deliveries"]
    assert sum(one["accepted"] for one in shown["rows"]) == RECORDS  # with the last one
    assert sum(one["delivered"] for one in shown["rows"]) == RECORDS + LIMIT
    assert (shown["verdict"], shown["is_limit_known"]) == ("poison", True)

    kept = DeliveriesCache(partial(read_deliveries, options.client_config, options.layout))
    with page_of(read=partial(read_history, options.client_config, options.layout), deliveries=kept) as page:
        status, _, body = answer(page, f"/group?id={group}")
    assert (status, poison in body.decode()) == (200, True)
