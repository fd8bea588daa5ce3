"""The cost of the gateway for producing and consuming records of 1 kB, with librdkafka.

Each turn of each side has its own topic, so that it consumes what it produced, from the broker's memory.
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
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult
from bench.systems import GATEWAY, KAFKAS_OWN, RunningSystems
from kafka_why.connections.address import Address

RECORD_BYTES = 1_000
PARTITIONS = 4
MB = 1_000_000

_AT_ONCE = 1_000  # records
_PATIENCE_S = 30.0


@dataclass(frozen=True)
class TurnLimit:
    """A turn ends after this many bytes, or this many seconds."""

    megabytes: int = 200
    seconds: float = 5.0

    @property
    def records(self) -> int:
        """The number of records in `megabytes`."""
        return self.megabytes * MB // RECORD_BYTES


@dataclass
class ThroughputTurns:
    """The rates at one side in MB/s, one value per turn."""

    produced: list[float] = field(default_factory=list)
    consumed: list[float] = field(default_factory=list)


def measure(bench: Bench) -> RowResult:
    """Measure the gateway and the broker alternately."""
    systems = bench.systems(NO_DELAY_MS).running
    ours, kafkas = bench.call_in_process(alternate, systems, bench.plan, TurnLimit())
    return RowResult(
        [
            Figure("records of 1 kB produced", "MB/s", ours.produced, kafkas.produced, "the broker"),
            Figure("records of 1 kB consumed", "MB/s", ours.consumed, kafkas.consumed, "the broker"),
        ]
    )


def alternate(
    systems: RunningSystems, plan: Plan, limit: TurnLimit
) -> tuple[ThroughputTurns, ThroughputTurns]:
    """Measure through the gateway and directly at the broker, after a first turn for warm-up."""
    discarded, ours, kafkas = ThroughputTurns(), ThroughputTurns(), ThroughputTurns()
    for turn in range(plan.repeats + 1):
        say(f"    turn {turn} of {plan.repeats}" if turn else "    discarded up")
        with systems.run_only((GATEWAY,)):
            there_and_back(systems.ours, limit, ours if turn else discarded)
        with systems.run_only(KAFKAS_OWN):
            there_and_back(systems.kafkas, limit, kafkas if turn else discarded)
    return ours, kafkas


def there_and_back(address: Address, limit: TurnLimit, turns: ThroughputTurns) -> int:
    """Produce and consume records at this address; return how many. Raises WrongAnswer if one is lost."""
    servers, topic = str(address), f"passthrough-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(_PATIENCE_S)
    records, rate = _produce(servers, topic, limit)
    turns.produced.append(rate)
    turns.consumed.append(_consume(servers, topic, records))
    admin.delete_topics([topic])[topic].result(_PATIENCE_S)
    return records


def _produce(servers: str, topic: str, limit: TurnLimit) -> tuple[int, float]:
    """Return how many records the broker has acknowledged, and MB/s."""
    errors: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "log_level": 4,  # warnings; level 5 and higher logs the end of each producer
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: errors.append(error),
        }
    )
    value, sent = random.Random(7).randbytes(RECORD_BYTES), 0
    producer.list_topics(topic, _PATIENCE_S)  # connect
    began_s = time.perf_counter()
    while sent < limit.records and time.perf_counter() - began_s < limit.seconds:
        for _ in range(_AT_ONCE):
            _enqueue(producer, topic, value)
        sent += _AT_ONCE
    unacknowledged = producer.flush(_PATIENCE_S)
    took_s = time.perf_counter() - began_s
    if unacknowledged or errors:
        raise WrongAnswer(f"{unacknowledged} records not acknowledged, {len(errors)} refused: {errors[:1]}")
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
        first = consumed = _consume_batch(consumer)  # until the clock starts, so these do not count
        began_s = time.perf_counter()
        while consumed < records:
            consumed += _consume_batch(consumer)
        took_s = time.perf_counter() - began_s
    return (consumed - first) * RECORD_BYTES / MB / took_s


def _consume_batch(consumer: Consumer) -> int:
    """Consume as many records as were sent at once. Raises WrongAnswer if they are missing or differ."""
    messages = consumer.consume(_AT_ONCE, _PATIENCE_S)
    intact = sum(not m.error() and len(m.value() or b"") == RECORD_BYTES for m in messages)
    if intact != _AT_ONCE:
        errors = [m.error() for m in messages if m.error()]
        raise WrongAnswer(f"{intact} of {_AT_ONCE} records arrived unchanged: {errors[:1]}")
    return intact
