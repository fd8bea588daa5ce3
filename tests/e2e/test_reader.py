"""The reader of topics on a real broker: up to the present end, from a time, from offsets, and following."""

import time
import uuid
from collections.abc import Iterable, Iterator

import pytest
from kafka.errors import KafkaTimeoutError

from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.topic_reader import Record, TopicReader
from tests.e2e.harness import create_topic

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """Of two partitions: 0 has the values 0 to 9, stamped 100 s apart and ending now, 1 has one value, 10."""
    name = f"reader-{uuid.uuid4()}"
    create_topic(broker.client_config, name, 2, {})
    producer = kafka_clients.producer(broker.client_config)
    for number in range(10):
        producer.send(name, value=b"%d" % number, partition=0, timestamp_ms=stamp_ms(number))
    producer.send(name, value=b"10", partition=1, timestamp_ms=stamp_ms(0))
    producer.close()
    return name


_NOW_MS = time.time_ns() // 1_000_000


def stamp_ms(number: int) -> int:
    return _NOW_MS - (9 - number) * 100_000


def append(broker: EmbeddedBroker, topic: str, value: bytes) -> None:
    producer = kafka_clients.producer(broker.client_config)
    producer.send(topic, value=value, partition=0).get(timeout=30)
    producer.close()


def values(records: Iterable[Record]) -> list[int]:
    return sorted(int(record.value) for record in records)


@pytest.fixture
def reader(broker: EmbeddedBroker) -> Iterator[TopicReader]:
    with TopicReader(broker.client_config) as reader:
        yield reader


def test_topic_is_read_to_its_current_end(reader: TopicReader, broker: EmbeddedBroker, topic: str) -> None:
    records = reader.read_all(topic)
    append(broker, topic, b"11")
    assert values(records) == list(range(11))
    assert values(reader.read_all(topic)) == list(range(12))


def test_topic_is_read_from_offsets_and_times_up_to_offsets(reader: TopicReader, topic: str) -> None:
    """One fetch brings all records, also those that are not read yet."""
    first, second = reader.partitions_of(topic)
    assert reader.offsets_at([first, second], stamp_ms(6) - 50_000) == {first: 6, second: None}
    reader.start(at={first: 6})
    assert values(reader.read_to(reader.ends([first]))) == [6, 7, 8, 9]
    assert reader.records_read == 4
    reader.start(at={first: 2, second: 0})
    assert values(reader.read_to({first: 4, second: 0})) == [2, 3]
    assert reader.positions([first]) == {first: 4}
    assert not reader.has_read(reader.ends([second]) | {first: 11})
    assert values(reader.read_to({first: 10})) == [4, 5, 6, 7, 8, 9]
    with pytest.raises(KafkaTimeoutError, match=f"topic {topic} was not read to its end"):
        list(reader.read_to({first: 100}, timeout_ms=500))


def test_topic_is_followed_from_its_end(reader: TopicReader, broker: EmbeddedBroker, topic: str) -> None:
    assert reader.partitions_of("nobody-was-here") == []
    reader.start(end=reader.partitions_of(topic))
    append(broker, topic, b"11")
    while not (records := reader.poll()):
        pass
    assert values(records) == [11]
