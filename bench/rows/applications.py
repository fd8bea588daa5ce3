"""The times that applications and tools wait: the gateway and the broker's own coordinator take turns."""

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
from bench.rows.bench import NO_DELAY_MS, Bench, Plan, RowResult
from bench.stats import percentile
from bench.systems import BEHIND_GATEWAY, KAFKAS_OWN, ON_TOPICS, PREFIX, RunningSystems
from embedded.jars import class_path
from embedded.java import find_java
from kafka_why.connections import kafka_clients
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig

DESCRIBED_GROUPS = 60
_WARM_UP_REQUESTS = 3
_JOINING_RECORDS = 10  # records for the polls in which the consumer joins
_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_TOOL_TIMEOUT_MS = 60_000
_KAFKAS_OWN = "Kafka's own"

Durations = list[float]
"""Seconds."""


def measure(bench: Bench) -> RowResult:
    """Measure one kind of application after another, at the gateway and at the broker in turns."""
    systems = bench.systems(NO_DELAY_MS).running
    row = RowResult()
    for what, function, required, target in (
        ("records of a consumer that commits after each", time_commits, at_least(150), at_least(400)),
        ("transactions with offsets of one producer", time_transactions, at_least(35), at_least(70)),
    ):
        say(f"  {what}")
        ours, kafkas = bench.call_in_process(function, systems, bench.plan)
        rates, kafkas_rates = ([len(turn) / sum(turn) for turn in side] for side in (ours, kafkas))
        row.figures.append(Figure(what, "/s", rates, kafkas_rates, _KAFKAS_OWN, required, target))
        row.figures += [
            Figure(f"{what}: {name}", "ms", _quantile_ms(ours, q), _quantile_ms(kafkas, q), _KAFKAS_OWN)
            for name, q in (("p50", 0.5), ("p99", 0.99))
        ]
    what = "from the end of a transaction until its offset is stable, p50"
    say(f"  {what}")
    ours, kafkas = bench.call_in_process(time_until_stable, systems, bench.plan)
    row.figures.append(Figure(what, "ms", _quantile_ms(ours, 0.5), _quantile_ms(kafkas, 0.5), _KAFKAS_OWN))
    what = f"--describe --all-groups of {DESCRIBED_GROUPS} groups"
    say(f"  {what}")
    ours_s, kafkas_s = bench.call_in_process(time_describe, systems, bench.plan)
    required, target = ratio_at_most(1.3), ratio_at_most(1.1)
    row.figures.append(Figure(what, "s", ours_s, kafkas_s, _KAFKAS_OWN, required, target))
    return row


def _quantile_ms(turns: list[Durations], q: float) -> list[float]:
    return [percentile(turn, q) * 1e3 for turn in turns]


def time_commits(systems: RunningSystems, plan: Plan) -> tuple[list[Durations], list[Durations]]:
    """Return by turn the seconds to poll and commit each record, on both sides."""
    topic = _new_topic(systems)
    with closing(kafka_clients.producer(ClientConfig(systems.servers))) as producer:
        for _ in range((plan.repeats + 1) * plan.single_requests * 4 + _JOINING_RECORDS):
            producer.send(topic, b"x")
        producer.flush()
    with _consumer(systems.ours, topic) as ours, _consumer(systems.kafkas, topic) as kafkas:
        return _by_turns(systems, plan, _timed(_consume, ours), _timed(_consume, kafkas), times=4)


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
    """Poll one record, and commit its offset."""
    while not consumer.poll(timeout_ms=1_000):
        pass
    consumer.commit()


def time_transactions(systems: RunningSystems, plan: Plan) -> tuple[list[Durations], list[Durations]]:
    """Return by turn the seconds of each transaction, on both sides."""
    topic = _new_topic(systems)
    with _producer(systems.ours) as ours, _producer(systems.kafkas) as kafkas:
        return _by_turns(
            systems, plan, _timed(_transact, ours, topic, 1), _timed(_transact, kafkas, topic, 1)
        )


def time_until_stable(systems: RunningSystems, plan: Plan) -> tuple[list[Durations], list[Durations]]:
    """Return by turn, for both sides, the seconds from a transaction's end until its offset is readable."""
    topic, numbers = _new_topic(systems), count(1)
    with (
        _producer(systems.ours) as ours,
        _producer(systems.kafkas) as kafkas,
        _reader(systems.ours, topic) as ours_reader,
        _reader(systems.kafkas, topic) as kafkas_reader,
    ):

        def time_one(producer: KafkaProducer, reader: KafkaConsumer) -> float:
            number = next(numbers)
            _transact(producer, topic, number)
            return _timed(_wait_for, reader, TopicPartition(topic, 0), number)()

        return _by_turns(
            systems, plan, partial(time_one, ours, ours_reader), partial(time_one, kafkas, kafkas_reader)
        )


@contextmanager
def _producer(address: Address) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(
        bootstrap_servers=str(address),
        transactional_id=f"app-{uuid.uuid4()}",
        retry_backoff_ms=10,  # a broker refuses a new transaction until the markers of the last are written
    )
    with closing(producer):
        producer.init_transactions()
        yield producer


@contextmanager
def _reader(address: Address, topic: str) -> Iterator[KafkaConsumer]:
    """Yield a reader of the offsets that `_transact` commits."""
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
        pass  # the client itself retries while the offset is pending


def _group_of(topic: str) -> str:
    return f"group-of-{topic}"


def _transact(producer: KafkaProducer, topic: str, offset: int) -> None:
    """Commit a transaction with a record, and with this offset of partition 0 for the topic's own group."""
    producer.begin_transaction()
    producer.send(topic, b"x", partition=0)
    offsets = {TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
    producer.send_offsets_to_transaction(offsets, _group_of(topic))
    producer.commit_transaction()


def _by_turns(
    systems: RunningSystems,
    plan: Plan,
    ours: Callable[[], float],
    kafkas: Callable[[], float],
    times: int = 1,
) -> tuple[list[Durations], list[Durations]]:
    """Call `ours` and `kafkas` in turns. Return by turn the seconds that they return, for both sides."""
    sides: tuple[list[Durations], list[Durations]] = ([], [])
    for turn in range(plan.repeats + 1):
        for system_names, time_one, turns in (
            (BEHIND_GATEWAY, ours, sides[0]),
            (KAFKAS_OWN, kafkas, sides[1]),
        ):
            with systems.run_only(system_names):
                for _ in range(_WARM_UP_REQUESTS):
                    time_one()
                waits_s = [time_one() for _ in range(plan.single_requests * times - _WARM_UP_REQUESTS)]
            if turn:  # the first one warms up
                turns.append(waits_s)
    return sides


def time_describe(systems: RunningSystems, plan: Plan) -> tuple[list[float], list[float]]:
    """Return the seconds of each `kafka-consumer-groups --describe --all-groups`, on both sides."""
    return asyncio.run(_describe(systems, plan))


async def _describe(systems: RunningSystems, plan: Plan) -> tuple[list[float], list[float]]:
    group_ids = [f"described-{uuid.uuid4()}" for _ in range(DESCRIBED_GROUPS)]
    sides: tuple[list[float], list[float]] = ([], [])
    with TopicsClient(systems.servers, PREFIX, packed=systems.packed) as client:
        with systems.run_only(ON_TOPICS):
            members = client.form_groups(group_ids)
        await kafka_groups.form(systems.kafkas, group_ids)
        for _ in range(plan.repeats):
            for system_names, address, seconds in (
                (BEHIND_GATEWAY, systems.ours, sides[0]),
                (KAFKAS_OWN, systems.kafkas, sides[1]),
            ):
                with systems.run_only(system_names):
                    seconds.append(_timed(_run_tool, address)())
        client.end_groups(members)
    return sides


def _run_tool(address: Address) -> None:
    java = [str(find_java()), "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", class_path("tools"), _TOOL]
    arguments = ["--bootstrap-server", str(address), "--timeout", str(_TOOL_TIMEOUT_MS)]
    subprocess.run(
        [*java, *arguments, "--describe", "--all-groups"], check=True, capture_output=True, timeout=120
    )


def _new_topic(systems: RunningSystems) -> str:
    topic = f"application-{uuid.uuid4()}"
    with closing(kafka_clients.admin(ClientConfig(systems.servers))) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    return topic


def _timed(function: Callable[..., None], *args: Any) -> Callable[[], float]:
    """Return a function that calls `function` and returns the seconds that it took."""

    def call() -> float:
        began_s = time.monotonic()
        function(*args)
        return time.monotonic() - began_s

    return call
