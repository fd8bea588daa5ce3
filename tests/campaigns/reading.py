"""Reads a topic to its end. Imports nothing of the project, so that a judge may use it."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

TIMEOUT_S = 60


class Record(NamedTuple):
    """A record of a topic. `at_ms` is its append time."""

    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


def reader(servers: str, topic: str, isolation: str = "read_uncommitted") -> tuple[Consumer, set[int]]:
    """Return a consumer of all partitions of a topic, and the numbers of the partitions.

    The consumer begins at the beginning of each partition, and reports when it is at the end of one.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "judge",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    partitions = set(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    return consumer, partitions


def read(servers: str, topic: str, isolation: str = "read_uncommitted") -> list[Record]:
    """Return all records of a topic, perhaps with some that are added meanwhile. Raises TimeoutError."""
    consumer, behind = reader(servers, topic, isolation)
    # The consumer never reports the end of a partition that gets records all the time.
    ends = {
        partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)[1]
        for partition in behind
    }
    found: list[Record] = []
    give_up_s = time.monotonic() + TIMEOUT_S
    while behind:
        messages = consumer.consume(5_000, timeout=0.2)
        if messages:
            give_up_s = time.monotonic() + TIMEOUT_S
        elif time.monotonic() > give_up_s:
            raise TimeoutError(f"{topic} was not read to its end")
        for message in messages:
            it: Any = message
            if it.error() is None:
                _, at_ms = it.timestamp()
                record = (it.partition(), it.offset(), at_ms, it.key(), it.value(), it.headers() or ())
                found.append(Record(*record))
                if it.offset() + 1 >= ends[it.partition()]:
                    behind.discard(it.partition())
            elif it.error().code() == KafkaError._PARTITION_EOF:
                behind.discard(it.partition())
            else:
                raise TimeoutError(f"{topic}: {it.error()}")
    consumer.close()
    return found
