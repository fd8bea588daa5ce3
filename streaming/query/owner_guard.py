"""The guard of a checkpoint that several machines can reach: no task runs for a coordinator that has lost its
topics.

A folder's lock excludes a second driver on one machine. On shared storage a driver can sleep through a
takeover and wake up with a plan that the new owner has not seen. So each task first checks on the owner topic
that its coordinator's claim is still in force. A task that finds a later claim fails, and its output and
state are not written. Spark writes a batch's plan before its tasks run, and a new owner reads the last plan
after its claim. So if a task finds no later claim, any later owner sees the plan of the task's batch, and
runs the batch again with the same output. docs/decisions/0019-a-standby.md has the proof.
"""

import time
from dataclasses import dataclass
from functools import cache

from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError
from pyspark import TaskContext

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.claims import Claims

# The error text of a query whose task has found a later claim.
LATER_CLAIM = "the owner topic has the claim of a later owner, epoch "
_TIMEOUT_MS = 20_000
_POLL_MS = 500
# A fetch that waited for records would delay the next check.
_FETCH_MAX_WAIT_MS = 10


@dataclass(frozen=True, slots=True)
class OwnerGuard:
    """A check that a coordinator's claim is still in force, for the Python workers of its tasks."""

    client_config: ClientConfig
    owner_topic: str
    epoch: int  # of the coordinator's claim

    def check(self) -> None:
        """Raise RuntimeError if there is a later claim, KafkaError if no broker answers. Only the first call
        in each attempt of a task checks.
        """
        context = TaskContext.get()
        task_attempt = None if context is None else context.taskAttemptId()
        reader = _reader(self.client_config, self.owner_topic)
        if task_attempt is not None and task_attempt == reader.checked_task:
            return
        later_claim = reader.claims().after(self.epoch)
        if later_claim is not None:
            raise RuntimeError(f"{LATER_CLAIM}{later_claim.epoch}: {later_claim}")
        reader.checked_task = task_attempt


class ClaimsReader:
    """A reader of the claims on an owner topic. It reads each record once. Raises KafkaError."""

    def __init__(self, client_config: ClientConfig, topic: str) -> None:
        # The id of the last task attempt for which `OwnerGuard.check` found no later claim.
        self.checked_task: int | None = None
        self._partition = TopicPartition(topic, 0)
        self._claims = Claims()
        self._consumer = kafka_clients.reading_consumer(
            client_config, timeout_ms=_TIMEOUT_MS, fetch_max_wait_ms=_FETCH_MAX_WAIT_MS
        )
        self._consumer.assign([self._partition])
        self._consumer.seek_to_beginning(self._partition)

    def claims(self) -> Claims:
        """Return all claims that were acknowledged before this call. If no claim is new, this costs one
        request. Raises KafkaError.
        """
        give_up_s = time.monotonic() + _TIMEOUT_MS / 1000
        end = self._consumer.end_offsets([self._partition], timeout_ms=_TIMEOUT_MS)[self._partition]
        while (self._consumer.position(self._partition, timeout_ms=_TIMEOUT_MS) or 0) < end:
            for record in self._consumer.poll(timeout_ms=_POLL_MS).get(self._partition, ()):
                self._claims.apply(record.offset, record.key, record.value)
            if time.monotonic() > give_up_s:
                raise KafkaTimeoutError("the claims on the owner topic cannot be read")
        return self._claims


# Returns this process's reader of an owner topic. The many tasks of a Python worker share it.
_reader = cache(ClaimsReader)
