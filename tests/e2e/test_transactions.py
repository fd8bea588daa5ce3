"""Offsets in transactions, through the gateway and the coordinator, on a real broker: by hand, and by
unmodified clients. tests/faults/test_transaction_timelines.py has what may go wrong on the way.
"""

import json
import uuid
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

from cli.groups import groups
from embedded.broker import EmbeddedBroker
from tests.e2e.gateway_clients import produce
from tests.e2e.harness import create_topic
from tests.harness.shared import PREFIX
from tests.harness.transactions import (
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

ENDINGS = pytest.mark.parametrize("commit", [True, False])


@PROTOCOLS
def test_5_1_5_2_an_offset_is_pending_until_the_transaction_ends(
    wire: Wire, group: str, topic: str, protocol: int
) -> None:
    """Of one producer, without a wait in between: in the first protocol both transactions have one epoch."""
    producer = producer_of(wire, protocol)
    pend(producer, group, topic, 100)
    assert fetched(wire, group, topic, stable=True) == (NOTHING, UNSTABLE)
    assert fetched(wire, group, topic, stable=False) == (NOTHING, NONE)
    assert producer.end(commit=True) == NONE
    pend(producer, group, topic, 101, partition=1)
    assert producer.end(commit=False) == NONE
    assert [stable_offset(wire, group, topic, partition) for partition in (0, 1)] == [100, NOTHING]
    assert fetched(wire, group, topic, stable=False) == (100, NONE)


def test_tg8_a_producer_without_a_transaction_is_refused(wire: Wire, group: str, topic: str) -> None:
    """By a real broker's answers. An old version adds nothing to the transaction."""
    producer = producer_of(wire, TV1)
    told = [producer.commit_offsets(group, {(topic, 0): 1}, version) for version in range(6)]
    assert told == [48, 48, 48, 48, 120, NONE]
    assert producer.end(commit=False) == NONE


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
