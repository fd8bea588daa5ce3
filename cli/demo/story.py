"""The demo's stories: Kafka consumers and a killed coordinator, RocketMQ clients with one client id."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import chain, count
from pathlib import Path

from cli.demo import consumer, watch
from cli.demo.load import Load, count_consumed
from cli.demo.watch import (
    PATIENCE_S,
    DemoCheck,
    HistoryWatch,
    Narrator,
    NotSeen,
    find_first,
    find_removed,
    find_stable,
    json_line,
    partitions_held,
    wait_until,
)
from cli.processes.child import GROUP_COORDINATOR, Child, Children
from embedded.broker import EmbeddedBroker
from embedded.jars import class_path
from embedded.java import QUICK_COMPILER, find_java
from kafka_why.cli.output import show
from kafka_why.connections import kafka_clients
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.kafka.history import EntryType, GroupState, HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.local_files import ServiceFolder, make_private_folder
from kafka_why.why.history import HistoryUnavailable
from kafka_why.why.rocketmq.polled.cluster import ClusterPoller
from kafka_why.why.rocketmq.polled.model import GroupPoll, SymptomKind, queues_text
from kafka_why.wording import number_list, visible_lines

GROUP = "demo"
TOPIC = "demo-orders"
PARTITIONS = 12
RECORDS_PER_S = 40.0
SETTING = "group.initial.rebalance.delay.ms=3000"

# Each joins if a rebalance was over before the coordinator was frozen.
SPARE_CONSUMERS = ("consumer-5", "consumer-6", "consumer-7", "consumer-8")
# The part of a member id after the client id. The text leaves it out, because readers know the client ids.
_UUID = re.compile(r"-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Demo:
    """A run of the demo with Kafka consumers. It takes a few minutes.

    It prints each step, and the group's history as it is written.

    Every process that it starts has ended when `play` returns or raises. All files are in `data_dir`, which
    has nothing else. If the story cannot continue, `play` raises `ChildFailed`, `NotSeen`, or an error of
    `EmbeddedBroker.start`.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.absolute()
        self._folder = self.data_dir / "coordinator"
        self._narrator = Narrator()
        self._coordinator_numbers = count(1)
        self._consumers: dict[str, Child] = {}
        self._consumed: list[Path] = []

    def play(self) -> list[DemoCheck]:
        """Play the story, and return the checks at its end."""
        make_private_folder(self.data_dir)
        with ExitStack() as stack:
            self._set_up(stack)
            self._three_join()
            self._one_dies()
            self._one_joins()
            self._one_leaves_and_the_coordinator_dies()
            self._all_is_consumed()
            self._all_leave()
            with closing(kafka_clients.admin(self._client_config)) as admin:
                groups_of_broker = [group["group_id"] for group in admin.list_groups()]
            return [
                watch.all_consumed(self._load.acknowledged, count_consumed(self._consumed)),
                watch.only_expired(self._watch.entries, "consumer-2"),
                watch.one_owner_each(self._watch.entries, PARTITIONS),
                watch.broker_has_no_group(groups_of_broker),
            ]

    def _set_up(self, stack: ExitStack) -> None:
        self._narrator.step("Start a Kafka broker, the coordinator, a gateway, and a stream of records")
        broker = stack.enter_context(EmbeddedBroker(self.data_dir / "broker"))
        self._client_config = broker.client_config
        self._narrator.say(f"a Kafka broker runs on {self._client_config}")
        self._children = stack.enter_context(Children(self.data_dir))
        self._start_coordinator()
        self._narrator.say("the coordinator is ready")
        self._start_gateway()
        self._watch = stack.enter_context(
            HistoryWatch(self._client_config, TopicLayout.named().events_topic, GROUP, self._print_entry)
        )
        self._load = stack.enter_context(Load(self._client_config, TOPIC, PARTITIONS, RECORDS_PER_S))
        self._narrator.say(f"{RECORDS_PER_S:g} records/s go to the {PARTITIONS} partitions of {TOPIC}")

    def _three_join(self) -> None:
        self._narrator.step(
            "Three consumers join: unmodified kafka-python consumers with the gateway as their broker "
            f"and sessions of {consumer.SESSION_TIMEOUT_MS // 1000} s"
        )
        for number in (1, 2, 3):
            self._start_consumer(f"consumer-{number}")
        self._wait_until_stable()
        why = f"group-coordinator why {GROUP} --bootstrap-servers {self._client_config}"
        self._narrator.say(f"to see the reasons meanwhile, in another terminal: .venv/bin/{why}")

    def _one_dies(self) -> None:
        self._narrator.step("consumer-2 is killed (SIGKILL): only its silence shows that")
        self._consumers.pop("consumer-2").kill()
        self._watch.wait_for("consumer-2 is removed", find_removed("consumer-2"), PATIENCE_S)
        self._wait_until_stable()

    def _one_joins(self) -> None:
        self._narrator.step("consumer-4 joins")
        self._start_consumer("consumer-4")
        self._wait_until_stable()

    def _one_leaves_and_the_coordinator_dies(self) -> None:
        self._narrator.step("consumer-1 leaves, and the coordinator is killed while the group rebalances")
        leaver = self._consumers.pop("consumer-1")
        self._freeze_in_a_rebalance(leaver.terminate)
        self._coordinator.kill()
        with ServiceFolder(self._folder).locked():  # wait for its JVM, which holds the lock until its end
            pass
        leaver.stop()
        self._narrator.say(f"killed (SIGKILL) while the group is in {GroupState.PREPARING_REBALANCE}")
        self._narrator.say("the consumers keep running: no session expires while no coordinator runs")
        self._start_coordinator()
        self._watch.catch_up()
        self._narrator.say("the coordinator has started again, and continues from its checkpoint")
        self._wait_until_stable()

    def _freeze_in_a_rebalance(self, begin: Callable[[], None]) -> None:
        """Freeze the coordinator in the rebalance that `begin` or a later join of a spare consumer starts."""
        joins = (partial(self._start_consumer, name) for name in SPARE_CONSUMERS)
        starts: list[Callable[[], None]] = [begin, *joins]
        for start_rebalance in starts:
            entries_before = len(self._watch.entries)
            start_rebalance()
            preparing = find_first(EntryType.PREPARING_REBALANCE)
            self._watch.wait_for("a rebalance", preparing, PATIENCE_S, since=entries_before)
            self._coordinator.freeze()
            self._watch.catch_up()  # the rebalance may have ended before the freeze
            if self._watch.entries[-1].to_state == GroupState.PREPARING_REBALANCE:
                return
            self._coordinator.thaw()
            self._wait_until_stable()
            self._narrator.say("that was too late, the rebalance was over; another consumer joins")
        raise NotSeen("the coordinator was never frozen in a rebalance")

    def _all_is_consumed(self) -> None:
        self._narrator.step("The stream ends, and the consumers consume what is left")
        self._load.stop()
        with suppress(NotSeen):  # `watch.all_consumed` then reports what is missing
            wait_until(
                "the last records", lambda: self._load.acknowledged <= count_consumed(self._consumed).keys()
            )

    def _all_leave(self) -> None:
        self._narrator.step("The consumers leave, and the coordinator is stopped")
        entries_before = len(self._watch.entries)
        for child in self._consumers.values():
            child.terminate()
        self._watch.wait_for("an empty group", find_first(EntryType.EMPTY), PATIENCE_S, since=entries_before)
        for child in self._consumers.values():
            child.stop()
        self._coordinator.stop()

    def _start_coordinator(self) -> None:
        self._coordinator = self._children.start(
            f"coordinator-{next(self._coordinator_numbers)}",
            *("run", "--json", "--bootstrap-servers", str(self._client_config)),
            *("--data-dir", str(self.data_dir), "-c", SETTING),
        )
        self._coordinator.wait_for_line(lambda line: "requests_topic" in json_line(line), PATIENCE_S)

    def _start_gateway(self) -> None:
        """Start a separate gateway: a coordinator's own gateway would end with it."""
        gateway = self._children.start(
            "gateway",
            *("gateway", "--json", "--bootstrap-servers", str(self._client_config)),
            *("--listen", "127.0.0.1:0"),
        )
        ready = gateway.wait_for_line(lambda line: "gateway" in json_line(line), PATIENCE_S)
        self._gateway = json_line(ready)["gateway"]
        self._narrator.say(f"the gateway is ready: consumers take bootstrap.servers={self._gateway}")

    def _start_consumer(self, name: str) -> None:
        path = self.data_dir / f"{name}.jsonl"
        self._consumed.append(path)
        self._consumers[name] = self._children.start(
            name,
            *("-m", consumer.__name__, self._gateway, GROUP, TOPIC, name, str(path)),
            program=Path(sys.executable),
        )

    def _wait_until_stable(self) -> None:
        """Wait until a generation of exactly the running consumers has its assignment."""
        names = ", ".join(self._consumers)
        stable = self._watch.wait_for(f"a stable group of {names}", find_stable(self._consumers), PATIENCE_S)
        shares = ", ".join(f"{name} has {number_list(p)}" for name, p in partitions_held(stable).items())
        self._narrator.say(f"generation {stable.generation} is stable: {shares}")

    def _print_entry(self, entry: HistoryEntry) -> None:
        member = f" {entry.member_id}" if entry.member_id else ""
        text = _UUID.sub("", f"{entry.type}{member}: {entry.reason}")
        line = f"    generation {entry.generation:<2} {text} [{entry.rule}]"
        self._narrator.say(line, at_s=entry.at_ms / 1000)


# Names in RocketMQ's quick start.
ROCKETMQ_GROUP, ROCKETMQ_TOPIC = "please_rename_unique_group_name_4", "TopicTest"
QUEUES = 6
_QUICK_START = "org.apache.rocketmq.example.quickstart"
_ADMIN = "org.apache.rocketmq.tools.command.MQAdminStartup"
_SENT = re.compile(r"SEND_OK, msgId=(\w+)")
_RECEIVED = re.compile(r"UNIQ_KEY=(\w+)")


class RocketMqDemo:
    """A run of the demo with the consumers of RocketMQ's quick start. It takes two minutes.

    It prints each step, and what `why` reports.

    Every process that it starts has ended when `play` returns or raises. All files are in `data_dir`, which
    has nothing else. `gateway` and `page` are addresses, which are set once the processes are ready. If the
    story cannot continue, `play` raises ChildFailed, NotSeen, JarsUnavailable, JavaNotFound or
    ClusterUnavailable.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.absolute()
        self._narrator = Narrator()
        self._consumers: dict[str, Child] = {}

    def play(self) -> list[DemoCheck]:
        """Play the story, and return the checks at its end."""
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
            why_text = self._start_duplicate()
            self._narrator.step("It is stopped")
            self._consumers.pop("consumer-1 again").stop()
            self._wait_until_shared()
            self._wait_until_consumed()
            self._narrator.step("The history of the group, with a reason for each change")
            history = self._why("--bootstrap-servers", self._broker)
        return [
            self._all_consumed(),
            _check_names(
                "why named the client id, and the queues that nobody read",
                why_text,
                (SymptomKind.DUPLICATE, SymptomKind.NO_READER),
            ),
            _check_names(
                "the history names the killed client and the duplicate client id",
                history,
                ("@consumer-2", "client left", "duplicate client id"),
            ),
        ]

    def on_duplicate(self) -> None:
        """Do nothing. A subclass can take a picture here, while two consumers have the same client id."""

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
        admin = self._java(
            "mqadmin", _ADMIN, "updateTopic", "-n", self.gateway, "-t", ROCKETMQ_TOPIC, *queues
        )
        admin.wait_for_line(lambda line: "success" in line, PATIENCE_S)
        self._narrator.say(f"topic {ROCKETMQ_TOPIC} has {QUEUES} queues")

    def _join(self, *names: str) -> None:
        for name in names:
            self._consumers[name] = self._consumer(name)
        self._wait_until_shared()

    def _start_duplicate(self) -> str:
        """Start another consumer with the client id of consumer-1. Return what `why --namesrv` reports."""
        self._consumers["consumer-1 again"] = self._consumer("consumer-1", log="consumer-1-again")
        self._wait_for(
            "queues without a reader", lambda poll: bool(poll.duplicates()) and not _is_shared(poll)
        )
        self._send("producer-2")
        self.on_duplicate()
        return self._why("--namesrv", self.gateway)

    def _consumer(self, name: str, log: str = "") -> Child:
        """Start a consumer. `name` is the second part of its client id."""
        return self._java(log or name, f"{_QUICK_START}.Consumer", instance=name)

    def _send(self, name: str) -> None:
        producer = self._java(name, f"{_QUICK_START}.Producer")
        wait_until("the end of the producer", lambda: not producer.is_running)
        self._narrator.say(f"{len(self._message_ids(_SENT, 'producer-*.log'))} messages are sent so far")

    def _java(self, log: str, main_class: str, *arguments: str, instance: str = "DEFAULT") -> Child:
        options = (
            *(QUICK_COMPILER, "-Xmx128m", f"-Duser.home={self.data_dir}", "-cp", self._class_path),
            *(f"-Drocketmq.namesrv.addr={self.gateway}", f"-Drocketmq.client.name={instance}"),
        )
        return self._children.start(log, *options, main_class, *arguments, program=find_java())

    def _wait_until_shared(self) -> None:
        """Wait until each queue is held by one consumer, and every running consumer answers polls."""
        names = sorted(self._consumers)
        poll = self._wait_for(
            f"queues shared by {', '.join(names)}",
            lambda poll: _is_shared(poll) and len(poll.client_ids) == len(names) == len(poll.answers),
        )
        for client in poll.answers:
            self._narrator.say(f"{client.client_id} has {queues_text(client.queues)}")

    def _wait_for(self, what: str, condition: Callable[[GroupPoll], bool]) -> GroupPoll:
        """Poll the clients until `condition` is true of a poll, and return that poll. Raises NotSeen."""
        polls = list[GroupPoll]()

        def is_satisfied() -> bool:
            with suppress(HistoryUnavailable):  # no consumer has sent a heartbeat
                polls.append(asyncio.run(self._poll()))
                return condition(polls[-1])
            return False

        wait_until(what, is_satisfied)
        return polls[-1]

    async def _poll(self) -> GroupPoll:
        async with ClusterPoller(RocketMqServers((self.gateway,))) as cluster:
            return await cluster.poll(ROCKETMQ_GROUP)

    def _wait_until_consumed(self) -> None:
        sent = self._message_ids(_SENT, "producer-*.log")
        with suppress(NotSeen):  # `_all_consumed` then reports what is missing
            wait_until("the last messages", lambda: sent <= self._message_ids(_RECEIVED, "consumer-*.log"))

    def _why(self, *where: str) -> str:
        """Run `why` for the group, print its output as a terminal would show it, and return it."""
        command = [str(GROUP_COORDINATOR), "why", ROCKETMQ_GROUP, *where]
        text = subprocess.run(command, capture_output=True, text=True).stdout
        show()
        show(f"$ .venv/bin/group-coordinator why {ROCKETMQ_GROUP} {' '.join(where)}")
        show(visible_lines(text))
        return text

    def _message_ids(self, pattern: re.Pattern[str], logs: str) -> set[str]:
        """Return the ids that `pattern` finds in the files of the glob `logs`."""
        texts = (path.read_text(errors="replace") for path in self.data_dir.glob(logs))
        return set(chain.from_iterable(map(pattern.findall, texts)))

    def _all_consumed(self) -> DemoCheck:
        sent = self._message_ids(_SENT, "producer-*.log")
        missing = sent - self._message_ids(_RECEIVED, "consumer-*.log")
        finding = f"{len(sent)} sent, {len(missing)} of them not consumed"
        return DemoCheck("every message was consumed", bool(sent) and not missing, finding)


def _is_shared(poll: GroupPoll) -> bool:
    """Return True if each queue of the topic is held by exactly one client."""
    held = chain.from_iterable(client.queues for client in poll.answers)
    return sorted(held) == sorted(queue for queue in poll.queues if queue.topic == ROCKETMQ_TOPIC)


def _check_names(claim: str, text: str, names: Sequence[str]) -> DemoCheck:
    """Check that `text` has all `names`."""
    missing = [name for name in names if name not in text]
    return DemoCheck(claim, not missing, f"not named: {', '.join(missing) or 'none'}")
