"""`observe` beside a real broker with share and streams groups of Kafka's Java clients: the reports and
descriptions say what Kafka's own descriptions said.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click import Command

from checkpoints.checkpoint import Checkpoint
from cli.groups import groups
from cli.processes.child import Children
from embedded.broker import EmbeddedBroker
from kafka_why.cli.why import why
from kafka_why.connections import kafka_clients
from kafka_why.contract.any_group import AnyHistoryEntry
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.why.course import course_of
from kafka_why.why.folder_history import read_folder
from kafka_why.why.model import CauseKind, RebalanceOutcome
from tests.e2e.harness import START_TIMEOUT_S, create_topic, history_of, wait_until
from tests.harness.commands import invoke
from tests.harness.kafkas_groups import Held, JavaGroups
from tests.harness.shared import QUICK_JAVA

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

PARTITIONS = 4
PREFIX = "observed-types"
# Members heartbeat often and nothing is waited for, so that the story is short. Each task has a standby.
SETTINGS = {
    **{f"group.{kind}.heartbeat.interval.ms": "500" for kind in ("share", "streams")},
    **{f"group.{kind}.min.heartbeat.interval.ms": "500" for kind in ("share", "streams")},
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.num.standby.replicas": "1",
}
JOINED, GONE = CauseKind.MEMBER_JOINED, CauseKind.MEMBER_GONE


@pytest.fixture
def own_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    with EmbeddedBroker(tmp_path / "broker", overrides=SETTINGS) as broker:
        yield broker


def have(*names: str, each: int) -> "HeldBy":
    """Whether these members have so many partitions or tasks each, and all of `orders` together."""
    return HeldBy(frozenset(names), each)


class HeldBy:
    """What `await_held` waits for."""

    def __init__(self, names: frozenset[str], each: int) -> None:
        self._names = names
        self._each = each

    def __call__(self, held: Held) -> bool:
        numbers = {one.rpartition(":")[2] for has in held.values() for one in has}
        is_all = len(numbers) == PARTITIONS or not self._names
        return held.keys() == self._names and all(len(has) == self._each for has in held.values()) and is_all


def test_share_and_streams_groups_are_told_as_kafka_describes_them(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = own_broker.client_config.bootstrap_servers
    create_topic(own_broker.client_config, "orders", PARTITIONS, {})
    command = ["observe", "--bootstrap-servers", servers, "--data-dir", str(tmp_path / "data")]
    command += ["--prefix", PREFIX, "--batch-interval-ms", "200"]
    with Children(tmp_path) as children, JavaGroups(servers, tmp_path) as java:
        child = children.start("observe", *command)
        java.join_share("s1", "queue", "orders")
        java.join_streams("t1", "counts", "orders")
        java.await_held("share", "queue", have("s1", each=4))
        java.await_held("streams", "counts", have("t1", each=4))
        java.join_share("s2", "queue", "orders")
        java.join_streams("t2", "counts", "orders")
        queue = java.await_held("share", "queue", have("s1", "s2", each=2))
        counts = java.await_held("streams", "counts", have("t1", "t2", each=4))
        child.wait_for_line(lambda line: line.startswith("ready:"), START_TIMEOUT_S)
        await_held(own_broker, "queue", queue.held)
        await_held(own_broker, "counts", counts.held)
        described = ask(servers, groups, "describe", "--members", "--verbose", "queue", "counts")
        for name, has in (*queue.held.items(), *counts.held.items()):
            (line,) = [line for line in described.splitlines() if f" {name}" in line and "/" in line]
            assert verbose(line) == has
        listed = ask(servers, groups, "list", "--type", "--state")
        assert {tuple(line.split()) for line in listed.splitlines()} >= {
            ("queue", "Share", "Stable"),
            ("counts", "Streams", "Stable"),
        }
        for name in ("s1", "t1", "s2", "t2"):
            java.stop(name)
        java.await_held("share", "queue", have(each=0))
        java.await_held("streams", "counts", have(each=0))
        java.delete_share("queue")
        await_end(own_broker, "queue", EntryType.GROUP_DELETED)
        await_end(own_broker, "counts", EntryType.EMPTY)
    expected = {"queue": ("s1", "s2", "s1", "s2"), "counts": ("t1", "t2", "t1", "t2")}
    for group_id, clients in expected.items():
        found = course_of(history(own_broker, group_id)).rebalances
        told = [(r.cause.kind, client(r.cause.client_id)) for r in found if r.cause.kind in (JOINED, GONE)]
        assert told == list(zip((JOINED, JOINED, GONE, GONE), clients, strict=True))
        assert found[-1].outcome is RebalanceOutcome.EMPTY
        assert {r.outcome for r in found[:-1]} == {RebalanceOutcome.STABLE}
        assert CauseKind.UNKNOWN not in {r.cause.kind for r in found}
    assert "share partitions were initialized" in ask(servers, why, "queue")
    assert "active 0" in ask(servers, why, "counts")
    the_files_have_the_same(own_broker, tmp_path)


def the_files_have_the_same(broker: EmbeddedBroker, folder: Path) -> None:
    """An observer with an output folder writes each entry, and nothing to the cluster."""
    out = folder / "out"
    servers = broker.client_config.bootstrap_servers
    command = ["observe", "--bootstrap-servers", servers, "--data-dir", str(folder / "files")]
    command += ["--output-dir", str(out), "--batch-interval-ms", "200"]
    topics = topics_of(broker)
    with Children(folder) as children:
        children.start("files", *command)
        wait_until(lambda: commits(folder / "files") >= 1, "a batch", START_TIMEOUT_S)
    for group_id in ("queue", "counts"):
        told = [told_by(entry) for entry in history(broker, group_id)]
        assert [told_by(entry) for entry in read_folder(out, group_id).entries] == told
    assert topics_of(broker) == topics
    result = invoke(why, ["queue", "--from-dir", str(out)])
    assert "share partitions were initialized" in result.output


def topics_of(broker: EmbeddedBroker) -> set[str]:
    with closing(kafka_clients.admin(broker.client_config)) as admin:
        return set(admin.list_topics())


def commits(data_dir: Path) -> int:
    """How many batches are committed."""
    return Checkpoint.at(data_dir / "observer").last_batch("commits") + 1


def told_by(entry: AnyHistoryEntry) -> tuple[str, int, str]:
    """What an entry says, without the observer's id."""
    return entry.type, entry.seq, entry.reason


def history(broker: EmbeddedBroker, group_id: str) -> list[HistoryEntry]:
    return history_of(broker.client_config, TopicLayout.observed(PREFIX, 1), group_id, settled=False)


def await_held(broker: EmbeddedBroker, group_id: str, expected: Held) -> None:
    """Wait until the history says that the members have this."""
    wait_until(lambda: held_in(history(broker, group_id)) == expected, f"{group_id}: {expected}")


def held_in(entries: list[HistoryEntry]) -> Held:
    held: dict[str, frozenset[str]] = {}
    for entry in entries:
        if entry.type is EntryType.MEMBER_RECONCILED:
            assigned = (entry.assigned or {}).items()
            held[client(entry.client_id)] = frozenset(f"{name}:{n}" for name, ns in assigned for n in ns)
    return held


def await_end(broker: EmbeddedBroker, group_id: str, last: EntryType) -> None:
    wait_until(lambda: history(broker, group_id)[-1].type is last, f"{group_id}: {last}")


def client(client_id: str | None) -> str:
    """The client id without what Kafka Streams adds for the thread."""
    return (client_id or "").split("-StreamThread-")[0]


def verbose(line: str) -> frozenset[str]:
    """The current assignment in a line of `groups describe --members --verbose`: `orders:0,1;prices:3`."""
    for word in line.replace("active ", "active_").replace("standby ", "standby_").split():
        if ":" in word:
            names = [part.partition(":") for part in word.replace("_", " ").split(";")]
            return frozenset(f"{name}:{n}" for name, _, numbers in names for n in numbers.split(","))
    return frozenset()


def ask(servers: str, command: Command, *arguments: str) -> str:
    """The output of a command about the observed groups."""
    result = invoke(command, [*arguments, "--bootstrap-servers", servers, "--prefix", PREFIX])
    assert result.exit_code == 0, result.output
    return result.output
