"""The demo's story with RocketMQ: the consumers of its quick start come, go, and get one client id twice."""

import asyncio
import re
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path

from cli.demo.checks import DemoCheck
from cli.demo.narrator import PATIENCE_S, Narrator, NotSeen, json_line, wait_until
from cli.processes.child import GROUP_COORDINATOR, Child, Children
from embedded.jars import class_path
from embedded.java import QUICK_COMPILER, find_java
from kafka_why.cli.output import show
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.local_files import make_private_folder
from kafka_why.why.history import HistoryUnavailable
from kafka_why.why.rocketmq.polled.cluster import ClusterPoller
from kafka_why.why.rocketmq.polled.model import GroupPoll, SymptomKind, queues_text
from kafka_why.wording import visible_lines

# Names in RocketMQ's quick start.
GROUP, TOPIC = "please_rename_unique_group_name_4", "TopicTest"
QUEUES = 6
_QUICK_START = "org.apache.rocketmq.example.quickstart"
_ADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
_SENT = re.compile(r"SEND_OK, msgId=(\w+)")
_RECEIVED = re.compile(r"UNIQ_KEY=(\w+)")


class RocketMqDemo:
    """A run of the story, of two minutes. It prints each step, and what `why` reports.

    Every process that it starts has ended when `play` returns or raises. All files are in `data_dir`, which
    has nothing else. `gateway` and `page` are addresses, from the start of the story on. If the story cannot
    continue, `play` raises ChildFailed, NotSeen, JarsUnavailable, JavaNotFound or ClusterUnavailable.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.absolute()
        self._narrator = Narrator()
        self._consumers: dict[str, Child] = {}

    def play(self) -> list[DemoCheck]:
        """Play the story, and return the checks of its end."""
        make_private_folder(self.data_dir)
        with ExitStack() as stack:
            self._children = stack.enter_context(Children(self.data_dir))
            self._set_up()
            self._narrator.step("Two consumers of RocketMQ's quick start join, and 1000 messages are sent")
            self._join("consumer-1", "consumer-2")
            self._send("producer-1")
            self._narrator.step("A third one joins")
            self._join("consumer-3")
            self._narrator.step(
                "consumer-2 is killed (SIGKILL): its connection ends, and the others are notified"
            )
            self._consumers.pop("consumer-2").kill()
            self._wait_until_shared()
            self._narrator.step(
                "A consumer starts with the client id of consumer-1, and 1000 messages are sent"
            )
            faults = self._one_id_twice()
            self._narrator.step("It is stopped")
            self._consumers.pop("consumer-1 again").stop()
            self._wait_until_shared()
            self._wait_until_consumed()
            self._narrator.step("The history of the group, with a reason for each change")
            history = self._why("--bootstrap-servers", self._broker)
        return [self._all_consumed(), _named(faults), _remembered(history)]

    def look(self) -> None:
        """Do nothing while a client id is there twice. Override it to take a picture of the group."""

    def _set_up(self) -> None:
        self._narrator.step("Start RocketMQ, a Kafka broker, the coordinator and its gateways")
        self._class_path = class_path("rocketmq", "rocketmq_example")
        command = ("run", "--json", "--rocketmq", "embedded", "--data-dir", str(self.data_dir / "data"))
        coordinator = self._children.start("coordinator", *command)
        ready = json_line(coordinator.wait_for_line(lambda line: "rocketmq" in json_line(line), PATIENCE_S))
        self._broker, self.gateway, self.page = ready["broker"], ready["rocketmq"], ready["page"]
        self._narrator.say(f"ready: RocketMQ's clients take namesrvAddr={self.gateway}")
        self._narrator.say(f"see the group meanwhile at {self.page}")
        queues = ("-c", "DefaultCluster", "-r", str(QUEUES), "-w", str(QUEUES))
        admin = self._java("mqadmin", _ADMIN, "updateTopic", "-n", self.gateway, "-t", TOPIC, *queues)
        admin.wait_for_line(lambda line: "success" in line, PATIENCE_S)
        self._narrator.say(f"topic {TOPIC} has {QUEUES} queues")

    def _join(self, *names: str) -> None:
        for name in names:
            self._consumers[name] = self._consumer(name)
        self._wait_until_shared()

    def _one_id_twice(self) -> str:
        """Start the second client. Return what `why` reports on the cluster."""
        self._consumers["consumer-1 again"] = self._consumer("consumer-1", log="consumer-1-again")
        self._wait_for(
            "queues without a reader", lambda poll: bool(poll.duplicates()) and not _is_shared(poll)
        )
        self._send("producer-2")
        self.look()
        return self._why("--namesrv", self.gateway)

    def _consumer(self, name: str, log: str = "") -> Child:
        """Start a consumer. `name` is the second part of its client id."""
        return self._java(log or name, f"{_QUICK_START}.Consumer", instance=name)

    def _send(self, name: str) -> None:
        producer = self._java(name, f"{_QUICK_START}.Producer")
        wait_until("the end of the producer", lambda: not producer.is_running)
        self._narrator.say(f"{len(self._ids(_SENT, 'producer-*.log'))} messages are sent so far")

    def _java(self, log: str, main_class: str, *arguments: str, instance: str = "DEFAULT") -> Child:
        options = (
            *(QUICK_COMPILER, "-Xmx128m", f"-Duser.home={self.data_dir}", "-cp", self._class_path),
            *(f"-Drocketmq.namesrv.addr={self.gateway}", f"-Drocketmq.client.name={instance}"),
        )
        return self._children.start(log, *options, main_class, *arguments, program=find_java())

    def _wait_until_shared(self) -> None:
        # Each queue is held once, by a running consumer.
        names = sorted(self._consumers)
        poll = self._wait_for(
            f"queues shared by {', '.join(names)}",
            lambda poll: _is_shared(poll) and len(poll.client_ids) == len(names) == len(poll.reports),
        )
        for client in poll.reports:
            self._narrator.say(f"{client.client_id} has {queues_text(client.queues)}")

    def _wait_for(self, what: str, found: Callable[[GroupPoll], bool]) -> GroupPoll:
        """Poll the clients until `found` is true, and return that poll. Raises NotSeen."""
        polls = list[GroupPoll]()

        def is_found() -> bool:
            with suppress(HistoryUnavailable):  # no consumer has sent a heartbeat
                polls.append(asyncio.run(self._poll()))
                return found(polls[-1])
            return False

        wait_until(what, is_found)
        return polls[-1]

    async def _poll(self) -> GroupPoll:
        async with ClusterPoller(RocketMqServers((self.gateway,))) as cluster:
            return await cluster.poll(GROUP)

    def _wait_until_consumed(self) -> None:
        sent = self._ids(_SENT, "producer-*.log")
        with suppress(NotSeen):
            wait_until("the last messages", lambda: sent <= self._ids(_RECEIVED, "consumer-*.log"))

    def _why(self, *where: str) -> str:
        command = [str(GROUP_COORDINATOR), "why", GROUP, *where]
        text = subprocess.run(command, capture_output=True, text=True).stdout
        show()
        show(f"$ .venv/bin/group-coordinator why {GROUP} {' '.join(where)}")
        show(visible_lines(text))
        return text

    def _ids(self, pattern: re.Pattern[str], logs: str) -> set[str]:
        texts = (path.read_text(errors="replace") for path in self.data_dir.glob(logs))
        return set(chain.from_iterable(map(pattern.findall, texts)))

    def _all_consumed(self) -> DemoCheck:
        sent = self._ids(_SENT, "producer-*.log")
        missing = sent - self._ids(_RECEIVED, "consumer-*.log")
        finding = f"{len(sent)} sent, {len(missing)} of them not consumed"
        return DemoCheck("every message was consumed", bool(sent) and not missing, finding)


def _is_shared(poll: GroupPoll) -> bool:
    held = chain.from_iterable(client.queues for client in poll.reports)
    return sorted(held) == sorted(queue for queue in poll.queues if queue.topic == TOPIC)


def _named(report: str) -> DemoCheck:
    """Check that polls showed both faults while a client id was there twice."""
    missing = [kind for kind in (SymptomKind.DUPLICATE, SymptomKind.NO_READER) if kind not in report]
    finding = f"not named: {', '.join(missing) or 'none'}"
    return DemoCheck("why named the client id, and the queues that nobody read", not missing, finding)


def _remembered(history: str) -> DemoCheck:
    """Check that the history names the killed client and the duplicate client id."""
    wanted = ("@consumer-2", "client left", "duplicate client id")
    missing = [text for text in wanted if text not in history]
    finding = f"not in it: {', '.join(missing) or 'none'}"
    return DemoCheck(
        "the history names the killed client and the client id that was twice", not missing, finding
    )
