"""A member of a group: a process that runs one of the programs of `tests.observed.clients`."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from embedded.jars import jar_paths
from embedded.java import find_java
from tests.harness.java_tools import ReportingProgram, compiled, java_options, log_options
from tests.harness.waiting import wait_until
from tests.transactions.applications import built

CLIENTS = Path(__file__).parent / "clients"
SESSION_MS = 8_000
HEARTBEAT_MS = 500
METADATA_MS = 1_000

_CLASSIC = {"session.timeout.ms": str(SESSION_MS), "heartbeat.interval.ms": str(HEARTBEAT_MS)}
_OF_JAVA = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": "false",
    "metadata.max.age.ms": str(METADATA_MS),
}
_ASSIGNORS = "org.apache.kafka.clients.consumer."


@dataclass(frozen=True)
class Library:
    """A library with the settings of one protocol and assignor. `command` makes the program's command line
    of the folder of the member's log. `protocol` is the group's type.
    """

    name: str
    command: Callable[[Path], Sequence[str]]
    settings: Mapping[str, str]
    protocol: str = "classic"
    assignor: str | None = None


def compiled_members() -> Path:
    """Return the folder of the Java members' classes."""
    return compiled(CLIENTS.glob("*.java"), java_options(jar_paths("streams"))[-2:])


def _java(library: str) -> Callable[[Path], Sequence[str]]:
    def command(log: Path) -> Sequence[str]:
        # The JVM writes warnings about its archive of classes to the standard output.
        options = [
            "-Xlog:disable",
            *java_options([compiled_members(), *jar_paths("streams")]),
            *log_options(log),
        ]
        return [str(find_java()), *options, "MembersOfKafka", "--library", library]

    return command


def _python(library: str) -> Callable[[Path], Sequence[str]]:
    module = "tests.observed.clients.python_member"
    return lambda _: [sys.executable, "-W", "ignore", "-m", module, "--library", library]


def _java_classic(assignor_class: str) -> Mapping[str, str]:
    return {**_OF_JAVA, **_CLASSIC, "partition.assignment.strategy": _ASSIGNORS + assignor_class}


_PYTHON = {"session_timeout_ms": str(SESSION_MS), "heartbeat_interval_ms": str(HEARTBEAT_MS)}
_STREAMS = {
    **_CLASSIC,
    "auto.offset.reset": "earliest",
    "metadata.max.age.ms": str(METADATA_MS),
    "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
    "default.value.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
    "num.standby.replicas": "1",
    "commit.interval.ms": "500",
    # The least that there is.
    "probing.rebalance.interval.ms": "60000",
    # An instance whose copies of state lack a record waits until a probing rebalance.
    "acceptable.recovery.lag": "0",
}

JAVA = Library("Java", _java("consumer"), _java_classic("RangeAssignor"), assignor="range")
JAVA_COOPERATIVE = Library(
    "Java", _java("consumer"), _java_classic("CooperativeStickyAssignor"), assignor="cooperative-sticky"
)
JAVA_EPOCHS = Library(
    "Java", _java("consumer"), {**_OF_JAVA, "group.protocol": "consumer"}, protocol="consumer"
)
LIBRDKAFKA = Library(
    "librdkafka",
    _python("librdkafka"),
    {**_CLASSIC, "partition.assignment.strategy": "range"},
    assignor="range",
)
LIBRDKAFKA_EPOCHS = Library(
    "librdkafka", _python("librdkafka"), {"group.protocol": "consumer"}, protocol="consumer"
)
KAFKA_PYTHON = Library("kafka-python", _python("kafka-python"), _PYTHON, assignor="range")
FRANZ_GO = Library(
    "franz-go",
    lambda _: [str(built(CLIENTS / "franz_member"))],
    {"session-timeout": f"{SESSION_MS}ms"},
    assignor="cooperative-sticky",
)
_SHARE = {"metadata.max.age.ms": str(METADATA_MS)}
_STREAMS_EPOCHS = {
    **{name: value for name, value in _STREAMS.items() if name not in (*_CLASSIC, "num.standby.replicas")},
    "group.protocol": "streams",
}
SHARE = Library("Java, share consumers", _java("share"), _SHARE, protocol="share")
STREAMS_EPOCHS = Library(
    "Kafka Streams, streams protocol", _java("streams"), _STREAMS_EPOCHS, protocol="streams"
)
STREAMS = Library("Kafka Streams", _java("streams"), _STREAMS, assignor="stream")


@dataclass(frozen=True)
class Event:
    """An event that a member has printed: see `tests.observed.clients`."""

    at_ms: int
    name: str
    words: tuple[str, ...]


class Member(ReportingProgram):
    """A process. `held` are the partitions (TOPIC:NUMBER) or the tasks that it has."""

    def __init__(
        self,
        library: Library,
        servers: str,
        group_id: str,
        client_id: str,
        topics: Sequence[str],
        folder: Path,
        *,
        instance_id: str | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.library, self.client_id, self.instance_id = library, client_id, instance_id
        self.topics = list(topics)
        self.events: list[Event] = []
        self.held: frozenset[str] = frozenset()
        self.generation: int | None = None
        log = folder / f"{client_id}-{time.time_ns()}.log"
        options = {"servers": servers, "group": group_id, "client-id": client_id, "topics": ",".join(topics)}
        if instance_id is not None:
            options["instance-id"] = instance_id
        command = [*library.command(log)]
        command += [part for name, value in options.items() for part in (f"--{name}", value)]
        for name, value in {**library.settings, **settings}.items():
            command += ["--setting", f"{name}={value}"]
        with log.with_suffix(".err").open("w") as errors:
            super().__init__(command, errors)

    def subscribe(self, topics: Sequence[str]) -> None:
        self.topics = list(topics)
        self.command(f"subscribe {','.join(topics)}")

    def commit(self) -> None:
        """Commit the positions, and wait until it is done, or for 10 s if there is nothing to commit."""
        before = self._commits()
        self.command("commit")
        with suppress(AssertionError):
            wait_until(lambda: self._commits() > before, "a commit", 10)

    def leave(self) -> None:
        """Leave the group, and wait for the end."""
        self.command("leave")
        self.close()

    def end(self) -> None:
        """End the process, if it runs."""
        if self._jvm.poll() is None:
            self.kill()

    def _commits(self) -> int:
        return sum(event.name == "committed" for event in self.events)

    def on_end(self) -> None:
        self.held = frozenset()

    def handle_line(self, line: str) -> None:
        at_ms, name, *words = line.split()
        if name == "came":
            self.held |= {*words}
        elif name == "went":
            self.held -= {*words}
        elif name == "tasks":
            self.held = frozenset(words)
        elif name == "generation":
            self.generation = int(words[0])
        self.events.append(Event(int(at_ms), name, tuple(words)))
