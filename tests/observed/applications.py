"""Groups of Kafka Streams' instances, of share consumers and of Kafka Connect's workers."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from cli.processes.child import Child
from embedded.jars import jar_paths
from embedded.java import find_java
from kafka_why.now import now_ms
from kafka_why.why.model import CauseKind
from tests.harness.java_tools import java_options_of
from tests.harness.kafkas_groups import KafkasGroup
from tests.harness.ports import free_port
from tests.harness.waiting import wait_until
from tests.observed.member import Library, Member
from tests.observed.play import GONE, JOINED, PARTITIONS, QUIET_S, Play
from tests.observed.stage import Stage
from tests.observed.truth import Seen

CONNECT = Library("Kafka Connect", lambda _: [], {}, assignor="sessioned")
DELAY_MS = 3_000
"""How long the work of a worker that is gone waits for its return."""
PROBING_TIMEOUT_S = 180.0
_SESSION = {
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "500",
    # Of the tasks of sinks, which are members of a group of their own.
    "consumer.session.timeout.ms": "6000",
}


class StreamsPlay(Play):
    """Instances with one thread each, which count records. They have tasks instead of partitions."""

    def begin(
        self,
        client_id: str,
        library: Library | None = None,
        *,
        instance_id: str | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        own = {**settings, "state.dir": str(self.folder / client_id)}
        super().begin(client_id, library, instance_id=instance_id, settings=own)

    def probe(self) -> None:
        """Wait for the probing rebalance after which every instance has active tasks."""

        def is_shared() -> bool:
            return all(any(t.startswith("active:") for t in m.held) for m in self._living().values())

        with self.step(
            "a probing rebalance",
            {CauseKind.JOINED_AGAIN: set(self.members), CauseKind.METADATA_CHANGED: set(self.members)},
        ):
            wait_until(is_shared, f"{self.group_id}: all instances have active tasks", PROBING_TIMEOUT_S)

    def is_all_held(self, living: Mapping[str, Member]) -> bool:
        tasks = sorted(chain.from_iterable(member.held for member in living.values()))
        active = [task for task in tasks if task.startswith("active:")]
        expected = [f"active:0_{number}" for number in range(self._partitions[self.topic])]
        return not living or (active == expected and all(member.held for member in living.values()))


class SharePlay(Play):
    """Share consumers. No listener reports their partitions, so the coordinator's own answer counts."""

    described_as = "share"
    # The partitions of a topic that is new to the group are initialized first, and then assigned.
    also_at_start = (CauseKind.PARTITIONS_INITIALIZED,)

    def grow(self, partitions: int = PARTITIONS + 2) -> None:
        causes: dict[CauseKind, set[str]] = {
            CauseKind.TOPICS_CHANGED: set(),
            CauseKind.PARTITIONS_INITIALIZED: set(),
        }
        with self.step("the topic gets partitions", causes):
            self.add_partitions(partitions)

    def held(self) -> dict[str, list[str]]:
        found = self.described()
        return {} if found is None else {name: sorted(of) for name, of in found.held.items()}

    def is_settled(self, began_ms: int) -> bool:
        """Return True if all partitions have been assigned for a while."""
        found = self.described()
        if self._last != found or found is None or not found.has_target:
            self._last, self._since_ms = found, now_ms()
        living = self._living()
        held = {} if found is None else found.held
        numbers = {partition for of in held.values() for partition in of}
        is_all = len(numbers) == self._partitions[self.topic] or not living
        return now_ms() - self._since_ms > QUIET_S * 1_000 and is_all and held.keys() == living.keys()

    _last: KafkasGroup | None = None
    _since_ms = 0


class StreamsEpochsPlay(StreamsPlay):
    """Instances of Kafka Streams by the streams protocol."""

    described_as = "streams"
    # The first instance has no tasks before the broker has made the internal topics.
    also_at_start = (CauseKind.TOPICS_CHANGED,)

    def held(self) -> dict[str, list[str]]:
        """Tasks as reports name them: `active 0:2`."""
        return {
            name: sorted(task.replace(":", " ").replace("_", ":") for task in tasks)
            for name, tasks in super().held().items()
        }


class ConnectPlay(Play):
    """Workers of Kafka Connect, and connectors with tasks."""

    described_as = "classic"

    def __init__(self, stage: Stage, story: str, library: Library, *, clients: str | None = None) -> None:
        super().__init__(stage, story, library, clients=clients)
        self.workers: dict[str, Worker] = {}
        self._began: list[Worker] = []
        self._tasks: dict[str, int] = {}
        self._seen: list[Seen] = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._began:
            if worker.process.is_running:
                worker.process.kill()
        super().__exit__(kind, error, traceback)

    def start(
        self, client_id: str, library: Library | None = None, *, instance_id: str | None = None
    ) -> None:
        with self.step(f"{client_id} starts", {JOINED: {client_id}}):
            settings = {"client.id": client_id, **_SESSION, "scheduled.rebalance.max.delay.ms": str(DELAY_MS)}
            folder = self.folder / client_id
            worker = Worker(self.group_id, self.stage.servers, folder, settings)
            self.workers[client_id] = worker
            self._began.append(worker)
            wait_until(is_answered(partial(worker.ask, "GET", "/")), client_id, START_TIMEOUT_S)

    def sink(self, tasks: str) -> None:
        """Make a connector with so many tasks that writes the topic to a file. The leader finds new work and
        joins again.
        """
        connector = "sink"
        body = {
            "connector.class": f"{FILE_STREAM}SinkConnector",
            "file": str(self.folder / connector),
            "topics": self.topic,
            "tasks.max": tasks,
        }
        worker = next(iter(self.workers.values()))
        put = partial(worker.ask, "PUT", f"/connectors/{connector}/config", body)
        causes = {CauseKind.JOINED_AGAIN: set(self.workers), CauseKind.METADATA_CHANGED: set(self.workers)}
        causes[CauseKind.LEADER_REJOINED] = set(self.workers)
        with self.step(f"connector {connector} is made", causes):
            self._tasks[connector] = int(tasks)
            wait_until(is_answered(put), f"{connector} is taken")

    def written(self, records: str) -> None:
        """Wait until the tasks have written all records, and have committed their offsets."""
        path = self.folder / "sink"

        def are_there() -> bool:
            committed = self.stage.committed("connect-sink").values()
            return len(set(path.read_text().split())) == int(records) == sum(committed)

        wait_until(are_there, f"{records} records in the sink's file", START_TIMEOUT_S)

    def alive(self) -> Iterable[str]:
        return self.workers

    def leave(self, client_id: str) -> None:
        with self.step(f"{client_id} leaves", {GONE: {client_id}}, gone_how="left"):
            self.workers.pop(client_id).process.stop()

    def kill(self, client_id: str) -> None:
        with self.step(f"{client_id} is killed", {GONE: {client_id}}, gone_how="expired"):
            self.workers.pop(client_id).process.kill()

    def is_settled(self, began_ms: int) -> bool:
        living = len(self.workers)
        if self.state() != (("STABLE" if living else "EMPTY"), living):
            self._quiet_since_s = time.monotonic()
            return False
        work = self.work()
        if work != self._work or not self._is_all_there(work):
            self._work, self._quiet_since_s = work, time.monotonic()
        return time.monotonic() - self._quiet_since_s > QUIET_S

    _work: Mapping[str, Sequence[str]] | None = None
    _quiet_since_s = 0.0

    def held(self) -> dict[str, list[str]]:
        return self.work() or {}

    def work(self) -> dict[str, list[str]] | None:
        """Return what runs on each worker, by Connect's own REST interface; None if it cannot be asked
        now.
        """
        by_port = {f"127.0.0.1:{worker.port}": client_id for client_id, worker in self.workers.items()}
        found: dict[str, list[str]] = {client_id: [] for client_id in self.workers}
        for connector in self._tasks if self.workers else ():
            try:
                status = next(iter(self.workers.values())).ask("GET", f"/connectors/{connector}/status")
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                return None
            units = {f"connector:{connector}": status["connector"]}
            units |= {f"task:{connector}-{task['id']}": task for task in status["tasks"]}
            for unit, of in units.items():
                if of["state"] == "RUNNING" and of["worker_id"] in by_port:
                    found[by_port[of["worker_id"]]].append(unit)
        return {client_id: sorted(units) for client_id, units in found.items()}

    def _is_all_there(self, work: Mapping[str, Sequence[str]] | None) -> bool:
        expected = [f"connector:{connector}" for connector in self._tasks]
        expected += [f"task:{name}-{task}" for name, tasks in self._tasks.items() for task in range(tasks)]
        if work is None or not self.workers:
            return work is not None
        is_all = sorted(chain.from_iterable(work.values())) == sorted(expected)
        return is_all and (all(work.values()) or not expected)


START_TIMEOUT_S = 180.0
FILE_STREAM = "org.apache.kafka.connect.file.FileStream"
STRING = "org.apache.kafka.connect.storage.StringConverter"
_LOG4J2 = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n%ex
"""


class Worker:
    """A Connect worker, reached by its REST interface."""

    def __init__(
        self,
        group_id: str,
        servers: str,
        folder: Path,
        own_settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.port = free_port()
        folder.mkdir()
        settings = {
            "bootstrap.servers": servers,
            "group.id": group_id,
            "listeners": f"http://127.0.0.1:{self.port}",
            "key.converter": STRING,
            "value.converter": STRING,
            "offset.flush.interval.ms": "1000",
        }
        for what in ("config", "offset", "status"):
            settings[f"{what}.storage.topic"] = f"{group_id}-{what}"
            settings[f"{what}.storage.replication.factor"] = "1"
        settings |= {"offset.storage.partitions": "1", "status.storage.partitions": "1"}
        settings |= own_settings
        file = folder / "worker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (folder / "log4j2.properties").write_text(_LOG4J2)
        options = [*java_options_of(jar_paths("connect")), "-Xmx256m"]
        log_settings = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
        arguments = [*options, log_settings, "org.apache.kafka.connect.cli.ConnectDistributed", str(file)]
        self.process = Child(folder.name, arguments, folder / "worker.log", program=find_java())

    def ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        """Return the answer of the REST interface. Raises URLError while the worker cannot answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(dict(body)).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"null")


def is_answered(ask: Callable[[], Any]) -> Callable[[], bool]:
    """Return a check that a worker gives a true answer. An error counts as false: a rebalance is running."""

    def is_so() -> bool:
        try:
            return bool(ask())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    return is_so
