"""The demo of RocketMQ's load balancing, step by step: consumers that divide queues among themselves."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from checkpoints.folders import make_private_folder
from cli.demo.load import Load, consumed, consumed_by_partition
from cli.demo.proof import Deed, DemoResult
from cli.demo.rocketmq_proof import Observed, Share, Trap, examine
from cli.demo.script import PATIENCE_S, RECORDS_PER_S, Story, is_ready_line
from cli.demo.watch import NotSeen, Watch
from cli.processes.child import Child, ChildFailed, Children
from embedded.broker import EmbeddedBroker
from records.layout import TopicLayout
from records.reader import TopicReader
from records.rocketmq_history import decode_entry
from state.rocketmq.history import EntryType, HistoryEntry

GROUP = "demo-clustering"
BROADCAST_GROUP = "demo-broadcasting"
TOPIC = "demo-orders"
QUEUES = 7
HEARTBEAT_INTERVAL_MS = 5_000
REBALANCE_INTERVAL_MS = 5_000
EXPIRY_MS = 15_000
SETTINGS = (
    f"rocketmq.channel.expired.timeout.ms={EXPIRY_MS}",
    "rocketmq.scan.interval.ms=1000",
)
# How long the trap's backlog is watched. On a busy machine the backlog grows late, but it never shrinks.
BACKLOG_WATCH_S = 10.0


class RocketMqDemo:
    """One run; see `cli.demo.script.Demo`."""

    def __init__(self, data_dir: Path, story: Story, records_per_s: float = RECORDS_PER_S) -> None:
        self.data_dir = data_dir.absolute()
        self._story = story
        self._records_per_s = records_per_s
        self._layout = TopicLayout.named()
        self._consumers: dict[str, Child] = {}
        self._files: dict[str, Path] = {}
        self._broadcasters: dict[str, Path] = {}
        self._shares: list[Share] = []
        self._deeds: list[Deed] = []
        self._trap: Trap | None = None

    def play(self) -> DemoResult:
        """Run the script, then check its outcome on the topics."""
        make_private_folder(self.data_dir)
        with ExitStack() as stack:
            self._set_up(stack)
            self._two_come()
            self._a_third_comes()
            self._one_dies()
            self._two_have_one_id()
            self._the_trap_is_left()
            self._all_is_consumed()
            self._all_stop()
            return examine(self._client_config, self._layout, self._observed())

    def _set_up(self, stack: ExitStack) -> None:
        self._story.step(
            "Start a Kafka broker, the coordinator, a stream of records, and two broadcasting consumers"
        )
        broker = stack.enter_context(EmbeddedBroker(self.data_dir / "broker"))
        self._client_config = broker.client_config
        self._children = stack.enter_context(Children(self.data_dir))
        arguments = ["run", "--json", "--bootstrap-servers", str(self._client_config)]
        arguments += ["--data-dir", str(self.data_dir), *(f"-c{setting}" for setting in SETTINGS)]
        coordinator = self._children.start("coordinator", *arguments)
        coordinator.wait_for_line(is_ready_line, PATIENCE_S)
        events = self._layout.events_topic
        self._watch = stack.enter_context(Watch(self._client_config, events, GROUP, decode_entry))
        self._load = Load(self._client_config, TOPIC, QUEUES, self._records_per_s)
        stack.callback(self._load.stop)
        for name in ("broadcast-1", "broadcast-2"):
            self._start(name, BROADCAST_GROUP, "--model", "broadcasting")
            self._broadcasters[name] = self._files.pop(name)
        self._load.start()
        self._story.fact(f"{self._records_per_s:g} records/s go to the {QUEUES} queues of {TOPIC}")

    def _two_come(self) -> None:
        self._story.step("Two consumers come: each computes its own share")
        self._start("consumer-1")
        self._start("consumer-2")
        self._wait_for_shares({"consumer-1": "0-3", "consumer-2": "4-6"})

    def _a_third_comes(self) -> None:
        self._story.step("A third consumer comes, and all are notified")
        mark = self._watch.mark()
        self._start("consumer-3")
        self._story.fact(self._wait_for(EntryType.CONSUMERS_NOTIFIED, mark).reason)
        self._wait_for_shares({"consumer-1": "0-2", "consumer-2": "3-4", "consumer-3": "5-6"})

    def _one_dies(self) -> None:
        self._story.step("consumer-2 is killed (SIGKILL): a scan finds its silence, and notifies no client")
        mark = self._watch.mark()
        self._deed("SIGKILL consumer-2")
        self._consumers.pop("consumer-2").kill()
        killed_s = time.monotonic()
        found = self._wait_for(EntryType.CONSUMER_REMOVED, mark)
        self._story.fact(f"removed {time.monotonic() - killed_s:.1f} s after the kill: {found.reason}")
        self._wait_for_shares({"consumer-1": "0-3", "consumer-3": "4-6"})

    def _two_have_one_id(self) -> None:
        self._story.step("consumer-3 stops, and another consumer comes with the client id of consumer-1")
        self._deed("SIGTERM consumer-3: it leaves")
        self._consumers.pop("consumer-3").stop()
        self._wait_for_shares({"consumer-1": "0-6"})
        mark = self._watch.mark()
        self._deed("a second consumer with the client id consumer-1 is started")
        self._start("twin-of-consumer-1", GROUP, client_id="consumer-1")
        trap = self._wait_for(EntryType.DUPLICATE_CLIENT_ID, mark)
        self._story.fact(trap.reason)
        self._wait_for_shares({"consumer-1": "0-3", "twin-of-consumer-1": "0-3"})
        before = self._backlog()
        time.sleep(BACKLOG_WATCH_S)  # the check is that no consumer reads these queues meanwhile
        after = self._backlog()
        self._trap = Trap(list(trap.connections or []), before, after)
        waited = f"{before} records waited there, and {after} records {BACKLOG_WATCH_S:g} s later"
        self._story.fact(f"no consumer reads queues 4-6: {waited}")

    def _the_trap_is_left(self) -> None:
        self._story.step("The twin stops, and a consumer with a client id of its own takes its place")
        mark = self._watch.mark()
        self._deed("SIGTERM the twin")
        self._consumers.pop("twin-of-consumer-1").stop()
        self._story.fact(self._wait_for(EntryType.DUPLICATE_CLIENT_ID_OVER, mark).reason)
        self._start("consumer-4")
        self._wait_for_shares({"consumer-1": "0-3", "consumer-4": "4-6"})

    def _all_is_consumed(self) -> None:
        self._story.step("The stream ends, and the consumers consume what is left")
        self._load.stop()
        wanted = self._load.acknowledged
        everyone = [list(self._files.values()), *([path] for path in self._broadcasters.values())]
        give_up_s = time.monotonic() + PATIENCE_S
        while any(wanted - consumed(files).keys() for files in everyone) and time.monotonic() < give_up_s:
            time.sleep(0.2)  # other processes write the files and send no signal
        self._story.fact(f"{len(wanted)} records were produced in all")

    def _all_stop(self) -> None:
        self._story.step("Everything stops")
        self._deed("SIGTERM the consumers: they leave")
        for child in self._consumers.values():
            child.terminate()
        self._children.stop_all()

    def _start(self, name: str, group: str = GROUP, *more: str, client_id: str = "") -> None:
        self._files[name] = self.data_dir / f"{name}.jsonl"
        self._consumers[name] = self._children.start(
            name,
            *("rocketmq-consumer", "--bootstrap-servers", str(self._client_config)),
            *("--group", group, "--topic", TOPIC, "--from", "first", "--client-id", client_id or name),
            *("--consumed", str(self._files[name]), *more),
            *("--heartbeat-interval-ms", str(HEARTBEAT_INTERVAL_MS)),
            *("--rebalance-interval-ms", str(REBALANCE_INTERVAL_MS)),
        )

    def _wait_for(self, kind: EntryType, mark: int) -> HistoryEntry:
        """Return the first entry of this kind since the mark. Raises NotSeen if none comes in time."""
        return self._watch.wait_for(f"{kind} in the history", _first(kind), PATIENCE_S, since=mark)

    def _wait_for_shares(self, wanted: dict[str, str]) -> None:
        """Wait until these consumers report exactly these queues. Raises NotSeen or ChildFailed."""
        give_up_s = time.monotonic() + PATIENCE_S
        while (found := {name: _last_share(self._consumers[name]) for name in wanted}) != wanted:
            if time.monotonic() > give_up_s:
                raise NotSeen(f"shares {wanted}: not within {PATIENCE_S:.0f} s (they are {found})")
            for name in wanted:
                if not self._consumers[name].is_running:
                    raise ChildFailed(str(self._consumers[name].failure("it ended")))
            time.sleep(0.1)  # the logs are files, and their writers send no signal
        self._shares.append(Share(dict(wanted)))
        self._story.fact("; ".join(f"{name} has {queues}" for name, queues in wanted.items()))

    def _backlog(self) -> int:
        """Return the number of unread records in the queues that no consumer reads."""
        orphans = range(4, QUEUES)
        with TopicReader(self._client_config) as reader:
            ends = reader.ends(reader.partitions_of(TOPIC))
        positions = consumed_by_partition(self._files.values())
        return sum(end - positions.get(p.partition, 0) for p, end in ends.items() if p.partition in orphans)

    def _observed(self) -> Observed:
        return Observed(
            group_id=GROUP,
            acknowledged=self._load.acknowledged,
            consumed=list(self._files.values()),
            broadcast=list(self._broadcasters.values()),
            shares=self._shares,
            trap=self._trap,
            deeds=self._deeds,
        )

    def _deed(self, what: str) -> None:
        self._deeds.append(Deed(int(time.time() * 1000), what))


def _last_share(child: Child) -> str:
    """Return the queues that the consumer reported last, or "" if it has reported none."""
    lines = child.log_path.read_text(errors="replace").splitlines(keepends=True)
    reports = [line for line in lines if line.endswith("\n") and ": has " in line]
    return reports[-1].rstrip("\n").partition(f": has {TOPIC} ")[2] if reports else ""


def _first(kind: EntryType) -> Callable[[Sequence[HistoryEntry]], HistoryEntry | None]:
    return lambda events: next((e for e in events if e.type is kind), None)
