"""A push consumer process: RocketMQ's rebalancing, with messages from Kafka.

One thread does everything in turn: the client's due work, then a poll, then the processing of the records. So
no message is in processing during a rebalance, and a queue can be given up at once.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from clients.coordinator_client import CoordinatorClient
from clients.rocketmq.api import ConsumerConfig
from clients.rocketmq.broker import BROKER_NAME, CoordinatorBroker
from clients.rocketmq.instance import ClientInstance, Intervals, ProcessQueue
from kafka_why.contract.rocketmq.queues import MessageQueue
from kafka_why.contract.rocketmq.responses import AnyToConnection, CloseConnection
from kafka_why.partition_text import number_list

_POLL_MS = 100
_POLL_MAX_RECORDS = 1_000

# The argument has kafka-python's ConsumerRecords of one poll. When the call returns, they count as processed.
Process = Callable[[Sequence[Any]], None]


@dataclass(frozen=True, slots=True)
class _StopRequested:
    reason: str


@dataclass(frozen=True, slots=True)
class Inbox:
    """The messages to a consumer. It is the `listener` of the consumer's CoordinatorClient. Thread-safe."""

    messages: SimpleQueue[AnyToConnection | _StopRequested] = field(default_factory=SimpleQueue)

    def __call__(self, message: AnyToConnection) -> None:
        self.messages.put(message)


class PushConsumer:
    """A consumer of one group. `run` blocks until `stop` is called.

    `client` has `inbox` as its listener; the strategies use its client id. Only this consumer may use
    `consumer`, which has no group. `process` gets the records of each poll, one queue at a time. When
    `process` returns, the records count as processed. If it raises, `run` gives up all queues and raises the
    same exception. `tell` gets a line of text for each event.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        client: CoordinatorClient,
        inbox: Inbox,
        consumer: KafkaConsumer,
        process: Process,
        tell: Callable[[str], None],
        *,
        intervals: Intervals | None = None,
        local_offsets: Path | None = None,
    ) -> None:
        self._config = config
        self._inbox = inbox
        self._consumer = consumer
        self._process = process
        self._tell = tell
        self._clock_offset_s = time.time() - time.monotonic()
        self._broker = CoordinatorBroker(client, consumer, config.group_id, local_offsets, tell)
        self._instance = ClientInstance(client.client_id, [config], self._broker, self._now_ms(), intervals)
        self._rebalance = self._instance.groups[config.group_id]
        self._consumed: dict[MessageQueue, ProcessQueue] = {}
        self._held: list[MessageQueue] | None = None
        self._stop_reason: str | None = None

    def stop(self, reason: str = "the consumer was stopped") -> None:
        """Make `run` give up its queues and return. Safe in a signal handler and from any thread."""
        self._inbox.messages.put(_StopRequested(reason))

    def run(self) -> None:
        """Consume until `stop`, then give up all queues and unregister."""
        self._instance.start(self._now_ms())
        try:
            while self._stop_reason is None:
                self._turn()
        finally:
            self._consumer.unsubscribe()
            self._instance.shut_down()
            self._broker.flush()
            self._tell(f"gave everything up: {self._stop_reason or 'the consumer failed'}")

    def _turn(self) -> None:
        """Run the loop once: do the due work, poll if there are queues, and handle one message."""
        now_ms = self._now_ms()
        if now_ms >= self._instance.due_ms:
            self._instance.tick(now_ms)
        self._assign()
        wait_ms = max(0, min(_POLL_MS, self._instance.due_ms - self._now_ms()))
        if self._consumed:
            self._consume(wait_ms)
            wait_ms = 0
        self._listen(wait_ms / 1000)

    def _listen(self, wait_s: float) -> None:
        try:
            message = self._inbox.messages.get(wait_s > 0, wait_s)
        except Empty:
            return
        if isinstance(message, _StopRequested):
            self._stop_reason = message.reason
        elif message.connection != self._broker.connection:
            return
        elif isinstance(message, CloseConnection):
            self._tell(f"the connection was closed: {message.reason}")
            self._broker.reconnect()
            self._instance.start(self._now_ms())
        else:
            self._tell("the group's consumer ids changed")
            self._instance.notified(self._now_ms())

    def _assign(self) -> None:
        """Assign the queues that may be consumed now. A new queue starts at its start offset."""
        now_ms = self._now_ms()
        queues = self._rebalance.process_queues
        wanted = {queue: p for queue, p in queues.items() if self._rebalance.may_consume(queue, now_ms)}
        self._report_shares(list(queues))
        if wanted.keys() != self._consumed.keys():
            if wanted:
                self._consumer.assign([_partition(queue) for queue in wanted])
            else:
                self._consumer.unsubscribe()
        for queue, process in wanted.items():
            if self._consumed.get(queue) is not process:
                self._consumer.seek(_partition(queue), process.next_offset)
        self._consumed = wanted

    def _report_shares(self, queues: list[MessageQueue]) -> None:
        if queues != self._held:
            self._held = queues
            topics = sorted({queue.topic for queue in queues})
            shares = [f"{t} {number_list([q.queue_id for q in queues if q.topic == t])}" for t in topics]
            self._tell(f"has {', '.join(shares) or 'no queue'}")

    def _consume(self, wait_ms: int) -> None:
        polled: Mapping[TopicPartition, Sequence[Any]] = self._consumer.poll(
            timeout_ms=wait_ms, max_records=_POLL_MAX_RECORDS
        )
        now_ms = self._now_ms()
        for process in self._consumed.values():
            process.last_pull_ms = now_ms
        for partition, records in polled.items():
            self._process(records)
            queue = MessageQueue(partition.topic, BROKER_NAME, partition.partition)
            self._consumed[queue].next_offset = records[-1].offset + 1

    def _now_ms(self) -> int:
        """Return the time since the epoch, advanced from the start by a clock that is never set."""
        return int((self._clock_offset_s + time.monotonic()) * 1000)


def _partition(queue: MessageQueue) -> TopicPartition:
    return TopicPartition(queue.topic, queue.queue_id)
