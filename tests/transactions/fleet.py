"""The instances of one application, what goes in, and what comes out."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from kafka_why.connections.client_config import ClientConfig
from tests.campaigns.reading import read, reader
from tests.campaigns.restarting_process import RestartingProcess
from tests.campaigns.verdict import Verdict
from tests.e2e.harness import create_topic
from tests.transactions.applications import PARTITIONS, Application, Seat
from tests.transactions.checker import Copy, judge_offsets

INSTANCES = 3
RECORDS = 25
"""The largest number of records of a transaction."""
BACKLOG = 150
"""So many records of a partition are in the input and not in the output, until the input ends."""
UNSTABLE_OFFSET_COMMIT = 88
_LOOK_S = 0.1
_CALL_TIMEOUT_S = 60.0
PENDING_TIMEOUT_S = 60.0
RECOVERY_TIMEOUT_S = 420.0
"""More than `max.poll.interval.ms`, 5 minutes: a group waits so long for a process that hangs and keeps its
session.
"""
_DRAIN_LOOK_S = 0.5
_MISUSED = (2,)
"""The exit code of an instance whose command line is wrong. It is not started again."""


@dataclass(frozen=True)
class Offsets:
    """What the group has committed. `pending` are partitions whose offset is not stable."""

    committed: dict[int, int]
    pending: set[int]


class Fleet:
    """Started by `start`, ended by `stop`. `backlog` is BACKLOG, or less for a smaller load.

    `servers` are the brokers' own addresses, `reach` gives what an instance takes for them, by its number.
    """

    backlog = BACKLOG

    def __init__(
        self,
        application: Application,
        servers: str,
        reach: Callable[[int], str],
        folder: Path,
        instances: int = INSTANCES,
    ) -> None:
        self.application = application
        self.group = f"{application.name}-group"
        self.input_topic, self.output_topic = application.topics
        self._servers = servers
        self._folder = folder
        self.instances = [self._instance(number, reach(number)) for number in range(instances)]
        self._reached = reach(0)
        self.fed = dict.fromkeys(range(PARTITIONS), 0)
        """The number of input records by partition."""
        self._seen = 0
        self._is_closing = threading.Event()
        self._is_fed = threading.Event()
        self._tail = threading.Thread(target=self._follow, name=f"{application.name} tail", daemon=True)
        self._feeder = threading.Thread(target=self._feed, name=f"{application.name} feeder", daemon=True)

    def start(self) -> Self:
        for topic in (self.input_topic, self.output_topic):
            create_topic(ClientConfig(self._servers), topic, PARTITIONS, {})
        self._tail.start()
        self._feeder.start()
        for instance in self.instances:
            instance.start()
        return self

    @property
    def seen(self) -> int:
        """Records of the output that were committed so far."""
        return self._seen

    @property
    def sent(self) -> int:
        """Records of the input so far."""
        return sum(self.fed.values())

    def tend(self) -> None:
        """Kill the instances that run and do nothing any more. They are started again."""
        for instance in self.instances:
            if instance.pid is not None and self.application.has_given_up(instance.log):
                instance.kill()

    def end_input(self) -> None:
        """Send no more records. An instance that takes its work for done, and ends, is still started again,
        because another one may leave it partitions with records.
        """
        self._is_fed.set()
        self._feeder.join(_CALL_TIMEOUT_S)

    def drain(self) -> tuple[Offsets, float]:
        """Wait until the group has committed its whole input, no transaction is open, and the output has a
        record for each of the input; or, where one is missing or offsets stay pending, for PENDING_TIMEOUT_S
        after the last record of the output. Return the group's offsets, and the time since that record in s.

        Streams commits its input before it has counted it: the records are in a repartition topic meanwhile.
        """
        seen, seen_s = -1, time.monotonic()
        give_up_s = seen_s + RECOVERY_TIMEOUT_S
        while True:
            self.tend()
            if self.seen != seen:
                seen, seen_s = self.seen, time.monotonic()
                give_up_s = seen_s + RECOVERY_TIMEOUT_S
            try:
                offsets = self.offsets()
                waits_s = time.monotonic() - seen_s
                is_stable = not offsets.pending and not self.open_partitions()
            except KafkaException:  # a gateway or the broker is starting
                continue
            is_read = is_stable and all(offsets.committed.get(it, 0) == end for it, end in self.fed.items())
            if is_read and (seen >= self.sent or waits_s > PENDING_TIMEOUT_S):
                return offsets, waits_s
            if waits_s > PENDING_TIMEOUT_S and offsets.pending and seen >= self.sent:
                return offsets, waits_s
            assert time.monotonic() < give_up_s, f"the input was not read to its end: {offsets}"
            time.sleep(_DRAIN_LOOK_S)

    def judge(self, offsets: Offsets) -> Iterator[Verdict]:
        """Yield what is wrong with the group's offsets and with the output."""
        yield from judge_offsets(self.fed, offsets.committed, offsets.pending)
        records = read(self._servers, self.output_topic, "read_committed")
        copies = [Copy(it.partition, it.key, it.value or b"") for it in records]
        yield from self.application.judge(self.fed, copies)

    def describe(self) -> str:
        """Return the progress of the application, and how its instances ended last."""
        ends = [f"{instance.name} ended {instance.ends[-1]}" for instance in self.instances if instance.ends]
        return "; ".join([f"{self.application.name}: {self.seen} of {self.sent}", *ends])

    def stop(self) -> None:
        """End everything."""
        self._is_closing.set()
        self._is_fed.set()
        for instance in self.instances:
            instance.stop()
        for thread in (self._feeder, self._tail):
            if thread.is_alive():
                thread.join(_CALL_TIMEOUT_S)

    def offsets(self) -> Offsets:
        """Return what the group has committed, as its coordinator answers through the address that instances
        have. Raises KafkaException.
        """
        asked = [TopicPartition(self.input_topic, partition) for partition in range(PARTITIONS)]
        request = ConsumerGroupTopicPartitions(self.group, asked)
        admin = AdminClient({"bootstrap.servers": self._reached, "log_level": 0})
        future = admin.list_consumer_group_offsets(
            [request], require_stable=True, request_timeout=_CALL_TIMEOUT_S
        )[self.group]
        found = future.result().topic_partitions
        pending = {it.partition for it in found if it.error and it.error.code() == UNSTABLE_OFFSET_COMMIT}
        return Offsets({it.partition: it.offset for it in found if not it.error and it.offset >= 0}, pending)

    def open_partitions(self) -> list[int]:
        """Return the partitions of the output in which a transaction is open. Raises KafkaException."""
        admin = AdminClient({"bootstrap.servers": self._servers, "log_level": 0})
        ends = {}
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            asked = {
                TopicPartition(self.output_topic, partition): OffsetSpec.latest()  # type: ignore[no-untyped-call]
                for partition in range(PARTITIONS)
            }
            answers = admin.list_offsets(asked, isolation_level=level, request_timeout=_CALL_TIMEOUT_S)
            ends[level] = {place.partition: future.result().offset for place, future in answers.items()}
        stable, all_of_them = ends[IsolationLevel.READ_COMMITTED], ends[IsolationLevel.READ_UNCOMMITTED]
        return [partition for partition in stable if stable[partition] < all_of_them[partition]]

    def _instance(self, number: int, servers: str) -> RestartingProcess:
        name = f"{self.application.name}-{number}"
        folder = self._folder / name
        folder.mkdir(parents=True)
        seat = Seat(servers, name, self.group, self.input_topic, self.output_topic, folder, RECORDS)
        return RestartingProcess(name, folder, self.application.command(seat), final_codes=_MISUSED)

    def _follow(self) -> None:
        consumer, _ = reader(self._servers, self.output_topic, "read_committed")
        try:
            while not self._is_closing.is_set():
                self._seen += sum(message.error() is None for message in consumer.consume(1_000, _LOOK_S))
        finally:
            consumer.close()

    def _feed(self) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "enable.idempotence": True, "log_level": 0})
        while not self._is_fed.is_set():
            while self.sent - self._seen < self.backlog * PARTITIONS:
                for partition, number in self.fed.items():
                    value = self.application.value(partition, number)
                    producer.produce(self.input_topic, value, partition=partition)
                    self.fed[partition] = number + 1
                producer.poll(0)
            producer.poll(0)
            self._is_fed.wait(_LOOK_S)
        producer.flush()
