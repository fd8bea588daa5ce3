"""Topics in memory, and Kafka's clients as far as the replica and its service use them.

Each call of a client first lets others act (`Broker.meanwhile`), because any of them may on a real cluster.
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
from confluent_kafka import TopicPartition as Place
from kafka import TopicPartition

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.early_answers import Headers
from streaming.service.outages import outage

CLIENT_CONFIG = ClientConfig("simulated:9092")
TOPIC_ID = "00000000-0000-0007-0000-000000000009"
"""The topic id of every topic."""


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
    """All partitions of all topics, with append times. `now_ms` never goes back."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.read_whole = ""
        self.early_producers: list[EarlyProducer] = []
        self.logs: defaultdict[tuple[str, int], list[StoredRecord]] = defaultdict(list)
        self.starts: defaultdict[tuple[str, int], int] = defaultdict(int)
        """The offsets of the first records that are not deleted."""

    def append(
        self, topic: str, partition: int, key: bytes | None, value: bytes | None, headers: Headers = ()
    ) -> StoredRecord:
        log = self.logs[topic, partition]
        log.append(StoredRecord(topic, partition, len(log), self.now_ms, key, value, headers))
        return log[-1]

    def end(self, topic: str, partition: int) -> int:
        return len(self.logs[topic, partition])

    def connect(self, patch: pytest.MonkeyPatch) -> None:
        """Let the product's clients work on these topics."""
        patch.setattr(kafka_clients, "producer", lambda *_, **__: Producer(self))
        patch.setattr(kafka_clients, "clock_producer", lambda *_, **__: Producer(self))
        patch.setattr(kafka_clients, "answers_consumer", lambda *_, **__: Consumer(self))
        patch.setattr(kafka_clients, "early_answers_producer", lambda *_, **__: EarlyProducer(self))
        patch.setattr(kafka_clients, "librdkafka_admin", lambda _: Admin(self))
        for module in (outage,):
            patch.setattr(module, "TopicReader", lambda *_, **__: Reader(self))


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
        """All is sent."""


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
        found = {}
        for partition in partitions:
            later = (record.offset for record in self._of(partition) if record.timestamp >= at_ms)
            found[partition] = next(later, None)
        return found

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
        """Nothing is open."""

    def _of(self, partition: TopicPartition) -> list[StoredRecord]:
        return self._broker.logs[partition.topic, partition.partition]


class Consumer:
    """confluent-kafka's consumer. It reads the partitions in any order, and as many records as chance has it,
    of the topic `broker.read_whole` all.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._at: dict[tuple[str, int], int] = {}
        self._known_ends: dict[tuple[str, int], int] = {}

    def assign(self, places: Collection[Place]) -> None:
        self._at = {(place.topic, place.partition): place.offset for place in places}

    def get_watermark_offsets(
        self, place: Place, timeout: float = 0, *, cached: bool = False
    ) -> tuple[int, int]:
        end = self._broker.end(place.topic, place.partition)
        return 0, self._known_ends.get((place.topic, place.partition), -1001) if cached else end

    def poll(self, timeout: float) -> Message | None:
        self._known_ends = {place: self._broker.end(*place) for place in self._at}
        return self._next()

    def consume(self, at_most: int, timeout: float) -> list[Message]:
        number = min(at_most, self._broker.random.choice((0, 1, 5, 50)))
        if any(topic == self._broker.read_whole for topic, _ in self._at):
            number = at_most
        return [message for _ in range(number) if (message := self._next()) is not None]

    def close(self) -> None:
        self._at = {}

    def _next(self) -> Message | None:
        behind = [place for place, at in self._at.items() if at < self._known_ends[place]]
        if not behind:
            return None
        place = self._broker.random.choice(behind)
        self._at[place] += 1
        return Message(self._broker.logs[place][self._at[place] - 1])


class Admin:
    """confluent-kafka's admin client."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def list_offsets(self, places: Collection[Place], request_timeout: float) -> dict[Place, Future[Any]]:
        return {
            place: _done(
                Place(place.topic, place.partition, self._broker.starts[place.topic, place.partition])
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
    """confluent-kafka's producer. What is produced is under way until `deliver`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        broker.early_producers.append(self)
        self._under_way: deque[tuple[str, bytes, int, Headers]] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def produce(self, topic: str, value: bytes, partition: int, headers: Any) -> None:
        self._under_way.append((topic, value, partition, headers))

    def poll(self, timeout: float) -> int:
        return 0

    def purge(self, *, in_flight: bool) -> None:
        """Nothing waits in this process."""

    def flush(self, timeout: float) -> int:
        return len(self)

    def deliver(self, number: int) -> None:
        """Append so many of the records that are under way, in their order."""
        for _ in range(min(number, len(self))):
            topic, value, partition, headers = self._under_way.popleft()
            self._broker.append(topic, partition, None, value, headers)
