"""Unmodified RocketMQ clients."""

import pytest

from tests.harness.rocketmq_cluster import QUEUES, RocketMqCluster, new_group
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


def test_push_consumers_share_the_queues_and_receive_every_message(rocketmq: RocketMqCluster) -> None:
    topic, group = rocketmq.create_topic(), new_group()
    clients = rocketmq.clients
    first = clients.push(group, topic)
    wait_until(lambda: len(first.held) == QUEUES, "one consumer holds all queues")
    second = clients.push(group, topic)
    wait_until(
        lambda: {len(first.held), len(second.held)} == {3, 4} and not first.held & second.held,
        "two consumers share the queues",
    )
    bodies = {str(number) for number in range(70)}
    clients.producer().send(topic, bodies)
    wait_until(lambda: set(first.bodies + second.bodies) == bodies, "all messages are received")
    second.stop()
    wait_until(lambda: len(first.held) == QUEUES, "the other one takes over")
