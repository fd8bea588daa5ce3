"""The cost of the gateway for a client's records: librdkafka's, 1 kB each, produced to a topic and consumed.

Each turn and side has its own topic, so that both consume what they produced, from the broker's memory.
"""

import random
import time
import uuid
from contextlib import closing
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.load.load_result import WrongAnswer
from bench.report import Figure, say
from bench.rows.bench import AT_ONCE_MS, Bench, Found, Plan
from bench.systems import GATEWAY, KAFKAS_OWN, RunningSystems
from kafka_why.connections.address import Address

RECORD_BYTES = 1_000
PARTITIONS = 4
MB = 1_000_000

_AT_ONCE = 1_000
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class Limit:
    """A turn ends after this many bytes, or this many seconds."""

    megabytes: int = 200
    seconds: float = 5.0

    @property
    def records(self) -> int:
        """Return the number of records that have these bytes."""
        return self.megabytes * MB // RECORD_BYTES


@dataclass
class Passed:
    """MB/s, one value per turn."""

    produced: list[float] = field(default_factory=list)
    consumed: list[float] = field(default_factory=list)


def measure(bench: Bench) -> Found:
    """Measure the gateway and the broker alternately."""
    world = bench.systems(AT_ONCE_MS).world
    ours, kafkas = bench.load(alternate, world, bench.plan, Limit())
    return Found(
        [
            Figure("records of 1 kB produced", "MB/s", ours.produced, kafkas.produced, "the broker"),
            Figure("records of 1 kB consumed", "MB/s", ours.consumed, kafkas.consumed, "the broker"),
        ]
    )


def alternate(world: RunningSystems, plan: Plan, limit: Limit) -> tuple[Passed, Passed]:
    """Measure through the gateway and directly at the broker, after a first turn for warm-up."""
    warming, ours, kafkas = Passed(), Passed(), Passed()
    for turn in range(plan.repeats + 1):
        say(f"    turn {turn} of {plan.repeats}" if turn else "    warming up")
        with world.alone((GATEWAY,)):
            there_and_back(world.ours, limit, ours if turn else warming)
        with world.alone(KAFKAS_OWN):
            there_and_back(world.kafkas, limit, kafkas if turn else warming)
    return ours, kafkas


def there_and_back(address: Address, limit: Limit, passed: Passed) -> int:
    """Produce and consume records at this address; return how many. Raises WrongAnswer if one is lost."""
    servers, topic = str(address), f"passthrough-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(_PATIENCE_S)
    records, rate = _produce(servers, topic, limit)
    passed.produced.append(rate)
    passed.consumed.append(_consume(servers, topic, records))
    admin.delete_topics([topic])[topic].result(_PATIENCE_S)
    return records


def _produce(servers: str, topic: str, limit: Limit) -> tuple[int, float]:
    """Return how many records the broker has acknowledged, and MB/s."""
    refused: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "log_level": 4,  # warnings; level 5 and higher logs the end of each producer
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: refused.append(error),
        }
    )
    value, sent = random.Random(7).randbytes(RECORD_BYTES), 0
    producer.list_topics(topic, _PATIENCE_S)  # connect
    began_s = time.perf_counter()
    while sent < limit.records and time.perf_counter() - began_s < limit.seconds:
        for _ in range(_AT_ONCE):
            _enqueue(producer, topic, value)
        sent += _AT_ONCE
    left = producer.flush(_PATIENCE_S)
    took_s = time.perf_counter() - began_s
    if left or refused:
        raise WrongAnswer(f"{left} records not acknowledged, {len(refused)} refused: {refused[:1]}")
    return sent, sent * RECORD_BYTES / MB / took_s


def _enqueue(producer: Producer, topic: str, value: bytes) -> None:
    while True:
        try:
            producer.produce(topic, value)
        except BufferError:
            producer.poll(0.01)  # the queue is full: wait for the broker
        else:
            return


def _consume(servers: str, topic: str, records: int) -> float:
    """Return MB/s, from the first received records to the last."""
    settings = {"bootstrap.servers": servers, "group.id": "passthrough", "enable.auto.commit": False}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        first = consumed = _consume_batch(consumer)
        began_s = time.perf_counter()
        while consumed < records:
            consumed += _consume_batch(consumer)
        took_s = time.perf_counter() - began_s
    return (consumed - first) * RECORD_BYTES / MB / took_s


def _consume_batch(consumer: Consumer) -> int:
    """Consume as many records as were sent at once. Raises WrongAnswer if they are missing or differ."""
    messages = consumer.consume(_AT_ONCE, _PATIENCE_S)
    whole = sum(not m.error() and len(m.value() or b"") == RECORD_BYTES for m in messages)
    if whole != _AT_ONCE:
        errors = [m.error() for m in messages if m.error()]
        raise WrongAnswer(f"{whole} of {_AT_ONCE} records arrived unchanged: {errors[:1]}")
    return whole
