"""Lags in time against the truth, and what hurts, of real consumers: stuck, poison, slow, idle, paused."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaProducer

from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.layout import TopicLayout
from kafka_why.lag import definitions
from kafka_why.lag.brokers import PRECISION_MS
from kafka_why.lag.definitions import LogBounds, Partition, PartitionLag
from kafka_why.metrics.metrics_state import MetricsState
from kafka_why.metrics.series import GroupLags
from kafka_why.metrics.service import MetricsFollower
from tests.e2e.gateway_clients import new_group
from tests.e2e.harness import create_topic, note, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

RECORDS = 5
"""Records of each topic before the story begins."""
STUCK_MS = 6_000
"""Instead of two minutes."""
PAUSE_S = 0.2
MINUTE_MS = 60_000
LOOK_MS = 1_000
"""A record may come while a look is under way."""
LOOKS = 3
"""The slow consumer's lag is compared at so many looks at the brokers."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Story:
    """A topic with one consumer. `each_turn` is what it does between two polls. `came_ms` are the times
    between which each record came: when it was sent and when it was acknowledged.
    """

    topic: str
    each_turn: Callable[["Story"], None] = lambda _: None
    is_fed: bool = True
    group_id: str = field(default_factory=new_group)
    came_ms: list[tuple[int, int]] = field(default_factory=list)
    consumer: Consumer | None = None

    def commit(self, offset: int) -> None:
        assert self.consumer is not None
        self.consumer.commit(offsets=[TopicPartition(self.topic, 0, offset)], asynchronous=False)

    def start(self, gateway: str, first_offset: int) -> None:
        """Join, and commit the first offset."""
        settings = {"bootstrap.servers": gateway, "group.id": self.group_id, "enable.auto.commit": False}
        consumer = self.consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        consumer.subscribe([self.topic])

        def is_assigned() -> bool:
            consumer.poll(0.1)
            return bool(consumer.assignment())

        wait_until(is_assigned, "the consumer has its partition")
        self.commit(first_offset)

    def feed(self, producer: KafkaProducer) -> None:
        sent_ms = now_ms()
        producer.send(self.topic, b"record", partition=0).get(30)
        self.came_ms.append((sent_ms, now_ms()))

    def error_ms(self, lag: PartitionLag) -> int:
        """By how much a lag in time is too long (or too short: below 0), whenever the records came."""
        assert lag.records is not None and lag.ms is not None
        next_ms, newest_ms = self.came_ms[lag.offset], self.came_ms[lag.offset + lag.records - 1]
        least_ms, most_ms = newest_ms[0] - next_ms[1], newest_ms[1] - next_ms[0]
        return lag.ms - min(max(lag.ms, least_ms), most_ms)


class Watched(MetricsState):
    """What the metrics of a coordinator know of its groups, and the times of the looks at the brokers."""

    def __init__(self, layout: TopicLayout) -> None:
        super().__init__(layout)
        self.looks_ms: list[int] = []

    def add_bounds(self, bounds: Mapping[Partition, LogBounds], at_ms: int) -> None:
        super().add_bounds(bounds, at_ms)
        self.looks_ms.append(at_ms)

    def lags_of(self, story: Story) -> GroupLags | None:
        return (self.numbers().lags or {}).get(story.group_id)

    def lag_of(self, story: Story) -> PartitionLag | None:
        found = self.lags_of(story)
        return None if found is None else found.lags[story.topic, 0]

    def is_stuck(self, story: Story) -> bool:
        found = self.lags_of(story)
        return found is not None and (story.topic, 0) in found.troubles.stuck


def slowly() -> Callable[[Story], None]:
    """Commit the next record each fifth turn, in which five come."""
    turns = iter(range(10**6))

    def each_turn(story: Story) -> None:
        turn = next(turns)
        if turn % 5 == 0:
            story.commit(RECORDS + turn // 5)

    return each_turn


@contextmanager
def turning(stories: list[Story], producer: KafkaProducer) -> Iterator[None]:
    """Feed the topics and let the consumers act, until the end. Raises what one of them raised."""
    stopped = threading.Event()

    def turn() -> None:
        while not stopped.wait(PAUSE_S):
            for story in stories:
                if story.is_fed:
                    story.feed(producer)
                assert story.consumer is not None
                story.consumer.poll(0)
                story.each_turn(story)

    with ThreadPoolExecutor(max_workers=1) as thread:
        turned = thread.submit(turn)
        try:
            yield
        finally:
            stopped.set()
        turned.result()


@contextmanager
def following(broker: EmbeddedBroker, layout: TopicLayout) -> Iterator[Watched]:
    state = Watched(layout)
    follower = MetricsFollower(broker.client_config, layout, state, lambda _: None)
    follower.start()
    try:
        yield state
    finally:
        follower.stop()


def test_lag_tells_stuck_from_idle_and_slow_consumers(
    broker: EmbeddedBroker,
    layout: TopicLayout,
    gateway: str,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setattr(definitions, "STUCK_MS", STUCK_MS)
    group = new_group()
    stuck, poison, slow, idle, paused = stories = [
        Story(f"{group}-stuck"),
        Story(f"{group}-poison", lambda story: story.commit(3)),
        Story(f"{group}-slow", slowly()),
        Story(f"{group}-idle", is_fed=False),
        Story(f"{group}-paused", is_fed=False),
    ]
    with ExitStack() as stack:
        producer = stack.enter_context(closing(kafka_clients.producer(broker.client_config)))
        for story in stories:
            create_topic(broker.client_config, story.topic, 1, {})
            for _ in range(RECORDS):
                story.feed(producer)
        for story, first_offset in ((stuck, 3), (poison, 3), (slow, RECORDS), (idle, RECORDS), (paused, 2)):
            story.start(gateway, first_offset)
            assert story.consumer is not None
            stack.callback(story.consumer.close)
        state = stack.enter_context(following(broker, layout))
        wait_until(lambda: state.lag_of(slow) is not None and state.looks_ms != [], "the first look")
        began_s = time.monotonic()
        with turning(stories, producer):
            errors_ms = watch_slow(state, slow)
            wait_until(lambda: state.is_stuck(stuck) and state.is_stuck(poison), "both are found")
            found_s = time.monotonic() - began_s
            assert [story.topic for story in (slow, idle, paused) if state.is_stuck(story)] == []
        left = [state.lag_of(story) for story in (idle, paused)]
    assert [None if lag is None else lag.records for lag in left] == [0, RECORDS - 2]
    note(record_property, "found after, with a threshold of 6 s", f"{found_s:.1f} s")
    note(record_property, "errors of the lag in time", f"{errors_ms} ms")
    between_ms = max(later - look for look, later in pairwise(state.looks_ms))
    assert max(map(abs, errors_ms)) < between_ms + LOOK_MS


def watch_slow(state: Watched, slow: Story) -> list[int]:
    """Return the errors of the lag in time at each of some looks at the brokers, once there is a lag."""
    errors_ms: dict[int, int] = {}  # by the newest record that the look saw

    def is_enough() -> bool:
        lag = state.lag_of(slow)
        if lag is not None and lag.records and lag.ms and lag.offset + lag.records <= len(slow.came_ms):
            errors_ms.setdefault(lag.offset + lag.records, slow.error_ms(lag))
        return len(errors_ms) >= LOOKS

    wait_until(is_enough, "the slow consumer's lag is known")
    return [*errors_ms.values()]


def test_lag_of_records_before_the_first_poll_uses_their_timestamps(
    broker: EmbeddedBroker, layout: TopicLayout, gateway: str
) -> None:
    """A record a minute over the last hour, the 20th is the next to consume."""
    story = Story(f"{new_group()}-old")
    create_topic(broker.client_config, story.topic, 1, {})
    first_ms = now_ms() - 59 * MINUTE_MS
    with closing(kafka_clients.producer(broker.client_config)) as producer:
        sent = [
            producer.send(story.topic, b"record", partition=0, timestamp_ms=first_ms + minute * MINUTE_MS)
            for minute in range(60)
        ]
        for future in sent:
            future.get(30)
    story.start(gateway, 20)
    assert story.consumer is not None
    story.consumer.close()
    with following(broker, layout) as state:

        def lag_ms() -> int | None:
            lag = state.lag_of(story)
            return None if lag is None else lag.ms

        wait_until(lambda: lag_ms() is not None, "the record's time is known")
        assert 0 <= (lag_ms() or 0) - 39 * MINUTE_MS <= PRECISION_MS
