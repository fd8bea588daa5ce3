"""The reader of topics on a real broker: to the end as of now, from a time, from offsets, following."""

import time
import uuid
from collections.abc import Iterable

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError

from connections import kafka_clients
from embedded.broker import EmbeddedBroker
from records.reader import Record, TopicReader
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


def test_everything_up_to_now_and_nothing_that_comes_later(broker: EmbeddedBroker, topic: str) -> None:
    with TopicReader(broker.client_config) as reader:
        records = reader.read_all(topic)
        append(broker, topic, b"11")
        assert values(records) == list(range(11))
        assert values(reader.read_all(topic)) == list(range(12))


def test_from_a_time(broker: EmbeddedBroker, topic: str) -> None:
    with TopicReader(broker.client_config) as reader:
        partitions = reader.partitions_of(topic)
        first = reader.offsets_at(partitions, stamp_ms(6) - 50_000)
        assert first == {TopicPartition(topic, 0): 6, TopicPartition(topic, 1): None}
        place, _ = partitions
        reader.start(at={place: 6})
        assert values(reader.read_to(reader.ends([place]))) == [6, 7, 8, 9]
        assert reader.records_read == 4


def test_what_is_behind_the_end_stays_for_the_next_read(broker: EmbeddedBroker, topic: str) -> None:
    """One fetch brings all ten records, also those that are not read yet."""
    with TopicReader(broker.client_config) as reader:
        first, _ = reader.partitions_of(topic)
        reader.start(beginning=[first])
        assert values(reader.read_to({first: 4})) == [0, 1, 2, 3]
        assert reader.positions([first]) == {first: 4}
        assert values(reader.read_to({first: 10})) == [4, 5, 6, 7, 8, 9]


def test_up_to_an_offset_of_each_partition(broker: EmbeddedBroker, topic: str) -> None:
    with TopicReader(broker.client_config) as reader:
        first, second = reader.partitions_of(topic)
        reader.start(at={first: 2, second: 0})
        assert values(reader.read_to({first: 4, second: 0})) == [2, 3]
        assert not reader.has_read(reader.ends([second]) | {first: 11})


def test_from_the_end_on(broker: EmbeddedBroker, topic: str) -> None:
    with TopicReader(broker.client_config) as reader:
        reader.start(end=reader.partitions_of(topic))
        append(broker, topic, b"11")
        while not (records := reader.poll()):
            pass
        assert values(records) == [11]


def test_an_end_that_never_comes_is_given_up(broker: EmbeddedBroker, topic: str) -> None:
    with TopicReader(broker.client_config) as reader:
        place = TopicPartition(topic, 0)
        reader.start(beginning=[place])
        with pytest.raises(KafkaTimeoutError, match=f"topic {topic} was not read to its end"):
            list(reader.read_to({place: 100}, timeout_ms=500))


def test_a_topic_that_is_not_there_has_no_partitions(broker: EmbeddedBroker) -> None:
    with TopicReader(broker.client_config) as reader:
        assert reader.partitions_of("nobody-was-here") == []
