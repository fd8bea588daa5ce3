"""A coordinator with a gateway before it, for each module whose tests have clients of their own."""

import uuid
from collections.abc import Iterator

import pytest

from embedded.broker import EmbeddedBroker
from gateway.service import GatewayOptions, serving
from gateway.upstream.connections import Address
from records.layout import TopicLayout
from streaming.service.coordinator import Options
from tests.e2e.gateway_clients import PARTITIONS
from tests.e2e.harness import QUICK_SPARK, coordinating, create_topic, new_layout


@pytest.fixture(scope="module")
def layout(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicLayout]:
    """The topics of a coordinator that runs."""
    layout = new_layout()
    options = Options(
        bootstrap_servers=broker.bootstrap_servers,
        folder=tmp_path_factory.mktemp("coordinator"),
        layout=layout,
        settings={"group.initial.rebalance.delay.ms": "500"},
        topic_interval_ms=500,
        spark=QUICK_SPARK,
    )
    with coordinating(options):
        yield layout


@pytest.fixture(scope="module")
def options(broker: EmbeddedBroker, layout: TopicLayout) -> GatewayOptions:
    """A gateway's, before that coordinator."""
    return GatewayOptions(broker.bootstrap_servers, layout, Address("127.0.0.1", 0))


@pytest.fixture(scope="module")
def gateway(options: GatewayOptions) -> Iterator[str]:
    """What clients take for bootstrap.servers."""
    with serving(options) as address:
        yield str(address)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """A topic of PARTITIONS partitions."""
    name = f"orders-{uuid.uuid4()}"
    create_topic(broker.bootstrap_servers, name, PARTITIONS, {})
    return name
