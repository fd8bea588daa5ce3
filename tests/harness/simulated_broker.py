"""Topics in memory, and those parts of Kafka's clients that the replica and its service use.

Each call of a client first lets other processes act (`Broker.meanwhile`), as any of them may on a real
cluster.
"""

import struct
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple, Self
from uuid import UUID

import pytest
from confluent_kafka import TopicCollection, Uuid
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import TopicPartition

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.early_answers import Headers
from streaming.service.outages import outage

CLIENT_CONFIG = ClientConfig("simulated:9092")
TOPIC_ID = "00000000-0000-0007-0000-000000000009"
"""The id of all topics."""


class StoredRecord(NamedTuple):
    """A record as kafka-python gives it."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Message(NamedTuple):
    """A record as confluent-kafka gives it."""

    record: StoredRecord

    def error(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 2, self.record.timestamp

    def partition(self) -> int:
        return self.record.partition

    def offset(self) -> int:
        return self.record.offset

    def key(self) -> bytes | None:
        return self.record.key

    def value(self) -> bytes | None:
        return self.record.value

    def headers(self) -> Headers | None:
        return self.record.headers or None


class Broker:
    """All partitions of all topics, with append times. `now_ms` never decreases."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 0
        self.meanwhile: Callable[[], None] = lambda: None
        """Lets other processes act. Clients call it before they do anything."""
        self.fully_read_topic = ""
        """The topic from which consumers always read all records."""
        self.early_producers: list[EarlyProducer] = []
        self.logs: defaultdict[tuple[str, int], list[StoredRecord]] = defaultdict(list)
        self.starts: defaultdict[tuple[str, int], int] = defaultdict(int)
        """The offsets of the first records that have not been deleted."""

    def append(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> StoredRecord:
        log = self.logs[topic, partition]
        log.append(StoredRecord(topic, partition, len(log), self.now_ms, key, value, headers))
        return log[-1]

    def end(self, topic: str, partition: int) -> int:
        return len(self.logs[topic, partition])

    def connect(self, patch: pytest.MonkeyPatch) -> None:
        """Replace the product's clients by clients of this broker."""
        patch.setattr(kafka_clients, "producer", lambda *_, **__: Producer(self))
        patch.setattr(kafka_clients, "best_effort_producer", lambda *_, **__: Producer(self))
        patch.setattr(kafka_clients, "answers_consumer", lambda *_, **__: Consumer(self))
        patch.setattr(kafka_clients, "early_answers_producer", lambda *_, **__: EarlyProducer(self))
        patch.setattr(kafka_clients, "librdkafka_admin", lambda _: Admin(self))
        patch.setattr(outage, "TopicReader", lambda *_, **__: Reader(self))


class Producer:
    """kafka-python's producer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers = (),
        partition: int = 0,
    ) -> "Sent":
        self._broker.meanwhile()
        return Sent(self._broker.append(topic, partition, key, value, headers))

    def close(self, timeout: float) -> None:
        """Do nothing, because every record is already sent."""


class Sent(NamedTuple):
    """kafka-python's future."""

    record: StoredRecord

    def get(self, timeout: float) -> StoredRecord:
        return self.record


class Reader:
    """`kafka_why.topic_reader.TopicReader`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._begin: Mapping[TopicPartition, int] = {}

    def beginnings(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def offsets_at(
        self, partitions: Collection[TopicPartition], at_ms: int
    ) -> dict[TopicPartition, int | None]:
        self._broker.meanwhile()
        offsets = {}
        for partition in partitions:
            later = (record.offset for record in self._of(partition) if record.timestamp >= at_ms)
            offsets[partition] = next(later, None)
        return offsets

    def start(self, *, at: Mapping[TopicPartition, int]) -> None:
        self._begin = at

    def read_to(
        self, ends: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> Iterator[StoredRecord]:
        for partition, begin in self._begin.items():
            self._broker.meanwhile()
            yield from self._of(partition)[begin : ends[partition]]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, because nothing is open."""

    def _of(self, partition: TopicPartition) -> list[StoredRecord]:
        return self._broker.logs[partition.topic, partition.partition]


class Consumer:
    """confluent-kafka's consumer. It reads random numbers of records from the partitions in random order, but
    all records of `broker.fully_read_topic`.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._positions: dict[tuple[str, int], int] = {}
        self._known_ends: dict[tuple[str, int], int] = {}

    def assign(self, places: Collection[ConfluentPartition]) -> None:
        self._positions = {(place.topic, place.partition): place.offset for place in places}

    def get_watermark_offsets(
        self, place: ConfluentPartition, timeout: float = 0, *, cached: bool = False
    ) -> tuple[int, int]:
        end = self._broker.end(place.topic, place.partition)
        return 0, self._known_ends.get((place.topic, place.partition), -1001) if cached else end

    def poll(self, timeout: float) -> Message | None:
        self._known_ends = {place: self._broker.end(*place) for place in self._positions}
        return self._next()

    def consume(self, at_most: int, timeout: float) -> list[Message]:
        number = min(at_most, self._broker.random.choice((0, 1, 5, 50)))
        if any(topic == self._broker.fully_read_topic for topic, _ in self._positions):
            number = at_most
        return [message for _ in range(number) if (message := self._next()) is not None]

    def close(self) -> None:
        self._positions = {}

    def _next(self) -> Message | None:
        behind = [place for place, position in self._positions.items() if position < self._known_ends[place]]
        if not behind:
            return None
        place = self._broker.random.choice(behind)
        self._positions[place] += 1
        return Message(self._broker.logs[place][self._positions[place] - 1])


class Admin:
    """confluent-kafka's admin client."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def list_offsets(
        self, places: Collection[ConfluentPartition], request_timeout: float
    ) -> dict[ConfluentPartition, Future[Any]]:
        return {
            place: _done(
                ConfluentPartition(
                    place.topic, place.partition, self._broker.starts[place.topic, place.partition]
                )
            )
            for place in places
        }

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> Mapping[str, Future[Any]]:
        return defaultdict(
            lambda: _done(SimpleNamespace(topic_id=Uuid(*struct.unpack(">qq", UUID(TOPIC_ID).bytes))))
        )


def _done(result: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


class EarlyProducer:
    """confluent-kafka's producer. Records stay in flight until `deliver`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        broker.early_producers.append(self)
        self._in_flight: deque[tuple[str, bytes, int, Headers]] = deque()

    def __len__(self) -> int:
        return len(self._in_flight)

    def produce(self, topic: str, value: bytes, partition: int, headers: Any) -> None:
        self._in_flight.append((topic, value, partition, headers))

    def poll(self, timeout: float) -> int:
        return 0

    def purge(self, *, in_flight: bool) -> None:
        """Do nothing, because no record waits in this process."""

    def flush(self, timeout: float) -> int:
        return len(self)

    def deliver(self, number: int) -> None:
        """Append up to `number` of the records in flight, in order."""
        for _ in range(min(number, len(self))):
            topic, value, partition, headers = self._in_flight.popleft()
            self._broker.append(topic, partition, None, value, headers)
