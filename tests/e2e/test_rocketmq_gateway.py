"""Unmodified Java clients of RocketMQ at the gateway, before a real cluster and a real coordinator."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway.net.options import GatewayOptions
from gateway.rocketmq.options import RocketmqOptions
from gateway.rocketmq.service import running_rocketmq
from gateway.running import RunningGateway
from kafka_why.connections.address import Address
from tests.harness.ports import gateway_port
from tests.harness.rocketmq_clients import JavaClient
from tests.harness.rocketmq_cluster import QUEUES, RocketMqCluster, new_group
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.e2e


class Gateways:
    """Gateways of one name on one port, one after the other."""

    def __init__(self, options: GatewayOptions, rocketmq: RocketMqCluster, folder: Path) -> None:
        self.options = RocketmqOptions(
            options.client_config,
            options.layout,
            (rocketmq.name_server,),
            Address("127.0.0.1", gateway_port(9)),
            f"gateway-{folder.name}",
            ports=folder / "ports.json",
        )

    @contextmanager
    def running(self) -> Iterator[RunningGateway]:
        with running_rocketmq(self.options) as gateway:
            yield gateway
            gateway.drain(1.0)


@pytest.fixture
def gateways(options: GatewayOptions, rocketmq: RocketMqCluster, tmp_path: Path) -> Gateways:
    return Gateways(options, rocketmq, tmp_path)


def is_shared(consumers: list[JavaClient]) -> bool:
    """Return True if the consumers hold all queues, and each queue once."""
    held = [queue for consumer in consumers for queue in consumer.held]
    return len(held) == QUEUES == len(set(held))


def test_clients_share_queues_over_a_restart_of_the_gateway_and_lose_nothing(
    gateways: Gateways, rocketmq: RocketMqCluster
) -> None:
    topic, group, clients = rocketmq.create_topic(), new_group(), rocketmq.clients
    with gateways.running() as gateway:
        address = str(gateway.address)
        first = clients.push(group, topic, name_server=address)
        wait_until(lambda: is_shared([first]), "one consumer holds all queues")
        second = clients.push(group, topic, name_server=address)
        wait_until(lambda: is_shared([first, second]), "two consumers share the queues")
        producer = clients.producer(name_server=address)
        producer.send(topic, [f"before {number}" for number in range(70)])
        connections = partial(clients.mqadmin, "consumerConnection", "-g", group, name_server=address)
        wait_until(lambda: connections().count("@client-") == 2, "the view has both clients")
        assert clients.mqadmin("clusterList", name_server=address).count(rocketmq.broker) == 0
    with gateways.running() as gateway:
        assert str(gateway.address) == address
        wait_until(lambda: is_shared([first, second]), "both are back")
        producer.send(topic, [f"after {number}" for number in range(70)])
        sent = {f"{when} {number}" for when in ("before", "after") for number in range(70)}
        wait_until(lambda: set(first.bodies + second.bodies) == sent, "all messages are received")
        second.stop()
        wait_until(lambda: is_shared([first]), "the other one takes over")
        checks = gateway.checks()
        assert set(checks.values()) == {None}, checks
        (swallowed,) = gateway.numbers()["notifications_swallowed"].values()
        assert swallowed[0] > 0
