"""Unmodified clients, and the tests' actions with them through a gateway."""

import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import FencedInstanceIdError, KafkaConnectionError

from assignors.kafka.uniform import UniformAssignor
from clients.assignor_adapter import CoordinatorAdapter
from gateway.net.server import GatewayOptions
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import EntryType
from tests.e2e.harness import history_of, wait_until

PARTITIONS = 4
RECORDS = 40
SESSION_MS = 20_000
HEARTBEAT_MS = 1_000
METADATA_MAX_AGE_MS = 1_000
POLL_MS = 1_000
ANSWER_TIMEOUT_S = 60.0

T = TypeVar("T")


def new_group() -> str:
    return f"group-{uuid.uuid4()}"


def produce(servers: str | ClientConfig, topic: str, values: Iterable[int]) -> None:
    config = ClientConfig(servers) if isinstance(servers, str) else servers
    with closing(kafka_clients.producer(config)) as producer:
        sent = [producer.send(topic, str(v).encode(), partition=v % PARTITIONS) for v in values]
        for future in sent:
            future.get(30)


class Moves(ConsumerRebalanceListener):  # type: ignore[misc] # kafka-python ships no types
    """The calls of a consumer's rebalance listener: the assigned and revoked partitions.

    `times` has all calls in order: the time (time.monotonic), True for an assignment, and the partitions.
    """

    def __init__(self) -> None:
        self.assigned: list[set[int]] = []
        self.revoked: list[set[int]] = []
        self.times: list[tuple[float, bool, set[int]]] = []

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self.note(time.monotonic(), True, {p.partition for p in assigned})

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self.note(time.monotonic(), False, {p.partition for p in revoked})

    def note(self, at_s: float, came: bool, partitions: set[int]) -> None:
        """Record a call."""
        (self.assigned if came else self.revoked).append(partitions)
        self.times.append((at_s, came, partitions))


class Consuming(ABC):
    """A consumer on its own thread, which polls without a pause, as applications do. Its other calls run
    there too, because librdkafka may wait for ever in a call while another thread polls.

    kafka-python 3.0 also needs it: a JoinGroup that is answered between two polls is sent again. If it joins
    because of a new topic, and the poll ends before the SyncGroup is answered, it never reads that answer.
    `poll_ms` has to be longer then.
    """

    consumer: Any

    def __init__(self, moves: Moves, poll_ms: int) -> None:
        self.moves = moves
        self.poll_ms = poll_ms
        self._values: deque[int] = deque()
        self._is_closing = False
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._polling: Future[None] = self._thread.submit(self._poll_again)

    @abstractmethod
    def read(self) -> list[int]:
        """Poll once. Raises the library's errors."""

    def poll(self) -> list[int]:
        """Return the values received since the last call. Raises the error that ended the consumer."""
        self._raise_what_was_raised()
        return [self._values.popleft() for _ in range(len(self._values))]

    def partitions(self) -> set[int]:
        return {p.partition for p in self._assignment()}

    def topics(self) -> set[str]:
        return {p.topic for p in self._assignment()}

    def close(self) -> None:
        """Leave the group, as far as the library does."""
        if not self._is_closing:
            self._is_closing = True
            self.do(self.consumer.close)
            self._thread.shutdown()

    def do(self, work: Callable[[], T]) -> T:
        """Call `work` between two polls, and return its result."""
        return self._thread.submit(work).result(ANSWER_TIMEOUT_S)

    def _assignment(self) -> list[Any]:
        self._raise_what_was_raised()
        return self.do(self.consumer.assignment)

    def _raise_what_was_raised(self) -> None:
        if self._polling.done():
            self._polling.result()

    def _poll_again(self) -> None:
        if not self._is_closing:
            self._values.extend(self.read())
            self._polling = self._thread.submit(self._poll_again)


class PythonMember(Consuming):
    """kafka-python's consumer. `topic` with a leading ^ is a pattern; `settings` are the library's own."""

    FENCED: ClassVar[type[Exception]] = FencedInstanceIdError
    ASSIGNORS: ClassVar = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
        "coordinator:uniform": partial(CoordinatorAdapter, UniformAssignor()),
    }

    def __init__(
        self,
        servers: str,
        group_id: str,
        topic: str,
        *,
        assignor: str = "range",
        instance_id: str | None = None,
        session_ms: int = SESSION_MS,
        poll_ms: int = POLL_MS,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.consumer = KafkaConsumer(
            bootstrap_servers=servers,
            group_id=group_id,
            group_instance_id=instance_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            partition_assignment_strategy=[self.ASSIGNORS[assignor]()],
            **settings,
        )
        wanted = {"pattern": topic} if topic.startswith("^") else {"topics": [topic]}
        moves = Moves()
        self.consumer.subscribe(**wanted, listener=moves)
        super().__init__(moves, poll_ms)

    def read(self) -> list[int]:
        try:
            polled = self.consumer.poll(timeout_ms=self.poll_ms)
        except KafkaConnectionError:  # whoever looks for a coordinator may be told so, and polls again
            return []
        return [int(record.value) for records in polled.values() for record in records]

    def notice_errors(self) -> bool:
        """Raise the library's fatal error if there is one. A poll does not report it."""
        self.commit()
        return False

    def commit(self) -> None:
        self.do(self.consumer.commit)

    def commit_async(self, done: Callable[[object], None]) -> None:
        """Commit without waiting. `done` is called with the error, or with None."""

        def told(_: object, answer: object) -> None:
            done(answer if isinstance(answer, Exception) else None)

        self.do(lambda: self.consumer.commit_async(callback=told))

    def committed(self, topic: str) -> dict[int, int | None]:
        asked = [TopicPartition(topic, p) for p in range(PARTITIONS)]
        return self.do(lambda: {p.partition: self.consumer.committed(p) for p in asked})

    def brokers(self) -> set[tuple[str, int]]:
        """Return every address that the client has learned."""
        return {(broker.host, broker.port) for broker in self.consumer._client.cluster.brokers()}


class ConfluentMember(Consuming):
    """librdkafka's consumer, with the same parameters. With the consumer protocol there is no assignor and no
    timeout of its own, and the listener is called only with the partitions that are added or removed.
    """

    FENCED: ClassVar[type[Exception]] = KafkaException

    def __init__(
        self,
        servers: str,
        group_id: str,
        topic: str,
        *,
        assignor: str = "range",
        instance_id: str | None = None,
        session_ms: int = SESSION_MS,
        poll_ms: int = POLL_MS,
        is_of_consumer_protocol: bool = False,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        of_classic_protocol = {
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": assignor,
        }
        protocol = {"group.protocol": "consumer"} if is_of_consumer_protocol else of_classic_protocol
        self._committed: list[Callable[[object], None]] = []
        self.consumer = ConfluentConsumer(
            {
                "bootstrap.servers": servers,
                "group.id": group_id,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
                **protocol,
                "on_commit": self._on_commit,
                **({"group.instance.id": instance_id} if instance_id else {}),
                **settings,
            }
        )
        moves = Moves()
        self.consumer.subscribe(
            [topic],
            on_assign=lambda _, partitions: moves.on_partitions_assigned(partitions),
            on_revoke=lambda _, partitions: moves.on_partitions_revoked(partitions),
        )
        super().__init__(moves, poll_ms)

    def read(self) -> list[int]:
        record = self.consumer.poll(self.poll_ms / 1000)
        if record is None:
            return []
        if error := record.error():
            if error.code() == KafkaError._FATAL:
                raise KafkaException(error)
            return []  # the library tells of it, and goes on by itself
        return [int(record.value() or b"")]

    def notice_errors(self) -> bool:
        """Raise the library's fatal error if there is one."""
        self.poll()
        return False

    def commit(self) -> None:
        self.do(lambda: self.consumer.commit(asynchronous=False))

    def commit_async(self, done: Callable[[object], None]) -> None:
        self._committed.append(done)
        self.do(lambda: self.consumer.commit(asynchronous=True))

    def _on_commit(self, error: object, _: object) -> None:
        if self._committed:
            self._committed.pop()(error)

    def committed(self, topic: str) -> dict[int, int | None]:
        asked = [ConfluentPartition(topic, p) for p in range(PARTITIONS)]
        found = self.do(lambda: self.consumer.committed(asked, timeout=ANSWER_TIMEOUT_S))
        return {p.partition: None if p.offset == OFFSET_INVALID else p.offset for p in found}

    def brokers(self) -> set[tuple[str, int]]:
        listed = self.do(lambda: self.consumer.list_topics(timeout=10).brokers.values())
        return {(broker.host, broker.port) for broker in listed}


Member = PythonMember | ConfluentMember


class HasPartitions(Protocol):
    """A member of any library."""

    def partitions(self) -> set[int]: ...


def share(*members: HasPartitions) -> None:
    """Wait until the members share the topic, each with some of the partitions."""

    def shared() -> bool:
        held = [member.partitions() for member in members]
        return all(held) and sum(map(len, held)) == PARTITIONS == len(set().union(*held))

    wait_until(shared, f"{len(members)} members with a part each")


def consume_and_commit(servers: str, topic: str, *members: Member) -> None:
    """Check that records produced while members share a topic are consumed once, by the partition's owner."""
    produce(servers, topic, range(100, 100 + RECORDS))
    assert consume(RECORDS, *members, since=100) == list(range(100, 100 + RECORDS))
    for member in members:
        member.commit()


def consume(records: int, *members: Member, since: int = 0) -> list[int]:
    """Return the next records that the members consume from that value on, at least so many, in order."""
    seen: list[int] = []

    def have_enough() -> bool:
        for member in members:
            seen.extend(value for value in member.poll() if value >= since)
        return len(seen) >= records

    wait_until(have_enough, f"{records} records")
    return sorted(seen)


def members_added(options: GatewayOptions, group_id: str) -> int:
    """Return the number of members ever added to the group, according to the events topic."""
    history = history_of(options.client_config, options.layout, group_id)
    return sum(event.type == EntryType.MEMBER_ADDED for event in history)


def assert_coordinated(options: GatewayOptions, group_id: str, *, joins: int) -> None:
    """Check that this coordinator has the group, which so many members joined, and that the broker has no
    such group.
    """
    assert members_added(options, group_id) == joins
    with closing(kafka_clients.admin(options.client_config)) as admin:
        assert group_id not in {group["group_id"] for group in admin.list_groups()}
