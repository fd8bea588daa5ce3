"""Consumers that are well until a turn, and then hang, fail at a record, are slow, pause, leave or come back.

They are librdkafka's, at a coordinator that the caller names. The producer writes to a topic of each of them.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

TICK_S = 0.1
"""The producer writes a record to each topic in this time."""
COMMIT_S = 5.0
BURST_RECORDS = 10_000
BURST_PER_TICK = 3
PAUSED_RECORDS = 50
AWAY_S = 50.0
_AT_ONCE = 100

STORIES = (
    "well",
    "stuck",
    "poison record",
    "slow",
    "no members",
    "idle producer",
    "paused consumer",
    "burst",
    "started again",
)
_IDLE = ("idle producer", "paused consumer")


class Came:
    """When each record came, by topic and offset, in milliseconds: when the broker acknowledged it."""

    def __init__(self) -> None:
        self._ms: dict[str, dict[int, int]] = defaultdict(dict)

    def take(self, error: Any, message: Message) -> None:
        """A record was acknowledged. Raises AssertionError if it was not."""
        assert error is None, error
        topic, offset = message.topic(), message.offset()
        assert topic is not None
        assert offset is not None
        self._ms[topic][offset] = time.time_ns() // 1_000_000

    def lag_ms(self, topic: str, offset: int, records: int) -> int | None:
        """The time from the record at an offset to the last one of so many, None if one is not known yet."""
        came = self._ms[topic]
        if offset not in came or offset + records - 1 not in came:
            return None
        return came[offset + records - 1] - came[offset]


@dataclass
class Played:
    """A group with one consumer, and its topic with one partition. `turn_s` is when it turned."""

    story: str
    group_id: str
    servers: str
    consumer: Consumer | None = None
    turn_s: float | None = None
    stands_at: int | None = None
    committed_s: float = 0.0
    ticks: int = 0

    @property
    def topic(self) -> str:
        return self.group_id

    @property
    def is_fed(self) -> bool:
        return self.turn_s is None or self.story not in _IDLE

    def join(self) -> None:
        """Start the consumer."""
        self.consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": self.group_id,
                "client.id": f"{self.group_id}-1",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "max.poll.interval.ms": 3_600_000,
            }
        )
        self.consumer.subscribe([self.topic])

    def leave(self) -> None:
        if self.consumer is not None:
            self.consumer.close()
        self.consumer = None

    def turn(self) -> None:
        """Begin to do what the story is about."""
        self.turn_s = time.monotonic()
        assert self.consumer is not None
        if self.story in ("no members", "started again"):
            self.leave()
        elif self.story == "paused consumer":
            self.consumer.pause(self.consumer.assignment())
        elif self.story == "poison record":
            (position,) = self.consumer.position(self.consumer.assignment())
            self.stands_at = position.offset

    def tick(self) -> None:
        """Consume what the story lets it, and commit each COMMIT_S."""
        self.ticks += 1
        if self.story == "started again" and self.consumer is None and self.away_s > AWAY_S:
            self.join()
        if self.consumer is None or (self.turn_s is not None and self.story == "stuck"):
            return
        if self.turn_s is None or self.story != "slow":
            at_once = _AT_ONCE if self.turn_s is None or self.story != "burst" else BURST_PER_TICK
            self._consume(at_once)
        elif self.ticks % 2:
            self._consume(1)
        if time.monotonic() - self.committed_s > COMMIT_S and self.consumer.assignment():
            self._commit()
            self.committed_s = time.monotonic()

    @property
    def away_s(self) -> float:
        return 0.0 if self.turn_s is None else time.monotonic() - self.turn_s

    def _consume(self, number: int) -> None:
        assert self.consumer is not None
        self.consumer.consume(number, timeout=0)
        if self.stands_at is not None:  # it failed at this record, and tries it again
            self.consumer.seek(TopicPartition(self.topic, 0, self.stands_at))

    def _commit(self) -> None:
        assert self.consumer is not None
        positions = self.consumer.position(self.consumer.assignment())
        if self.stands_at is not None:
            positions = [TopicPartition(self.topic, 0, self.stands_at)]
        known = [one for one in positions if one.offset >= 0]
        if known:
            self.consumer.commit(offsets=known, asynchronous=True)


@contextmanager
def playing(played: list[Played], broker: str, came: Came) -> Iterator[Callable[[], None]]:
    """Make the topics, and let all play until the end. Yields what makes them turn.

    Raises at the end what one of them raised.
    """
    admin = AdminClient({"bootstrap.servers": broker})
    for future in admin.create_topics([NewTopic(one.topic, 1, 1) for one in played]).values():
        future.result()
    turning, stopping, failed = threading.Event(), threading.Event(), []

    def play() -> None:
        producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
        try:
            while not stopping.wait(TICK_S):
                for one in played:
                    _turn_if_due(one, turning.is_set(), producer, came)
                    if one.is_fed:
                        producer.produce(one.topic, b"record", partition=0, on_delivery=came.take)
                    one.tick()
                producer.poll(0)
            producer.flush()
        except Exception as error:
            failed.append(error)
            raise

    for one in played:
        one.join()
    thread = threading.Thread(target=play, name="play")
    thread.start()
    try:
        yield turning.set
    finally:
        stopping.set()
        thread.join()
        for one in played:
            one.leave()
    if failed:
        raise failed[0]


def _turn_if_due(one: Played, is_time: bool, producer: Producer, came: Came) -> None:
    if not is_time or one.turn_s is not None:
        return
    one.turn()
    extra = {"burst": BURST_RECORDS, "paused consumer": PAUSED_RECORDS}.get(one.story, 0)
    for number in range(extra):
        producer.produce(one.topic, b"record", partition=0, on_delivery=came.take)
        if number % 1_000 == 0:
            producer.poll(0)
