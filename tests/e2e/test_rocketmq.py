"""RocketMQ's consumers under a real coordinator: offsets that stay, locks, and silence."""

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

from clients.coordinator_client import CoordinatorClient
from clients.pending import CoordinatorError
from clients.rocketmq.api import ConsumerConfig
from clients.rocketmq.consumer import Inbox, PushConsumer
from clients.rocketmq.instance import Intervals
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import Protocol
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.rocketmq.requests import ConsumeFromWhere, MessageModel
from kafka_why.topic_reader import layout_on
from tests.e2e.harness import create_topic, read_topic, wait_until
from tests.harness.member_requests import join_group
from tests.harness.shared import PREFIX

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
QUEUES = 3
INTERVALS = Intervals(
    rebalance_ms=2_000, heartbeat_ms=1_000, lock_ms=1_000, persist_ms=500, persist_first_ms=500
)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    """Return a topic of QUEUES queues."""
    name = f"rocketmq-orders-{uuid.uuid4()}"
    create_topic(broker.client_config, name, QUEUES, {})
    return name


class RunningConsumer:
    """A consumer in a thread: what it told and consumed. It handles nothing while `go_on` is unset."""

    def __init__(
        self,
        broker: EmbeddedBroker,
        topic: str,
        group_id: str,
        *,
        local_offsets: Path | None = None,
        **config: Any,
    ) -> None:
        self.told: list[str] = []
        self.consumed: Counter[str] = Counter()
        self.go_on = threading.Event()
        self.go_on.set()
        self._changed = threading.Condition()
        self._stack = ExitStack()
        servers, inbox = broker.client_config, Inbox()
        layout = layout_on(servers, PREFIX)
        self.client = self._stack.enter_context(
            CoordinatorClient(servers, layout, client_id="A", listener=inbox)
        )
        consumer = kafka_clients.working_consumer(servers, "test")
        self._stack.callback(consumer.close)
        self._consumer = PushConsumer(
            ConsumerConfig(
                group_id,
                {topic: "*"},
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                **config,
            ),
            self.client,
            inbox,
            consumer,
            self._process,
            self._tell,
            intervals=INTERVALS,
            local_offsets=local_offsets,
        )
        self._thread = threading.Thread(target=self._consumer.run)
        self._thread.start()

    def wait_for(self, seen: Callable[["RunningConsumer"], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: seen(self), PATIENCE_S), (self.told, self.consumed)

    def wait_for_line(self, text: str) -> None:
        self.wait_for(lambda consumer: any(text in line for line in consumer.told))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._consumer.stop()
        self._thread.join(PATIENCE_S)
        self._stack.close()

    def _process(self, records: Sequence[Any]) -> None:
        with self._changed:
            self.consumed.update(record.value.decode() for record in records)
            self._changed.notify_all()
        assert self.go_on.wait(PATIENCE_S)

    def _tell(self, line: str) -> None:
        with self._changed:
            self.told.append(line)
            self._changed.notify_all()


def produce(broker: EmbeddedBroker, topic: str, numbers: range) -> set[str]:
    """Return a record of each number, to the queues in turn."""
    producer = kafka_clients.producer(broker.client_config)
    for number in numbers:
        producer.send(topic, value=b"%d" % number, partition=number % QUEUES)
    producer.close()
    return {str(number) for number in numbers}


def broadcasting(broker: EmbeddedBroker, topic: str, offsets: Path) -> RunningConsumer:
    model = MessageModel.BROADCASTING
    return RunningConsumer(broker, topic, "broadcasting", message_model=model, local_offsets=offsets)


def groups(broker: EmbeddedBroker) -> set[str]:
    """Return the groups that the groups topic has now."""
    records = read_topic(broker.client_config, TopicLayout.named(PREFIX).groups_topic)
    latest = {record.key: record.value for record in records}
    return {key.decode() for key, value in latest.items() if value is not None}


def test_consumers_of_all_kinds(
    broker: EmbeddedBroker, layout: TopicLayout, topic: str, tmp_path: Path
) -> None:
    first = produce(broker, topic, range(30))
    with RunningConsumer(broker, topic, "orderly", orderly=True) as consumer:
        consumer.wait_for(lambda c: c.consumed.keys() == first)
        join = join_group(
            consumer.client,
            "orderly",
            [Protocol("range")],
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
        )
        with pytest.raises(CoordinatorError, match="group 'orderly' is a RocketMQ group") as refused:
            join.result(PATIENCE_S)
        assert refused.value.error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    offsets = tmp_path / "offsets.json"
    with broadcasting(broker, topic, offsets) as consumer:
        consumer.wait_for(lambda c: c.consumed.keys() == first)
    second = produce(broker, topic, range(30, 60))
    with (
        RunningConsumer(broker, topic, "orderly", orderly=True) as orderly,
        broadcasting(broker, topic, offsets) as broadcast,
    ):
        for consumer in (orderly, broadcast):
            consumer.wait_for(lambda c: c.consumed.keys() >= second)
            assert consumer.consumed.keys() == second, "offsets were stored"


@pytest.mark.one_form
def test_a_consumer_that_was_silent_comes_back_on_a_new_connection(
    broker: EmbeddedBroker, layout: TopicLayout, topic: str
) -> None:
    old = produce(broker, topic, range(97, 100))
    with RunningConsumer(broker, topic, "silent") as consumer:
        consumer.wait_for(lambda c: c.consumed.keys() >= old)
        wait_until(lambda: "silent" in groups(broker), "the view of its group")
        consumer.go_on.clear()
        before = produce(broker, topic, range(100, 103))
        consumer.wait_for(lambda c: c.consumed.keys() & before)
        wait_until(lambda: "silent" not in groups(broker), "the silent consumer's group has ended")
        consumer.go_on.set()
        consumer.wait_for_line("the connection was closed: silent for")
        after = produce(broker, topic, range(103, 106))
        consumer.wait_for(lambda c: c.consumed.keys() >= before | after)
