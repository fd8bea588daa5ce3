"""Offsets in transactions, through the gateway and the coordinator, on a real broker: unmodified clients, and the
timelines of decision 23 that can be brought about from outside.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

from cli.groups import groups
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from records.layout import TopicLayout
from state.errors import ErrorCode
from state.kafka.requests import CommittedPartition, CommittedTopic, TxnOffsetCommit
from state.kafka.responses import TxnOffsetCommitResponse
from tests.e2e.gateway_clients import new_group, produce
from tests.e2e.harness import Member, create_topic
from tests.harness.shared import PREFIX
from tests.harness.transactions import (
    NONE,
    TV1,
    TV2,
    UNSTABLE,
    Producer,
    Wire,
    fetched,
    stable_offset,
    wait_for,
)

pytestmark = pytest.mark.e2e

PROTOCOLS = pytest.mark.parametrize("protocol", [TV1, TV2])
ENDINGS = pytest.mark.parametrize("commit", [True, False])
NOTHING = -1
ILLEGAL_GENERATION = 22


@pytest.fixture
def wire(gateway: str) -> Iterator[Wire]:
    with Wire(gateway) as connection:
        yield connection


@pytest.fixture
def group() -> str:
    return new_group()


def producer_of(wire: Wire, protocol: int) -> Producer:
    return Producer(wire, f"app-{uuid.uuid4()}", protocol).init()


def pend(producer: Producer, group: str, topic: str, offset: int, partition: int = 0) -> None:
    """Commit an offset in the producer's open transaction, as a client does."""
    if producer.protocol == TV1:
        assert producer.add_offsets(group) == NONE
    assert producer.commit_offsets(group, {(topic, partition): offset}) == NONE


@PROTOCOLS
@ENDINGS
def test_5_1_5_2_an_offset_is_pending_until_the_transaction_ends(
    wire: Wire, group: str, topic: str, protocol: int, commit: bool
) -> None:
    producer = producer_of(wire, protocol)
    pend(producer, group, topic, 100)
    assert fetched(wire, group, topic, stable=True) == (NOTHING, UNSTABLE)
    assert fetched(wire, group, topic, stable=False) == (NOTHING, NONE)
    assert producer.end(commit=commit) == NONE
    assert stable_offset(wire, group, topic) == (100 if commit else NOTHING)
    assert fetched(wire, group, topic, stable=False) == (100 if commit else NOTHING, NONE)


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
        fields = {"generation_id": joined.generation_id, "member_id": member.member_id}
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
            return client.send(request, TxnOffsetCommitResponse).result().error_code

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


def test_5_16_an_open_transaction_holds_up_nobody_else(wire: Wire, group: str, topic: str) -> None:
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


@pytest.mark.parametrize("version", range(6))
def test_tg8_a_producer_without_a_transaction_is_refused(
    wire: Wire, group: str, topic: str, version: int
) -> None:
    """By a real broker's answers. An old version adds nothing to the transaction."""
    producer = producer_of(wire, TV1)
    told = producer.commit_offsets(group, {(topic, 0): 1}, version)
    if version == 5:
        assert told == NONE
        assert producer.end(commit=False) == NONE
    else:
        assert told == (120 if version == 4 else 48)


def test_tg8_other_producers_are_refused(wire: Wire, group: str, topic: str) -> None:
    for protocol, version in ((TV1, 3), (TV2, 5)):
        producer = producer_of(wire, protocol)
        pend(producer, group, topic, 1)
        for identity, told in (
            (producer.identity._replace(epoch=producer.identity.epoch + 1), 47),
            (producer.identity._replace(producer_id=producer.identity.producer_id + 10_000), 49),
        ):
            stranger = Producer(wire, producer.transactional_id, protocol)
            stranger.identity = identity
            assert stranger.commit_offsets(group, {(topic, 0): 2}, version) == told
        unknown = Producer(wire, f"unknown-{uuid.uuid4()}", protocol)
        unknown.identity = producer.identity
        assert unknown.commit_offsets(group, {(topic, 0): 2}, version) == 49
        assert producer.end(commit=False) == NONE


def test_pending_offsets_are_dropped_by_hand(
    broker: EmbeddedBroker, wire: Wire, group: str, topic: str
) -> None:
    """`groups abort-pending`: what the brokers decide later changes nothing."""

    def abort_pending(*options: str) -> list[dict[str, Any]]:
        servers = broker.client_config.bootstrap_servers
        given = ["abort-pending", "--bootstrap-servers", servers, "--prefix", PREFIX, "--group", group]
        result = CliRunner().invoke(groups, [*given, "-o", "json", *options])
        assert result.exit_code == 0, result.output
        return list(json.loads(result.stdout))

    producers = [producer_of(wire, protocol) for protocol in (TV1, TV2)]
    for partition, producer in enumerate(producers):
        pend(producer, group, topic, 100, partition)
    shown = abort_pending()
    assert [(one["transactional_id"], one["dropped"]) for one in shown] == [
        (producer.transactional_id, False) for producer in producers
    ]
    for partition, producer in enumerate(producers):
        (dropped,) = abort_pending("--transactional-id", producer.transactional_id, "--execute")
        assert (dropped["producer_id"], dropped["dropped"]) == (producer.identity.producer_id, True)
        assert stable_offset(wire, group, topic, partition) == NOTHING
        assert producer.end(commit=True) == NONE
    assert abort_pending() == []
    assert [stable_offset(wire, group, topic, partition) for partition in (0, 1)] == [NOTHING, NOTHING]


class KafkaPython:
    """A consumer and a transactional producer of kafka-python."""

    def __init__(self, gateway: str, group: str, topic: str) -> None:
        self._topic = topic
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=gateway,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        self.producer = KafkaProducer(bootstrap_servers=gateway, transactional_id=f"app-{uuid.uuid4()}")
        self.producer.init_transactions()

    def transact(self, output: str, *, commit: bool) -> int:
        """Copy one record of partition 0 in a transaction. Returns the offset that is committed by it."""
        partition = TopicPartition(self._topic, 0)
        record = wait_for(lambda: self.consumer.poll(1_000, max_records=1).get(partition), "a record", 60.0)[
            0
        ]
        self.producer.begin_transaction()
        self.producer.send(output, record.value, partition=0)
        offsets = {partition: OffsetAndMetadata(record.offset + 1, "", -1)}
        self.producer.send_offsets_to_transaction(offsets, self.consumer.group_metadata())
        self._end(commit)
        return int(record.offset) + 1

    def _end(self, commit: bool) -> None:
        if commit:
            self.producer.commit_transaction()
        else:
            self.producer.abort_transaction()

    def committed(self) -> int:
        """The stable offset of partition 0, as the client asks for it: again while it is pending."""
        return self.consumer.committed(TopicPartition(self._topic, 0)) or NOTHING

    def close(self) -> None:
        self.consumer.close()
        self.producer.close()


class Librdkafka:
    """The same of librdkafka."""

    def __init__(self, gateway: str, group: str, topic: str) -> None:
        self._topic = topic
        self.consumer = ConfluentConsumer(
            {
                "bootstrap.servers": gateway,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self.consumer.subscribe([topic])
        self.producer = ConfluentProducer(
            {"bootstrap.servers": gateway, "transactional.id": f"app-{uuid.uuid4()}"}
        )
        self.producer.init_transactions(60)

    def transact(self, output: str, *, commit: bool) -> int:
        def next_record() -> object:
            record = self.consumer.poll(1.0)
            return record if record and not record.error() and record.partition() == 0 else None

        record = wait_for(next_record, "a record", 60.0)
        self.producer.begin_transaction()
        self.producer.produce(output, record.value(), partition=0)
        offsets = [ConfluentPartition(self._topic, 0, record.offset() + 1)]
        self.producer.send_offsets_to_transaction(offsets, self.consumer.consumer_group_metadata(), 60)
        if commit:
            self.producer.commit_transaction(60)
        else:
            self.producer.abort_transaction(60)
        return int(record.offset()) + 1

    def committed(self) -> int:
        (found,) = self.consumer.committed([ConfluentPartition(self._topic, 0)], 60)
        return int(found.offset) if found.offset >= 0 else NOTHING

    def close(self) -> None:
        self.consumer.close()


Client = KafkaPython | Librdkafka


@pytest.mark.parametrize("make", [KafkaPython, Librdkafka])
def test_an_unmodified_client_commits_and_aborts(
    make: Callable[[str, str, str], Client],
    broker: EmbeddedBroker,
    gateway: str,
    wire: Wire,
    group: str,
    topic: str,
) -> None:
    """sendOffsetsToTransaction with a member's generation, read back by a client that requires stable
    offsets.
    """
    output = f"{topic}-output"
    create_topic(broker.client_config, output, 1, {})
    produce(broker.client_config.bootstrap_servers, topic, range(0, 40, 4))
    with closing(make(gateway, group, topic)) as client:
        assert client.transact(output, commit=True) == 1
        assert client.committed() == 1
        assert client.transact(output, commit=False) == 2
        assert client.committed() == 1
        assert client.transact(output, commit=True) == 3
        assert client.committed() == 3
    assert stable_offset(wire, group, topic) == 3
