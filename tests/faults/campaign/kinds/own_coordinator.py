"""A coordinator with its own topics, folder and gateway, for faults after which it must not continue."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from urllib.error import HTTPError
from urllib.request import urlopen

from confluent_kafka.admin import AdminClient

from kafka_why.connections import kafka_clients
from kafka_why.connections.address import Address
from kafka_why.contract.layout import TopicLayout
from tests.campaigns.fault import paused
from tests.campaigns.reading import read
from tests.campaigns.restarting_process import RestartingProcess
from tests.campaigns.stage import command_line, environment, signal_all
from tests.e2e.harness import QUICK_JAVA, wait_until
from tests.faults.campaign.judge.log_start import Look, look, lost_s, stalled_s
from tests.faults.campaign.judge.losses import Ended, Loss, handled_ends, last_commits, read_report
from tests.faults.campaign.judge.topics import evidence
from tests.faults.campaign.load.running import Load
from tests.faults.campaign.stage import FaultStage

PARTITIONS = 3
"""Of the requests topic."""
REPLIES = 4
GROUPS = {"classic": 20}
# Beside much other work a start takes minutes.
START_TIMEOUT_S = 600.0
_OPTIONS = (
    *("--request-partitions", str(PARTITIONS), "--reply-partitions", str(REPLIES)),
    *("--replication-factor", "3"),
    *("-c", "group.initial.rebalance.delay.ms=0"),
    *("--spark-conf", f"spark.driver.extraJavaOptions={QUICK_JAVA}"),
)


class OwnCoordinator:
    """A `run` under load that a supervisor restarts whenever it ends, and whose topic and readiness are
    polled. Everything is stopped when `stack` ends.
    """

    def __init__(self, stage: FaultStage, stack: ExitStack, random: Random) -> None:
        self._world = stage
        self._released_s = 0.0
        name = f"lost-{random.getrandbits(32)}"
        self.client_config = stage.client_config
        self.layout = TopicLayout.named(name, request_partitions=PARTITIONS, reply_partitions=REPLIES)
        self.folder = stage.folder / name
        self.folder.mkdir()
        arguments = ["run", "--json", "--no-page", "--bootstrap-servers", stage.servers, "--prefix", name]
        arguments += ["--data-dir", str(self.folder / "data"), *_OPTIONS]
        self.process = RestartingProcess(
            "coordinator", self.folder, command_line(arguments), environment=environment()
        )
        stack.callback(self.process.stop)
        self.process.start()
        wait_until(lambda: bool(self._said_ready()), "the coordinator", START_TIMEOUT_S)
        ready = json.loads(self._said_ready()[0])
        self._load = Load(random.getrandbits(32), GROUPS)
        self._load.start(stage.servers, self.layout, Address.parse(ready["gateway"]))
        stack.callback(self._load.stop)
        wait_until(self._all_have_committed, "commits of all groups", START_TIMEOUT_S)
        admin = AdminClient({"bootstrap.servers": stage.servers, "log_level": 0})
        topic = self.layout.requests_topic
        self.looks: list[Look] = []
        self.looks.append(look(admin, topic, PARTITIONS, self.looks))
        url = ready["metrics"].removesuffix("/metrics") + "/readyz"
        self.readiness: list[int] = []
        """What `/readyz` has answered."""
        act(stack, lambda: self.looks.append(look(admin, topic, PARTITIONS, self.looks)), pause_s=0.005)
        act(stack, lambda: self.readiness.extend(_statuses(url)), pause_s=0.05)

    def _said_ready(self) -> list[str]:
        """Return the line that the coordinator printed when it was ready, or nothing before that."""
        return [line for line in self.process.log.splitlines() if line.startswith('{"broker": ')]

    def _all_have_committed(self) -> bool:
        return {group for group, _ in self._load.meter.acknowledged()} == self._load.groups.keys()

    def ends(self, timeout_s: float) -> list[Ended]:
        """Return the ends of the coordinator and of its next start, or nothing if it runs for this long."""
        with suppress(AssertionError):
            self.process.wait_for_end(0, timeout_s)
            self.process.wait_for_end(1, START_TIMEOUT_S)
        return [Ended(end.exit_code, end.said, end.at_s) for end in self.process.ends[:2]]

    def handled_ends(self) -> dict[int, int]:
        """Return how far committed batches have read the requests topic, by partition."""
        return handled_ends(self._checkpoint / "spark", self.layout.requests_topic)

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "data" / "coordinator"

    @contextmanager
    def paused(self, *, jvm_alone: bool = False) -> Iterator[None]:
        """Stop all its processes, or its JVM, during the block, so that no batch runs."""
        stage, pid = self._world, self.process.pid
        assert pid is not None
        pids = [stage.jvm_pid(self.process)]
        if not jvm_alone:
            pids += [pid, stage.replica_pid(self.process)]
        with paused(partial(signal_all, pids)):
            yield
        if not jvm_alone:
            self._released_s = time.monotonic()

    def delete_topics(self) -> None:
        """Delete its topics, which would burden the brokers."""
        with closing(kafka_clients.admin(self.client_config)) as admin:
            ours = [topic for topic in admin.list_topics() if topic.startswith(f"{self.folder.name}-")]
            admin.delete_topics(ours)

    def loss(self, at_ms: int) -> Loss:
        """Return what the judge has to know, after the end."""
        self._load.stop()
        commits, looks, topic = self._load.meter.commits, self.looks, self.layout.requests_topic
        found_s = lost_s(looks, self.handled_ends())
        assert found_s is not None, "no request was lost"
        since_s = max(found_s, self._released_s)
        found = evidence(
            topic,
            # A topic that was made again has no request of the one before it.
            requests=read(self._world.servers, topic) if looks[-1].topic_id == looks[0].topic_id else [],
            offsets=read(self._world.servers, self.layout.offsets_topic),
        )
        report = read_report(self._checkpoint / "lost-requests.json")
        answered_s = max(commit.answered_s for commit in commits)
        slow_s = stalled_s(looks, since_s, max(answered_s, since_s))
        return Loss(commits, found.offsets, last_commits(found), report, since_s, slow_s, at_ms)


def act(stack: ExitStack, do: Callable[[], None], pause_s: float) -> None:
    """Repeat an action in a thread until `stack` ends."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(pause_s):
            do()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    stack.callback(thread.join)
    stack.callback(stopped.set)


def _statuses(url: str) -> list[int]:
    """Return the status of an answer, none if there is no answer."""
    try:
        with urlopen(url, timeout=5) as response:
            return [response.status]
    except HTTPError as error:
        return [error.code]
    except OSError:
        return []
