"""What the end-to-end tests share: fresh topics, everything a topic holds, waiting for what has no event."""

import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from streaming.layout import Layout
from streaming.records import CLOCK_PATTERN

CLOCK = re.compile(CLOCK_PATTERN.encode())
WAIT_TIMEOUT_S = 60.0


def new_layout(**sizes: int) -> Layout:
    """Topics of its own for a test: tests share one broker."""
    return Layout.named(f"test-{uuid.uuid4()}", **sizes)


def create_topic(servers: str, topic: str, partitions: int, settings: dict[str, str]) -> None:
    """Make a topic with these settings, and wait until it can be used."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    options = {"num_partitions": partitions, "replication_factor": 1, "configs": settings}
    try:
        admin.create_topics({topic: options}, wait_for_metadata=True)
    finally:
        admin.close()


def read_topic(servers: str, topic: str) -> list[ConsumerRecord]:
    """All records a topic holds now; of each partition in its order."""
    consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False, metrics_enabled=False)
    try:
        partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        records: list[ConsumerRecord] = []
        while any(consumer.position(p) < ends[p] for p in partitions):
            polled: dict[TopicPartition, list[Any]] = consumer.poll(timeout_ms=1_000)
            records += [record for batch in polled.values() for record in batch]
    finally:
        consumer.close()
    return records


def clock_claims(records: list[ConsumerRecord]) -> list[tuple[int, int, int]]:
    """(partition, claimed ms, append time in ms) of each clock record."""
    return [
        (record.partition, int(match[1]), record.timestamp)
        for record in records
        if record.key is None and (match := CLOCK.match(record.value))
    ]


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
    """Wait for something that nobody announces (another process, a file); fails saying what did not come."""
    give_up_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < give_up_s, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.05)
