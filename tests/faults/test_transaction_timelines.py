"""What may happen to a transaction with offsets: the timelines of decision 23 that can be brought about from
outside, through the gateway and the coordinator, on a real broker.
"""

from typing import Any

import pytest

from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import CommittedPartition, CommittedTopic, TxnOffsetCommit
from kafka_why.contract.layout import TopicLayout
from tests.e2e.harness import Member
from tests.harness.transactions import (
    ILLEGAL_GENERATION,
    NONE,
    NOTHING,
    PROTOCOLS,
    TV1,
    TV2,
    UNSTABLE,
    Producer,
    Wire,
    fetched,
    pend,
    producer_of,
    stable_offset,
    wait_for,
)

pytestmark = pytest.mark.e2e


@PROTOCOLS
def test_transactions_of_one_producer_do_not_mix(wire: Wire, group: str, topic: str, protocol: int) -> None:
    """One after the other, without a wait in between: in the first protocol they all have one epoch."""
    producer = producer_of(wire, protocol)
    for number in range(4):
        pend(producer, group, topic, number, partition=number)
        assert producer.end(commit=number % 2 == 0) == NONE
    assert [stable_offset(wire, group, topic, p) for p in range(4)] == [0, NOTHING, 2, NOTHING]


def test_5_4_a_repeated_request_moves_the_offset_once(wire: Wire, group: str, topic: str) -> None:
    producer = producer_of(wire, TV2)
    for _ in range(2):
        pend(producer, group, topic, 100)
    assert producer.end(commit=True) == NONE
    assert stable_offset(wire, group, topic) == 100


@PROTOCOLS
def test_5_6_a_successor_aborts_what_a_killed_application_left(
    wire: Wire, group: str, topic: str, protocol: int
) -> None:
    pend(producer_of(wire, protocol), group, topic, 40)
    killed = producer_of(wire, protocol)
    pend(killed, group, topic, 100, partition=1)
    successor = Producer(wire, killed.transactional_id, protocol).init()
    assert stable_offset(wire, group, topic, 1) == NOTHING
    # What the killed one still sends is refused, and changes nothing.
    assert killed.commit_offsets(group, {(topic, 1): 100}) in (47, 49)
    pend(successor, group, topic, 7, partition=1)
    assert successor.end(commit=True) == NONE
    assert stable_offset(wire, group, topic, 1) == 7
    assert fetched(wire, group, topic, stable=True) == (NOTHING, UNSTABLE)


def test_5_8_the_end_of_a_transaction_need_not_pass_a_gateway(
    broker: EmbeddedBroker, wire: Wire, group: str, topic: str
) -> None:
    producer = producer_of(wire, TV2)
    pend(producer, group, topic, 100)
    with Wire(broker.client_config.bootstrap_servers) as direct:
        other = Producer(direct, producer.transactional_id, TV2)
        other.identity = producer.identity
        assert other.end(commit=True) == NONE
    assert stable_offset(wire, group, topic) == 100


def test_5_10_a_member_of_an_older_generation_is_refused(
    broker: EmbeddedBroker, layout: TopicLayout, wire: Wire, group: str, topic: str
) -> None:
    """KIP-447: the check is at the request's place in the log, and what is pending stays pending."""
    with CoordinatorClient(broker.client_config, layout, client_id="members") as client:
        member = Member.of(client, group)
        joined = member.join().result()
        member.sync(joined.generation_id, {member.member_id: b"all"}).result()
        producer = producer_of(wire, TV2)
        fields: dict[str, Any] = {"generation_id": joined.generation_id, "member_id": member.member_id}
        assert producer.commit_offsets(group, {(topic, 0): 100}, **fields) == NONE
        again = member.join().result()
        assert again.generation_id > joined.generation_id
        assert producer.commit_offsets(group, {(topic, 1): 100}, **fields) == ILLEGAL_GENERATION
        assert fetched(wire, group, topic, stable=True) == (NOTHING, UNSTABLE)
        assert producer.end(commit=True) == NONE
    assert stable_offset(wire, group, topic) == 100
    assert stable_offset(wire, group, topic, 1) == NOTHING


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


@PROTOCOLS
def test_5_14_deleted_offsets_do_not_come_back(wire: Wire, group: str, topic: str, protocol: int) -> None:
    """OffsetDelete and DeleteGroups while an offset is pending."""
    producer = producer_of(wire, protocol)
    pend(producer, group, topic, 100)
    pend(producer, group, topic, 101, partition=1)
    forgotten = wire.ask(
        47, 0, group_id=group, topics=[{"name": topic, "partitions": [{"partition_index": 0}]}]
    )
    assert forgotten.error_code == NONE
    assert fetched(wire, group, topic, stable=True) == (NOTHING, NONE)
    other = f"{group}-2"
    pend(producer, other, topic, 102)
    (deleted,) = wire.ask(42, 2, groups_names=[other]).results
    assert deleted.error_code == NONE
    assert producer.end(commit=True) == NONE
    assert stable_offset(wire, group, topic, 1) == 101
    assert stable_offset(wire, group, topic) == NOTHING
    assert stable_offset(wire, other, topic) == NOTHING


def test_5_16_open_transaction_delays_no_other_client(wire: Wire, group: str, topic: str) -> None:
    hanging, producer = producer_of(wire, TV2), producer_of(wire, TV2)
    pend(hanging, group, topic, 100)
    pend(producer, group, topic, 200, partition=1)
    assert producer.end(commit=True) == NONE
    assert stable_offset(wire, group, topic, 1) == 200
    assert fetched(wire, group, topic, stable=True) == (NOTHING, UNSTABLE)
    assert hanging.end(commit=False) == NONE


def test_5_17_of_two_producers_the_later_request_counts(wire: Wire, group: str, topic: str) -> None:
    """In the order of their requests in the log, not of the ends of their transactions."""
    first, second = producer_of(wire, TV1), producer_of(wire, TV2)
    pend(first, group, topic, 100)
    pend(second, group, topic, 200)
    assert second.end(commit=True) == NONE
    wait_for(lambda: fetched(wire, group, topic, stable=False) == (200, NONE), "the second one's offset")
    assert fetched(wire, group, topic, stable=True) == (NOTHING, UNSTABLE)
    assert first.end(commit=True) == NONE
    assert stable_offset(wire, group, topic) == 200
