"""A coordinator with topics, a folder and a gateway of its own, for faults after which it must not go on."""

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from kafka.admin import ConfigResource, ConfigResourceType

from connections import kafka_clients
from connections.client_config import ClientConfig
from records.layout import TopicLayout
from tests.campaigns.fault import standing_still
from tests.campaigns.keeper import End, Keeper
from tests.campaigns.stage import command_line, environment, signal_all
from tests.e2e.harness import wait_until
from tests.faults.campaign.judge.log_start import LogStart, lost_s, stalled_s
from tests.faults.campaign.judge.losses import Commit, Loss, handled_ends, last_commits, read_report
from tests.faults.campaign.judge.topics import evidence, read
from tests.faults.campaign.stage import FaultStage

_LOOK_S = 0.05
# Beside much other work a start takes minutes.
START_TIMEOUT_S = 600.0
_READY = re.compile(r'\{"broker": .*\}\n')


class OwnCoordinator:
    """A `run` that a supervisor starts again whenever it has ended. It is stopped when `stack` ends."""

    def __init__(self, stage: FaultStage, stack: ExitStack, name: str, *options: str) -> None:
        """`options` are further ones of `run`."""
        self._world = stage
        self._released_s = 0.0
        self.layout = TopicLayout.named(name)
        self.folder = stage.folder / name
        self.folder.mkdir()
        arguments = ["run", "--json", "--no-page", "--bootstrap-servers", stage.servers, "--prefix", name]
        arguments += ["--replication-factor", "3", "--data-dir", str(self.folder / "data"), *options]
        self.keeper = Keeper("coordinator", self.folder, command_line(arguments), environment=environment())
        stack.callback(self.keeper.stop)
        self.keeper.start()
        wait_until(lambda: bool(self._said_ready()), "the coordinator", START_TIMEOUT_S)
        self.ready: dict[str, str] = json.loads(self._said_ready()[0])

    def _said_ready(self) -> list[str]:
        """The line by which it says that it is ready, none before."""
        return [line for line in self.keeper.log.splitlines(keepends=True) if _READY.match(line)]

    @property
    def has_ended(self) -> bool:
        """Whether it has ended once."""
        return bool(self.keeper.ends)

    @property
    def client_config(self) -> ClientConfig:
        return self._world.client_config

    @property
    def checkpoint(self) -> Path:
        return self.folder / "data" / "coordinator"

    def end_and_refusal(self, timeout_s: float) -> list[End]:
        """Return its own end and that of the next start, none if it goes on for this long."""
        with suppress(AssertionError):
            self.keeper.wait_for_end(0, timeout_s)
            self.keeper.wait_for_end(1, START_TIMEOUT_S)
        return self.keeper.ends[:2]

    def handled_ends(self) -> dict[int, int]:
        """How far committed batches have read the requests topic, by partition."""
        return handled_ends(self.checkpoint / "spark", self.layout.requests_topic)

    @contextmanager
    def jvm_standing_still(self) -> Iterator[None]:
        """No batch runs during the block."""
        with standing_still(partial(signal_all, [self._world.jvm(self.keeper)])):
            yield

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """All its processes are stopped during the block."""
        stage, pid = self._world, self.keeper.pid
        assert pid is not None
        with standing_still(partial(signal_all, [pid, stage.jvm(self.keeper), stage.replica(self.keeper)])):
            yield
        self._released_s = time.monotonic()

    def alter_requests_topic(self, settings: Mapping[str, str]) -> None:
        """Set these settings of the requests topic."""
        topic = self.layout.requests_topic
        with closing(kafka_clients.admin(self.client_config)) as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(settings))])

    def delete_topics(self) -> None:
        """Delete its topics, which would burden the brokers."""
        with closing(kafka_clients.admin(self.client_config)) as admin:
            ours = [topic for topic in admin.list_topics() if topic.startswith(f"{self.folder.name}-")]
            admin.delete_topics(ours)

    def loss(self, commits: Sequence[Commit], log: LogStart, at_ms: int) -> Loss:
        """What the judge has to know, after the end."""
        servers, layout = self._world.servers, self.layout
        found_s = lost_s(log.looks, self.handled_ends())
        assert found_s is not None, "no request was lost"
        since_s = max(found_s, self._released_s)
        # A topic that was made again has no request of the one before it.
        requests = read(servers, layout.requests_topic) if log.is_same_topic else []
        found = evidence(
            layout.requests_topic,
            requests=requests,
            responses=(),
            events=(),
            dead_letters=(),
            offsets=read(servers, layout.offsets_topic),
        )
        report = read_report(self.checkpoint / "lost-requests.json")
        answered_s = max(commit.answered_s for commit in commits)
        slow_s = stalled_s(log.looks, since_s, max(answered_s, since_s))
        return Loss(commits, found.offsets, last_commits(found), report, since_s, slow_s, at_ms)


class Readiness:
    """Asks `/readyz` during the block, in a thread. `statuses` are the answers of a process that answers."""

    def __init__(self, stack: ExitStack, metrics: str) -> None:
        self.statuses: list[int] = []
        self._url = metrics.removesuffix("/metrics") + "/readyz"
        self._stopped = threading.Event()
        thread = threading.Thread(target=self._run, name="readiness", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(self._stopped.set)

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_S):
            with suppress(URLError, OSError):
                self.statuses.append(self._ask())

    def _ask(self) -> int:
        try:
            with urlopen(self._url, timeout=5) as response:
                return int(response.status)
        except HTTPError as error:
            return error.code
