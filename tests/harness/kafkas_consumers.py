"""Kafka's own consumers, many in one JVM, beside those of `tests.e2e.gateway_clients`."""

import threading
from collections import deque
from itertools import count
from pathlib import Path

from embedded.jars import jar_paths
from embedded.java import find_java
from kafka_why.contract.protocols.subscriptions import TopicPartition
from tests.e2e.gateway_clients import HEARTBEAT_MS, METADATA_MAX_AGE_MS, SESSION_MS, Moves
from tests.harness.java_tools import JavaProgram, ReportingProgram, java_options, log_options

HARNESS = Path(__file__).with_name("kafkas_consumers.java")

_COMMON = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "true",
    "auto.commit.interval.ms": "500",
    "metadata.max.age.ms": str(METADATA_MAX_AGE_MS),
}
_CLASSIC = {
    "group.protocol": "classic",
    "session.timeout.ms": str(SESSION_MS),
    "heartbeat.interval.ms": str(HEARTBEAT_MS),
}
_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
_END_TIMEOUT_S = 60.0
_NS_PER_S = 1e9


class JavaMember:
    """A consumer of records that are numbers. It commits automatically, and when it is closed.

    The times of `moves` are those of the JVM, whose clock is that of time.monotonic.
    """

    def __init__(self, name: str, jvm: JavaProgram) -> None:
        self.moves = Moves()
        self._name, self._jvm = name, jvm
        self._held: frozenset[TopicPartition] = frozenset()
        self._values: deque[int] = deque()
        self._ended = threading.Event()
        self._error = ""
        self._is_closing = False

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def poll(self) -> list[int]:
        """Return the values received since the last call. Raises RuntimeError if the consumer has failed."""
        if self._error:
            raise RuntimeError(self._error)
        return [self._values.popleft() for _ in range(len(self._values))]

    def partitions(self) -> set[int]:
        return {p.partition for p in self._held}

    def hold(self) -> None:
        """Stop polling, like a consumer whose application is busy."""
        self._jvm.command(f"hold {self._name}")

    def close(self) -> None:
        """Leave the group, and wait until that is done."""
        if not (self._is_closing or self.has_ended):
            self._is_closing = True
            self._jvm.command(f"stop {self._name}")
        assert self._ended.wait(_END_TIMEOUT_S), f"{self._name} does not end"

    def handle_event(self, at_s: float, event: str, words: list[str]) -> None:
        """Handle an event that the consumer has reported."""
        if event == "record":
            self._values.append(int(words[0]))
        elif event == "ended":
            self._error = " ".join(words)
            self._ended.set()
        else:
            parts = [word.rpartition(":") for word in words]
            partitions = frozenset(TopicPartition(topic, int(number)) for topic, _, number in parts)
            is_assigned = event == "came"
            self.moves.note(at_s, is_assigned, {p.partition for p in partitions})
            self._held = self._held | partitions if is_assigned else self._held - partitions


class JavaConsumers(ReportingProgram):
    """A JVM with consumers of the cluster at `servers`. Its log is a file in `folder`."""

    def __init__(self, servers: str, folder: Path) -> None:
        self._servers = servers
        self._members: dict[str, JavaMember] = {}
        self._numbers = count(1)
        options = [*java_options(jar_paths("tools")), *log_options(folder / "consumers.log")]
        super().__init__([str(find_java()), *options, str(HARNESS)])

    def join(
        self,
        group_id: str,
        topic: str,
        *,
        assignor: str = "range",
        is_of_consumer_protocol: bool = False,
        **more: str,
    ) -> JavaMember:
        """Start a consumer. `assignor` is for the classic protocol. `more` are settings, with `_` for `.`."""
        of_classic_protocol = {**_CLASSIC, "partition.assignment.strategy": _ASSIGNORS[assignor]}
        settings = {
            "bootstrap.servers": self._servers,
            "group.id": group_id,
            **_COMMON,
            **({"group.protocol": "consumer"} if is_of_consumer_protocol else of_classic_protocol),
            **{setting.replace("_", "."): value for setting, value in more.items()},
        }
        name = f"consumer-{next(self._numbers)}"
        member = self._members[name] = JavaMember(name, self)
        self.command(" ".join(["start", name, topic, *(f"{key}={value}" for key, value in settings.items())]))
        return member

    def handle_line(self, line: str) -> None:
        name, at_ns, event, *words = line.split()
        self._members[name].handle_event(int(at_ns) / _NS_PER_S, event, words)

    def on_end(self) -> None:
        for member in self._members.values():
            if not member.has_ended:
                member.handle_event(0.0, "ended", ["the JVM has ended"])
