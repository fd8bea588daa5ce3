"""The demo's script: the steps of a group of consumers."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from checkpoints.checkpoint import Checkpoint
from checkpoints.folders import make_private_folder
from cli.demo import consumer
from cli.demo.checks import read_history
from cli.demo.load import Load, consumed
from cli.demo.proof import Deed, DemoResult, Observed, examine
from cli.demo.strike import Struck, strike, wait_until_gone
from cli.demo.watch import Watch, client_of, held, kafka_entry, read_all, stable_with
from cli.processes.child import Child, Children
from clients.partition_text import number_list
from embedded.broker import EmbeddedBroker
from records.layout import TopicLayout
from state.kafka.classic_group import GroupState
from state.kafka.history import EntryType, HistoryEntry

GROUP = "demo"
TOPIC = "demo-orders"
PARTITIONS = 12
RECORDS_PER_S = 40.0
SETTINGS = ("group.initial.rebalance.delay.ms=3000",)

# The time limit of each wait. It is long, because a busy machine is slow, not wrong.
PATIENCE_S = 300.0
STRIKES_MAX = 5
SPARE_CONSUMERS = ("consumer-6", "consumer-7", "consumer-8", "consumer-9")
# For this long a strike waits for a new member's answer; later it takes a heartbeat's, which proves as much.
HEARTBEATS_AFTER_S = 20.0


class Story(Protocol):
    """Reports the progress of the demo."""

    def step(self, text: str) -> None:
        """Report that a step begins."""

    def fact(self, text: str) -> None:
        """Report an event of the current step."""


class Demo:
    """One run of the demo.

    `play` takes a few minutes. Every process it starts has ended when it returns or raises. All files are
    under `data_dir`, a folder of its own. If the script cannot go on, `play` raises `ChildFailed`, `NotSeen`,
    or an error of `EmbeddedBroker.start`.
    """

    def __init__(self, data_dir: Path, story: Story, records_per_s: float = RECORDS_PER_S) -> None:
        self.data_dir = data_dir.absolute()
        self._story = story
        self._records_per_s = records_per_s
        self._layout = TopicLayout.named()
        self._folder = self.data_dir / "coordinator"
        self._consumers: dict[str, Child] = {}
        self._consumed: list[Path] = []
        self._deeds: list[Deed] = []
        self._coordinator_starts = 0
        self._state_at_first_kill = ""
        self._struck: Struck | None = None

    def play(self) -> DemoResult:
        """Run the script, then check its outcome on the topics."""
        make_private_folder(self.data_dir)
        with ExitStack() as stack:
            self._set_up(stack)
            self._three_join()
            self._one_dies()
            self._one_joins()
            self._one_leaves_and_the_coordinator_dies()
            self._the_coordinator_dies_before_a_commit()
            self._all_is_consumed()
            self._all_leave()
            return examine(self._client_config, self._layout, self._observed())

    def _set_up(self, stack: ExitStack) -> None:
        self._story.step("Start a Kafka broker, the coordinator, a gateway, and a stream of records")
        broker = stack.enter_context(EmbeddedBroker(self.data_dir / "broker"))
        self._client_config = broker.client_config
        self._story.fact(f"a Kafka broker runs on {self._client_config}")
        self._children = stack.enter_context(Children(self.data_dir))
        self._start_coordinator()
        self._start_gateway()
        self._watch = stack.enter_context(
            Watch(self._client_config, self._layout.events_topic, GROUP, kafka_entry)
        )
        self._load = Load(self._client_config, TOPIC, PARTITIONS, self._records_per_s)
        stack.callback(self._load.stop)
        self._load.start()
        self._story.fact(f"{self._records_per_s:g} records/s go to the {PARTITIONS} partitions of {TOPIC}")

    def _three_join(self) -> None:
        self._story.step(
            "Three consumers join: unmodified kafka-python consumers with the gateway as their broker "
            f"and sessions of {consumer.SESSION_TIMEOUT_MS // 1000} s"
        )
        for number in (1, 2, 3):
            self._start_consumer(f"consumer-{number}")
        self._wait_until_stable()
        ask = f"group-coordinator why {GROUP} --bootstrap-servers {self._client_config}"
        self._story.fact(f"to see the reasons meanwhile, in another terminal: .venv/bin/{ask}")

    def _one_dies(self) -> None:
        self._story.step("consumer-2 is killed (SIGKILL): only its silence shows that")
        mark = self._watch.mark()
        self._deed("SIGKILL consumer-2")
        self._consumers.pop("consumer-2").kill()
        killed_s = time.monotonic()
        self._watch.wait_for("consumer-2 is removed", _removed("consumer-2"), PATIENCE_S, since=mark)
        after_s = time.monotonic() - killed_s
        session_s = consumer.SESSION_TIMEOUT_MS // 1000
        self._story.fact(
            f"removed {after_s:.1f} s after the kill, when its session of {session_s} s had expired"
        )
        self._wait_until_stable()

    def _one_joins(self) -> None:
        self._story.step("consumer-4 joins")
        self._start_consumer("consumer-4")
        self._wait_until_stable()

    def _one_leaves_and_the_coordinator_dies(self) -> None:
        self._story.step("consumer-1 leaves, and the coordinator is killed while the group rebalances")
        leaver = self._consumers.pop("consumer-1")
        self._deed("SIGTERM consumer-1: it leaves")
        self._freeze_in_a_rebalance(leaver.terminate)
        for name in SPARE_CONSUMERS:
            if self._state_at_first_kill == GroupState.PREPARING_REBALANCE:
                break
            self._coordinator.thaw()
            self._wait_until_stable()
            self._story.fact(f"that was too late, the rebalance was over; {name} joins for another one")
            self._freeze_in_a_rebalance(partial(self._start_consumer, name))
        self._deed("SIGKILL the coordinator while the group is in PreparingRebalance")
        self._coordinator.kill()
        wait_until_gone(self._folder)
        leaver.stop()
        self._story.fact(f"killed; the group's last known state is {self._state_at_first_kill}")
        self._story.fact("the consumers go on: no session expires while no coordinator runs")
        self._start_coordinator()
        self._wait_until_stable()

    def _freeze_in_a_rebalance(self, begin: Callable[[], object]) -> None:
        """Freeze the coordinator when `begin` has made the group rebalance. The history that is written then
        says whether it still does: a busy machine may write a whole rebalance at once.
        """
        mark = self._watch.mark()
        begin()
        self._watch.wait_for("a rebalance", _first(EntryType.PREPARING_REBALANCE), PATIENCE_S, since=mark)
        self._coordinator.freeze()
        history = read_history(read_all(self._client_config, self._layout.events_topic))
        self._state_at_first_kill = history.of(GROUP)[-1].to_state

    def _the_coordinator_dies_before_a_commit(self) -> None:
        self._story.step(
            "consumer-5 joins, and the coordinator is killed between a batch's output and its commit"
        )
        self._struck = self._strike(lambda: self._start_consumer("consumer-5"), HEARTBEATS_AFTER_S)
        for _ in range(STRIKES_MAX - 1):
            if self._struck is not None:
                break
            self._story.fact("the commit was already written; another attempt")
            self._start_coordinator()
            self._struck = self._strike(lambda: None, 0)
        if self._struck is not None:
            struck = self._struck
            self._story.fact(
                f"killed; batch {struck.batch} had answered a {struck.answer} and is not committed"
            )
        self._start_coordinator()
        self._wait_until_stable()

    def _strike(self, begin: Callable[[], None], heartbeats_after_s: float) -> Struck | None:
        struck = strike(
            self._coordinator,
            self._folder,
            self._client_config,
            self._layout,
            timeout_s=PATIENCE_S,
            heartbeats_after_s=heartbeats_after_s,
            begin=begin,
        )
        self._deed("SIGKILL the coordinator after an answer whose batch is not committed")
        return struck

    def _all_is_consumed(self) -> None:
        self._story.step("The stream ends, and the consumers consume what is left")
        self._load.stop()
        wanted = self._load.acknowledged
        give_up_s = time.monotonic() + PATIENCE_S
        while wanted - consumed(self._consumed).keys() and time.monotonic() < give_up_s:
            time.sleep(0.2)  # other processes write the files and send no signal
        left = len(wanted - consumed(self._consumed).keys())
        self._story.fact(f"{len(wanted)} records were produced in all, {left} of them are not consumed")

    def _all_leave(self) -> None:
        self._story.step("The consumers leave, and the coordinator is stopped")
        mark = self._watch.mark()
        self._deed("SIGTERM the consumers: they leave")
        for child in self._consumers.values():
            child.terminate()
        self._watch.wait_for("an empty group", _first(EntryType.EMPTY), PATIENCE_S, since=mark)
        for child in self._consumers.values():
            child.stop()
        self._coordinator.stop()

    def _observed(self) -> Observed:
        return Observed(
            group_id=GROUP,
            partitions=PARTITIONS,
            acknowledged=self._load.acknowledged,
            consumed=self._consumed,
            killed="consumer-2",
            state_at_first_kill=self._state_at_first_kill,
            struck=self._struck,
            last_commit=Checkpoint.at(self._folder).last_batch("commits"),
            deeds=self._deeds,
        )

    def _start_coordinator(self) -> None:
        self._coordinator_starts += 1
        started_s = time.monotonic()
        arguments = ["run", "--json", "--bootstrap-servers", str(self._client_config)]
        arguments += ["--data-dir", str(self.data_dir)]
        for setting in SETTINGS:
            arguments += ["-c", setting]
        self._coordinator = self._children.start(f"coordinator-{self._coordinator_starts}", *arguments)
        self._coordinator.wait_for_line(is_ready_line, PATIENCE_S)
        how = "goes on from its checkpoint" if self._coordinator_starts > 1 else "is ready"
        self._story.fact(f"the coordinator {how}, {time.monotonic() - started_s:.0f} s after its start")

    def _start_gateway(self) -> None:
        """Start a separate gateway, because a coordinator's own gateway would end with the coordinator."""
        gateway = self._children.start(
            "gateway",
            *("gateway", "--json", "--bootstrap-servers", str(self._client_config)),
            *("--listen", "127.0.0.1:0"),
        )
        ready = gateway.wait_for_line(lambda line: "gateway" in told(line), PATIENCE_S)
        self._gateway = told(ready)["gateway"]
        self._story.fact(f"the gateway is ready: consumers take bootstrap.servers={self._gateway}")

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
        stable = self._watch.wait_for(f"a stable group of {names}", stable_with(self._consumers), PATIENCE_S)
        holdings = ", ".join(f"{name} has {number_list(p) or 'none'}" for name, p in held(stable).items())
        self._story.fact(f"generation {stable.generation} is stable: {holdings}")

    def _deed(self, what: str) -> None:
        self._deeds.append(Deed(int(time.time() * 1000), what))


def told(line: str) -> dict[str, Any]:
    """Return the JSON object in a child's line of output, or an empty dict if the line is no JSON object."""
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def is_ready_line(line: str) -> bool:
    """Whether this is the line that `run --json` prints when it is ready."""
    return "requests_topic" in told(line)


def _first(kind: EntryType) -> Callable[[Sequence[HistoryEntry]], HistoryEntry | None]:
    return lambda events: next((e for e in events if e.type is kind), None)


def _removed(client: str) -> Callable[[Sequence[HistoryEntry]], HistoryEntry | None]:
    def find(events: Sequence[HistoryEntry]) -> HistoryEntry | None:
        removed = (e for e in events if e.type is EntryType.MEMBER_REMOVED)
        return next((e for e in removed if client_of(e.member_id or "") == client), None)

    return find
