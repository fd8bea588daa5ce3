"""A member of a group: a process that runs one of the programs of `tests.observed.clients`."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from embedded.jars import jar_paths
from embedded.java import find_java
from embedded.paths import cache_dir
from tests.harness.java_tools import java_options, log_options
from tests.transactions.applications import built

CLIENTS = Path(__file__).parent / "clients"
SESSION_MS = 8_000
HEARTBEAT_MS = 500
METADATA_MS = 1_000
_END_TIMEOUT_S = 60.0

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


def _java(library: str) -> Callable[[Path], Sequence[str]]:
    def command(log: Path) -> Sequence[str]:
        # The JVM writes warnings about its archive of classes to the standard output.
        options = ["-Xlog:disable", *java_options([compiled(), *jar_paths("streams")]), *log_options(log)]
        return [str(find_java()), *options, "MembersOfKafka", "--library", library]

    return command


@cache
def compiled() -> Path:
    """The compiled program of Kafka's own members."""
    source, folder = CLIENTS / "members_of_kafka.java", cache_dir() / "members"
    classes = folder / "MembersOfKafka.class"
    if not classes.exists() or source.stat().st_mtime > classes.stat().st_mtime:
        options = java_options(jar_paths("streams"))
        compiler = [
            "-m",
            "jdk.compiler/com.sun.tools.javac.Main",
            "-d",
            str(folder),
            *options[-2:],
            str(source),
        ]
        subprocess.run([str(find_java()), *compiler], check=True)
    return folder


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
    """What a member has said: see `tests.observed.clients`."""

    at_ms: int
    name: str
    words: tuple[str, ...]


class Member:
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
        self._ended = threading.Event()
        log = folder / f"{client_id}-{time.time_ns()}.log"
        options = {"servers": servers, "group": group_id, "client-id": client_id, "topics": ",".join(topics)}
        if instance_id is not None:
            options["instance-id"] = instance_id
        command = [*library.command(log)]
        command += [part for name, value in options.items() for part in (f"--{name}", value)]
        for name, value in {**library.settings, **settings}.items():
            command += ["--setting", f"{name}={value}"]
        with log.with_suffix(".err").open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
        self._reader = threading.Thread(target=self._read, name=client_id, daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set()

    def subscribe(self, topics: Sequence[str]) -> None:
        self.topics = list(topics)
        self._ask(f"subscribe {','.join(topics)}")

    def commit(self) -> int | None:
        """Commit the positions. Returns when it was done, None if there was nothing to commit."""
        before = self._said("committed")
        self._ask("commit")
        give_up_s = time.monotonic() + 10
        while self._said("committed") == before:
            if time.monotonic() > give_up_s:
                return None
            time.sleep(0.05)
        return self.events[-1].at_ms

    def leave(self) -> None:
        """Leave the group, and wait for the end."""
        self._ask("leave")
        self._process.wait(_END_TIMEOUT_S)
        self._end()

    def kill(self) -> None:
        """Send SIGKILL: the member does not leave its group."""
        self._process.kill()
        self._process.wait()
        self._end()

    def pause(self) -> None:
        """Send SIGSTOP."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the process, if it runs."""
        if self._process.poll() is None:
            self.kill()

    def _end(self) -> None:
        """Close the pipes of a process that has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()

    def _ask(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")

    def _said(self, name: str) -> int:
        return sum(event.name == name for event in self.events)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            at_ms, name, *words = line.split()
            self._take(Event(int(at_ms), name, tuple(words)))
        self.held = frozenset()
        self._ended.set()

    def _take(self, event: Event) -> None:
        if event.name == "came":
            self.held |= {*event.words}
        elif event.name == "went":
            self.held -= {*event.words}
        elif event.name == "tasks":
            self.held = frozenset(event.words)
        elif event.name == "generation":
            self.generation = int(event.words[0])
        self.events.append(event)
