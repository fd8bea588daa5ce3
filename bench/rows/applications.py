"""The times that applications and tools wait, through the gateway and at the broker's own coordinator, in
turn.
"""

import asyncio
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.structs import OffsetAndMetadata

from bench.load import kafka_groups
from bench.load.topics import TopicsClient
from bench.report import Figure, at_least, ratio_at_most, say
from bench.rows.bench import AT_ONCE_MS, Bench, Found, Plan
from bench.stats import percentile
from bench.systems import BEHIND_GATEWAY, KAFKAS_OWN, ON_TOPICS, PREFIX, RunningSystems
from embedded.jars import class_path
from embedded.java import find_java
from kafka_why.connections import kafka_clients
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig

DESCRIBED_GROUPS = 60
_UNCOUNTED = 3
_SPARE = 10  # records for the polls in which the consumer joins
_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_TOOL_TIMEOUT_MS = 60_000
_KAFKAS_IS = "Kafka's own"

Waits = list[float]
"""Seconds."""


def measure(bench: Bench) -> Found:
    """Measure one application after the other, both sides in turn."""
    world = bench.systems(AT_ONCE_MS).world
    found = Found()
    for what, function, line, goal in (
        ("records of a consumer that commits after each", commits, at_least(150), at_least(400)),
        ("transactions with offsets of one producer", transactions, at_least(35), at_least(70)),
    ):
        say(f"  {what}")
        ours, kafkas = bench.load(function, world, bench.plan)
        rates, beside = ([len(turn) / sum(turn) for turn in side] for side in (ours, kafkas))
        found.figures.append(Figure(what, "/s", rates, beside, _KAFKAS_IS, line, goal))
        found.figures += [
            Figure(f"{what}: {name}", "ms", _quantile_ms(ours, q), _quantile_ms(kafkas, q), _KAFKAS_IS)
            for name, q in (("p50", 0.5), ("p99", 0.99))
        ]
    what = "from the end of a transaction until its offset is stable, p50"
    say(f"  {what}")
    ours, kafkas = bench.load(stable, world, bench.plan)
    found.figures.append(Figure(what, "ms", _quantile_ms(ours, 0.5), _quantile_ms(kafkas, 0.5), _KAFKAS_IS))
    what = f"--describe --all-groups of {DESCRIBED_GROUPS} groups"
    say(f"  {what}")
    ours_s, kafkas_s = bench.load(describe, world, bench.plan)
    line, goal = ratio_at_most(1.3), ratio_at_most(1.1)
    found.figures.append(Figure(what, "s", ours_s, kafkas_s, _KAFKAS_IS, line, goal))
    return found


def _quantile_ms(turns: list[Waits], q: float) -> list[float]:
    return [percentile(turn, q) * 1e3 for turn in turns]


def commits(world: RunningSystems, plan: Plan) -> tuple[list[Waits], list[Waits]]:
    """Return by turn the seconds from each record to the next, on both sides."""
    topic = _new_topic(world)
    with closing(kafka_clients.producer(ClientConfig(world.servers))) as producer:
        for _ in range((plan.repeats + 1) * plan.singles * 4 + _SPARE):
            producer.send(topic, b"x")
        producer.flush()
    with _consumer(world.ours, topic) as ours, _consumer(world.kafkas, topic) as kafkas:
        return _by_turns(world, plan, _timed(_consume, ours), _timed(_consume, kafkas), times=4)


@contextmanager
def _consumer(address: Address, topic: str) -> Iterator[KafkaConsumer]:
    """Yield a consumer of all records, whose group has formed."""
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=str(address),
        group_id=f"commits-{uuid.uuid4()}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=1,
    )
    with closing(consumer):
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        yield consumer


def _consume(consumer: KafkaConsumer) -> None:
    while not consumer.poll(timeout_ms=1_000):
        pass
    consumer.commit()


def transactions(world: RunningSystems, plan: Plan) -> tuple[list[Waits], list[Waits]]:
    """Return by turn the seconds of each transaction, on both sides."""
    topic = _new_topic(world)
    with _producer(world.ours) as ours, _producer(world.kafkas) as kafkas:
        return _by_turns(world, plan, _timed(_transact, ours, topic, 1), _timed(_transact, kafkas, topic, 1))


def stable(world: RunningSystems, plan: Plan) -> tuple[list[Waits], list[Waits]]:
    """Return by turn the seconds from the end of each transaction until a client reads its offset, on both
    sides.
    """
    topic, numbers = _new_topic(world), count(1)
    with (
        _producer(world.ours) as ours,
        _producer(world.kafkas) as kafkas,
        _reader(world.ours, topic) as ours_reader,
        _reader(world.kafkas, topic) as kafkas_reader,
    ):

        def once(producer: KafkaProducer, reader: KafkaConsumer) -> float:
            number = next(numbers)
            _transact(producer, topic, number)
            return _timed(_wait_for, reader, TopicPartition(topic, 0), number)()

        return _by_turns(world, plan, partial(once, ours, ours_reader), partial(once, kafkas, kafkas_reader))


@contextmanager
def _producer(address: Address) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(
        bootstrap_servers=str(address),
        transactional_id=f"app-{uuid.uuid4()}",
        retry_backoff_ms=10,  # a broker refuses one until the markers of the last are written
    )
    with closing(producer):
        producer.init_transactions()
        yield producer


@contextmanager
def _reader(address: Address, topic: str) -> Iterator[KafkaConsumer]:
    """Yield a reader of the offsets that `_transact` sends."""
    reader = KafkaConsumer(
        bootstrap_servers=str(address),
        group_id=_group_of(topic),
        enable_auto_commit=False,
        isolation_level="read_committed",
        retry_backoff_ms=10,
    )
    with closing(reader):
        reader.assign([TopicPartition(topic, 0)])
        yield reader


def _wait_for(reader: KafkaConsumer, partition: TopicPartition, offset: int) -> None:
    while reader.committed(partition) != offset:
        pass  # the client itself asks again while the offset is pending


def _group_of(topic: str) -> str:
    return f"group-of-{topic}"


def _transact(producer: KafkaProducer, topic: str, offset: int) -> None:
    producer.begin_transaction()
    producer.send(topic, b"x", partition=0)
    offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
    producer.send_offsets_to_transaction(offsets, _group_of(topic))
    producer.commit_transaction()


def _by_turns(
    world: RunningSystems, plan: Plan, ours: Callable[[], float], kafkas: Callable[[], float], times: int = 1
) -> tuple[list[Waits], list[Waits]]:
    """Return what `ours` and `kafkas` return, in seconds."""
    sides: tuple[list[Waits], list[Waits]] = ([], [])
    for turn in range(plan.repeats + 1):
        for systems, once, turns in ((BEHIND_GATEWAY, ours, sides[0]), (KAFKAS_OWN, kafkas, sides[1])):
            with world.alone(systems):
                for _ in range(_UNCOUNTED):
                    once()
                waits = [once() for _ in range(plan.singles * times - _UNCOUNTED)]
            if turn:  # the first one warms up
                turns.append(waits)
    return sides


def describe(world: RunningSystems, plan: Plan) -> tuple[list[float], list[float]]:
    """Return the seconds of each run of the tool, on both sides."""
    return asyncio.run(_describe(world, plan))


async def _describe(world: RunningSystems, plan: Plan) -> tuple[list[float], list[float]]:
    group_ids = [f"described-{uuid.uuid4()}" for _ in range(DESCRIBED_GROUPS)]
    sides: tuple[list[float], list[float]] = ([], [])
    with TopicsClient(world.servers, PREFIX, packed=world.packed) as client:
        with world.alone(ON_TOPICS):
            members = client.form(group_ids)
        await kafka_groups.form(world.kafkas, group_ids)
        for _ in range(plan.repeats):
            for systems, address, seconds in (
                (BEHIND_GATEWAY, world.ours, sides[0]),
                (KAFKAS_OWN, world.kafkas, sides[1]),
            ):
                with world.alone(systems):
                    seconds.append(_timed(_run_tool, address)())
        client.end(members)
    return sides


def _run_tool(address: Address) -> None:
    java = [str(find_java()), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", class_path("tools"), _TOOL]
    arguments = ["--bootstrap-server", str(address), "--timeout", str(_TOOL_TIMEOUT_MS)]
    subprocess.run(
        [*java, *arguments, "--describe", "--all-groups"], check=True, capture_output=True, timeout=120
    )


def _new_topic(world: RunningSystems) -> str:
    topic = f"application-{uuid.uuid4()}"
    with closing(kafka_clients.admin(ClientConfig(world.servers))) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    return topic


def _timed(function: Callable[..., None], *args: Any) -> Callable[[], float]:
    """Return a call of this function that returns the seconds it took."""

    def call() -> float:
        began_s = time.monotonic()
        function(*args)
        return time.monotonic() - began_s

    return call
