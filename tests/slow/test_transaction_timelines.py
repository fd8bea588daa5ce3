"""What may happen to a transaction with offsets: the timelines of decision 23 that can be brought about from
outside, through the gateway and the coordinator, on a real broker.
"""

import pytest

from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.contract.kafka.requests import CommittedPartition, CommittedTopic, TxnOffsetCommit
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode
from tests.harness.transactions import (
    NONE,
    NOTHING,
    TV1,
    TV2,
    UNSTABLE,
    Producer,
    Wire,
    fetched,
    pend,
    producer_of,
    stable_offset,
)

pytestmark = pytest.mark.e2e


def test_5_8_transaction_may_end_without_the_gateway(
    broker: EmbeddedBroker, wire: Wire, group: str, topic: str
) -> None:
    producer = producer_of(wire, TV2)
    pend(producer, group, topic, 100)
    with Wire(broker.client_config.bootstrap_servers) as direct:
        other = Producer(direct, producer.transactional_id, TV2)
        other.identity = producer.identity
        assert other.end(commit=True) == NONE
    assert stable_offset(wire, group, topic) == 100


def test_5_11_a_request_that_is_written_late_changes_nothing(
    broker: EmbeddedBroker, layout: TopicLayout, wire: Wire, group: str, topic: str
) -> None:
    """A gateway stood still between its questions to the brokers and its request to the coordinator. In the
    first protocol the next transaction has the same producer id and epoch.
    """
    producer = producer_of(wire, TV1)
    pend(producer, group, topic, 50)
    assert producer.end(commit=True) == NONE
    assert stable_offset(wire, group, topic) == 50
    with CoordinatorClient(broker.client_config, layout, client_id="late") as client:

        def late(position: int) -> ErrorCode:
            partitions = [CommittedPartition(0, 100)]
            request = TxnOffsetCommit(
                **client.header(group, 3),
                transactional_id=producer.transactional_id,
                producer_id=producer.identity.producer_id,
                producer_epoch=producer.identity.epoch,
                txn_version=1,
                txn_partition=0,
                txn_position=position,
                topics=[CommittedTopic(topic, partitions)],
            )
            return client.send(request).result().error_code

        # The transaction is over, and the coordinator knows it: the marker stands at or above this position.
        assert late(0) is ErrorCode.INVALID_TXN_STATE
        assert fetched(wire, group, topic, stable=True) == (50, NONE)


def test_5_16_open_transaction_delays_no_other_client(wire: Wire, group: str, topic: str) -> None:
    hanging, producer = producer_of(wire, TV2), producer_of(wire, TV2)
    pend(hanging, group, topic, 100)
    pend(producer, group, topic, 200, partition=1)
    assert producer.end(commit=True) == NONE
    assert stable_offset(wire, group, topic, 1) == 200
    assert fetched(wire, group, topic, stable=True) == (NOTHING, UNSTABLE)
    assert hanging.end(commit=False) == NONE
