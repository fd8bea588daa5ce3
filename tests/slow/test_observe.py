"""`observe` beside a real broker: a rebalance that waits for a member while the observer is killed, commands
and messages about it, and the same group in the files of another observer.
`tests/slow/test_observed.py` judges reports on groups of each type.
"""

import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from click import Command
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer

from cli.assign import assign
from cli.groups import groups
from cli.processes.child import Child, Children
from embedded.broker import EmbeddedBroker
from kafka_why.cli.why import why
from kafka_why.connections import kafka_clients
from kafka_why.contract.history_reader import HistoryReader
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.protocols.subscriptions import decode_assignment
from kafka_why.local_files import ServiceFolder
from kafka_why.why.history import HistoryUnavailable, read_folder
from kafka_why.why.model import CauseKind
from kafka_why.why.report import analyze
from streaming.observing.service import Observer, ObserverOptions
from streaming.service.topics import TopicsError
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember, share
from tests.e2e.harness import START_TIMEOUT_S, create_topic, history_of, read_topic, wait_until
from tests.harness.commands import invoke
from tests.harness.webhook import Webhook

pytestmark = [pytest.mark.e2e, pytest.mark.one_form, pytest.mark.usefixtures("quick_java")]

Holdings = dict[str, set[int]]
"""The partitions that members have, by their client ids."""

ABORTED, COMMITTED, MISSED = 9, 5, 7
# So long a rebalance waits for a member that does not poll.
STUCK_MS = 12_000
# What is measured here and at the broker differs by less.
CLOCK_MS = 500


@dataclass
class Observing:
    """An observer of the broker, which can be started again."""

    broker: EmbeddedBroker
    children: Children
    folder: Path
    prefix: str
    starts: int = 0
    child: Child | None = None

    @property
    def layout(self) -> TopicLayout:
        return TopicLayout.observed(self.prefix, 1)

    def start(self, *options: str, data: str = "data") -> None:
        """Start it, and wait until it is ready."""
        self.starts += 1
        self.child = self.children.start(
            f"observe-{self.starts}",
            *("observe", "--bootstrap-servers", self.broker.client_config.bootstrap_servers),
            *("--data-dir", str(self.folder / data), "--batch-interval-ms", "200"),
            *(options or ("--prefix", self.prefix, "--poll-interval-ms", "1000")),
        )
        self.child.wait_for_line(lambda line: line.startswith("ready:"), START_TIMEOUT_S)

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()

    def notify(self, webhook: Webhook) -> Child:
        """Start `notify` about the observed groups."""
        child = self.children.start(
            "notify",
            *("notify", "--bootstrap-servers", self.broker.client_config.bootstrap_servers),
            *("--prefix", self.prefix, "--url", webhook.url(), "--data-dir", str(self.folder / "notify")),
        )
        child.wait_for_line(lambda line: line.startswith("ready:"), START_TIMEOUT_S)
        return child

    def history(self, group_id: str) -> list[HistoryEntry]:
        """Return the entries as a reader of the topic uses them: each once, with none missing."""
        reader, servers = HistoryReader(from_start=True), self.broker.client_config
        entries = history_of(servers, self.layout, group_id, settled=False)
        found = [entry for entry in entries if reader.is_new(entry)]
        assert reader.gaps == {}
        return found

    def offsets(self, group_id: str) -> list[int | None]:
        """Return what was written of the offset of partition 0, None for a tombstone."""
        records = read_topic(self.broker.client_config, self.layout.offsets_topic)
        values = [record.value for record in records if json.loads(record.key)[0] == group_id]
        return [None if value is None else json.loads(value)["offset"] for value in values]

    def await_holdings(self, group_id: str, holdings: Holdings) -> None:
        """Wait until the group is Stable with these partitions, or Empty without any."""
        wait_until(lambda: holdings_in(self.history(group_id))[-1:] == [holdings], f"{group_id}: {holdings}")

    def ask(self, command: Command, *arguments: str) -> str:
        """Return the output of a command about the observed groups."""
        servers = ["--bootstrap-servers", self.broker.client_config.bootstrap_servers]
        result = invoke(command, [*arguments, *servers, "--prefix", self.prefix])
        assert result.exit_code == 0, result.output
        return result.output


@pytest.fixture
def observing(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Observing]:
    with Children(tmp_path) as children:
        yield Observing(broker, children, tmp_path, f"observed-{uuid.uuid4()}")


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Webhook() as webhook:
        yield webhook


def test_observer_shows_a_running_rebalance_and_reports_its_end(
    observing: Observing, webhook: Webhook, topic: str, tmp_path: Path
) -> None:
    servers = observing.broker.client_config.bootstrap_servers
    waiting, exact = f"waiting-{uuid.uuid4()}", f"exact-{uuid.uuid4()}"
    commit_in_transactions(servers, exact, topic)  # the observer reads its topic from the beginning
    observing.start()
    # Other tests have written to the brokers' topic, too.
    wait_until(lambda: observing.offsets(exact)[-1:] == [COMMITTED], "the end of the log", START_TIMEOUT_S)
    notify = observing.notify(webhook)
    one_is_waited_for(observing, topic, waiting)
    observing.await_holdings(waiting, {})
    told = entries_without_polls(observing.history(waiting))
    another_observer_is_refused(observing)
    told_unasked(observing, webhook, notify, waiting)
    offsets = [offset for offset in observing.offsets(exact) if offset is not None]
    assert ABORTED not in offsets
    assert offsets[-1] == COMMITTED
    observing.kill()
    files = tmp_path / "files"
    prefix = str(uuid.uuid4())
    observing.start("--output-dir", str(files), "--prefix", prefix, data="of-files")
    wait_until(
        lambda: entries_without_polls(entries_in(files, waiting)) == told,
        "the same entries in files",
        START_TIMEOUT_S,
    )
    with closing(kafka_clients.admin(observing.broker.client_config)) as admin:
        assert not [name for name in admin.list_topics() if name.startswith(prefix)]


def entries_in(folder: Path, group_id: str) -> list[HistoryEntry]:
    """Return the entries of a group in an observer's files so far."""
    with suppress(HistoryUnavailable):
        return [it for it in read_folder(folder, group_id).entries if isinstance(it, HistoryEntry)]
    return []


def entries_without_polls(history: list[HistoryEntry]) -> list[dict[str, object]]:
    """Return the parts of the entries that two observers read from the same log. Only polls show the start of
    a rebalance while it lasts, and brokers delete a group without members and offsets every ten minutes.
    """
    unlike = (EntryType.PREPARING_REBALANCE, EntryType.GROUP_DELETED)
    return [
        {
            "type": entry.type,
            "record": entry.incarnation.partition("@")[0],  # the observer's id is behind it
            "generation": entry.generation,
            "member_id": entry.member_id,
            "assignments": entry.assignments,
        }
        for entry in history
        if entry.type not in unlike
    ]


def holdings_in(history: list[HistoryEntry]) -> list[Holdings]:
    """Return the members' partitions by client id, each time when the group became Stable or Empty."""
    clients: dict[str | None, str] = {}
    held: Holdings = {}
    found = []
    for entry in history:
        if entry.type is EntryType.MEMBER_ADDED:
            clients[entry.member_id] = entry.client_id or ""
        elif entry.type is EntryType.MEMBER_REMOVED:
            held.pop(clients[entry.member_id], None)
        elif entry.assignments is not None:
            held = {clients[member]: numbers_of(data) for member, data in entry.assignments.items()}
        if entry.type in (EntryType.STABLE, EntryType.EMPTY):
            found.append(dict(held))
    return found


def numbers_of(assignment: bytes) -> set[int]:
    return {partition.partition for partition in decode_assignment(assignment).partitions}


def commit_in_transactions(servers: str, group_id: str, topic: str) -> None:
    """Commit an offset in a transaction, another one in a transaction that is aborted, and one more."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group_id})
    producer = Producer({"bootstrap.servers": servers, "transactional.id": group_id})
    producer.init_transactions()
    for offset in (3, ABORTED, COMMITTED):
        producer.begin_transaction()
        partition = TopicPartition(topic, 0, offset)
        producer.send_offsets_to_transaction([partition], consumer.consumer_group_metadata())
        end = producer.abort_transaction if offset == ABORTED else producer.commit_transaction
        end()
    consumer.close()


def commit(servers: str, group_id: str, topic: str, offset: int) -> None:
    with closing(Consumer({"bootstrap.servers": servers, "group.id": group_id})) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def another_observer_is_refused(observing: Observing) -> None:
    """Check the refusal. With another folder, the observer would write everything a second time."""
    another = ObserverOptions(observing.broker.client_config, observing.folder / "other", observing.layout)
    observer = Observer(another)
    with pytest.raises(TopicsError, match=r"another observer writes .*a new folder.* --prefix"):
        observer.start()
    assert not (observing.folder / "other" / "identity.json").exists()


def told_unasked(observing: Observing, webhook: Webhook, notify: Child, group_id: str) -> None:
    """Check that each rebalance is one message, no alarm is sent, and only existing topics are read."""
    due = [(r.began_ms, r.ended_ms) for r in analyze(observing.history(group_id)).rebalances]
    assert due

    def told(got: Webhook) -> list[tuple[int, int]]:
        ours = [one for one in got.messages() if one["group"] == group_id and one["kind"] == "rebalance"]
        return [(one["began_ms"], one["ended_ms"]) for one in ours]

    webhook.wait_for(lambda got: len(told(got)) >= len(due), "all rebalances")
    assert sorted(told(webhook)) == sorted(due)
    assert "alarm" not in {one["kind"] for one in webhook.messages()}
    assert "trying again" not in notify.log_path.read_text()


def one_is_waited_for(observing: Observing, topic: str, group_id: str) -> None:
    """Let a member stop polling, and another join. The rebalance is shown with its start while it lasts, and
    afterwards with the awaited member, although the observer is killed.
    """
    servers, missed = observing.broker.client_config.bootstrap_servers, f"missed-{uuid.uuid4()}"
    limits = {"session.timeout.ms": 6_000, "max.poll.interval.ms": STUCK_MS}
    stuck = KafkaConsumer(
        topic,
        bootstrap_servers=servers,
        group_id=group_id,
        client_id="s1",
        **{name.replace(".", "_"): value for name, value in limits.items()},
    )
    polled_ms: list[int] = []

    def has_all() -> bool:
        polled_ms.append(time.time_ns() // 1_000_000)
        alone = [{"s1": set(range(PARTITIONS))}]
        return not stuck.poll(100) and holdings_in(observing.history(group_id))[-1:] == alone

    with closing(stuck):
        # kafka-python joins within its polls, so nothing slow comes between them.
        wait_until(lambda: not stuck.poll(1_000) and bool(stuck.assignment()), "s1 has joined")
        wait_until(has_all, "s1 has all")
        before_ms = time.time_ns() // 1_000_000
        s2 = ConfluentMember(servers, group_id, topic, settings={"client.id": "s2", **limits})
        with closing(s2):
            wait_until(lambda: is_rebalancing(observing.history(group_id)), "shown while it lasts")
            observing.kill()
            commit(servers, missed, topic, MISSED)
            observing.start()
            wait_until(
                lambda: observing.offsets(missed) == [MISSED],
                "a commit while nobody observed",
                START_TIMEOUT_S,
            )
            share(s2)
            observing.await_holdings(group_id, {"s2": s2.partitions()})
            describe_what_is_there(observing, group_id, topic)
    first, *others = analyze(observing.history(group_id)).rebalances
    found = next(one for one in others if one.cause.client_id == "s2")
    assert (found.cause.kind, found.cause.client_id) == (CauseKind.MEMBER_JOINED, "s2")
    assert found.began_within_ms is not None
    assert before_ms - CLOCK_MS <= found.began_ms
    assert found.waited_for == first.cause.member_ids
    assert found.ended_ms is not None
    # The member leaves so long after its last poll, and to read the history after that takes its time.
    assert found.ended_ms >= polled_ms[-1] + STUCK_MS - CLOCK_MS
    text = observing.ask(why, group_id)
    assert "before it was seen" in text
    assert re.search(r"awaited +s1 \(inferred\)", text)


def is_rebalancing(history: list[HistoryEntry]) -> bool:
    """Return True if the last entry is the start of a rebalance that a poll has seen."""
    return history[-1].type is EntryType.PREPARING_REBALANCE and history[-1].within_ms is not None


def describe_what_is_there(observing: Observing, group_id: str, topic: str) -> None:
    """Check that read commands work as for the coordinator's own groups, and that others refuse."""
    listed = observing.ask(groups, "list", "--state")
    assert (group_id, "Stable") in {tuple(line.split()) for line in listed.splitlines()}
    members = observing.ask(groups, "describe", "--members", "--verbose", group_id)
    assert "s2" in members
    assert f"{topic}:0,1,2,3" in members
    assert "range" in observing.ask(assign, "--from-group", group_id)
    servers = ["--bootstrap-servers", observing.broker.client_config.bootstrap_servers]
    refused = invoke(groups, ["delete", group_id, *servers, "--prefix", observing.prefix])
    assert refused.exit_code != 0
    assert "read only" in refused.output


def test_observer_refuses_the_topics_of_a_coordinator(broker: EmbeddedBroker, tmp_path: Path) -> None:
    layout = TopicLayout.observed(f"owned-{uuid.uuid4()}", 1)
    create_topic(broker.client_config, layout.requests_topic, 1, {})
    observer = Observer(ObserverOptions(broker.client_config, tmp_path, layout))
    with pytest.raises(TopicsError, match=f"{layout.requests_topic} exists.* --prefix"):
        observer.start()
    folder = ServiceFolder(tmp_path)
    folder.lock()  # it is free again
    folder.unlock()
