"""The guard of a checkpoint that several machines can reach: no task runs for a coordinator that has lost its
topics.

A folder's lock excludes a second driver on one machine. On shared storage a driver can sleep through a
takeover and wake up with a plan that the new owner has not seen. So each task first checks on the owner topic
that its coordinator's claim is still in force. A task that finds a later claim fails, and its output and
state are not written. Spark writes a batch's plan before its tasks run, and a new owner reads the last plan
after its claim. So if a task finds no later claim, the new owner sees the plan of its batch, and runs the
batch again with the same output. docs/decisions/0019-a-standby.md has the proof.
"""

import time
from dataclasses import dataclass
from functools import cache

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyspark import TaskContext

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.claims import Claims

# The error text of a query whose task has found a later claim.
LATER_CLAIM = "the owner topic has the claim of a later owner, epoch "
_TIMEOUT_S = 20.0
_POLL_S = 0.5


class LostTopics(RuntimeError):
    """The coordinator of this task has lost its topics."""


@dataclass(frozen=True, slots=True)
class OwnerGuard:
    """A check, in the Python workers of its tasks, that a coordinator's claim is still in force."""

    client_config: ClientConfig
    owner_topic: str
    epoch: int

    def check(self) -> None:
        """Raise LostTopics if there is a later claim, KafkaException if no broker answers. Only a task's
        first call checks.
        """
        context = TaskContext.get()
        task = None if context is None else context.taskAttemptId()
        reader = _reader(self.client_config, self.owner_topic)
        if task is not None and task == reader.checked_task:
            return
        later = reader.claims().after(self.epoch)
        if later is not None:
            raise LostTopics(f"{LATER_CLAIM}{later.epoch}: {later}")
        reader.checked_task = task


class ClaimsReader:
    """A reader of the claims on an owner topic. It reads each record once."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.checked_task: int | None = None
        self._consumer = consumer
        self._topic = topic
        self._claims = Claims()
        self._next = 0

    def claims(self) -> Claims:
        """Return all claims that were acknowledged before this call. If no claim is new, this costs one
        request. Raises KafkaException.
        """
        partition = TopicPartition(self._topic, 0)
        _, end = self._consumer.get_watermark_offsets(partition, timeout=_TIMEOUT_S, cached=False)
        if end > self._next:
            self._consumer.assign([TopicPartition(self._topic, 0, self._next)])
            try:
                self._read_to(end)
            finally:
                self._consumer.unassign()
        return self._claims

    def _read_to(self, end: int) -> None:
        give_up_s = time.monotonic() + _TIMEOUT_S
        while self._next < end:
            message = self._consumer.poll(_POLL_S)
            if message is None:
                if time.monotonic() > give_up_s:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                continue
            error = message.error()
            offset = message.offset() or 0
            if error is None:
                self._claims.apply(offset, message.key(), message.value())
                self._next = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                self._next = max(self._next, offset)  # compaction has removed the last records
            elif error.fatal() or time.monotonic() > give_up_s:
                raise KafkaException(error)


@cache
def _reader(client_config: ClientConfig, owner_topic: str) -> ClaimsReader:
    """Return this process's reader of an owner topic. The many tasks of a Python worker share it."""
    return ClaimsReader(kafka_clients.claims_consumer(client_config), owner_topic)
