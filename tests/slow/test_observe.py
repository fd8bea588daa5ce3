"""`observe` beside a real broker: consumers join and leave on the broker's own coordinator, and the reports
say what happened.
"""

import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
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
from kafka_why.contract.history_reader import HistoryReader
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.protocols.subscriptions import decode_assignment
from kafka_why.service_folder import Folder
from kafka_why.why.model import CauseKind, RebalanceOutcome
from kafka_why.why.report import course_of, report_of
from streaming.observing.query import ObserverOptions
from streaming.observing.service import Observer
from streaming.service.topics import TopicsError
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember, PythonMember, share
from tests.e2e.harness import START_TIMEOUT_S, create_topic, history_of, read_topic, wait_until
from tests.harness.commands import invoke
from tests.harness.webhook import Webhook

pytestmark = [pytest.mark.e2e, pytest.mark.one_form, pytest.mark.usefixtures("quick_java")]

Holdings = dict[str, set[int]]
"""The partitions that members have, by their client ids."""

ABORTED, COMMITTED = 9, 5
# So long a rebalance waits for a member that does not poll.
STUCK_MS = 12_000
# What is measured here and at the broker differs by less.
CLOCK_MS = 500
JOINED, GONE = CauseKind.MEMBER_JOINED, CauseKind.MEMBER_GONE


@dataclass
class Observing:
    """An observer of the broker, which can be started again. With `output_dir` it writes files there."""

    broker: EmbeddedBroker
    children: Children
    folder: Path
    prefix: str
    poll_interval_ms: int = 1_000
    output_dir: Path | None = None
    starts: int = 0
    child: Child | None = None

    @property
    def layout(self) -> TopicLayout:
        return TopicLayout.observed(self.prefix, 1)

    @property
    def state(self) -> Path:
        """The folder with its checkpoint and its status."""
        return self.folder / "data" / "observer"

    def start(self) -> None:
        self.begin()
        self.running.wait_for_line(lambda line: line.startswith("ready:"), START_TIMEOUT_S)

    def begin(self) -> None:
        """Start it, and do not wait until it is ready."""
        self.starts += 1
        to_files = () if self.output_dir is None else ("--output-dir", str(self.output_dir))
        self.child = self.children.start(
            f"observe-{self.starts}",
            "observe",
            "--bootstrap-servers",
            self.broker.client_config.bootstrap_servers,
            "--data-dir",
            str(self.folder / "data"),
            "--prefix",
            self.prefix,
            "--batch-interval-ms",
            "200",
            "--poll-interval-ms",
            str(self.poll_interval_ms),
            *to_files,
        )

    @property
    def running(self) -> Child:
        """Its process."""
        assert self.child is not None
        return self.child

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
        return history_of(self.broker.client_config, self.layout, group_id, settled=False)

    def offsets(self, group_id: str) -> list[int | None]:
        """What was written of the offset of partition 0, None for a tombstone."""
        records = read_topic(self.broker.client_config, self.layout.offsets_topic)
        values = [record.value for record in records if json.loads(record.key)[0] == group_id]
        return [None if value is None else json.loads(value)["offset"] for value in values]

    def await_holdings(self, group_id: str, holdings: Holdings) -> None:
        """Wait until the group is Stable with these partitions, or Empty without any."""
        wait_until(lambda: holdings_in(self.history(group_id))[-1:] == [holdings], f"{group_id}: {holdings}")

    def ask(self, command: Command, *arguments: str) -> str:
        """The output of a command about the observed groups."""
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


def test_the_reports_say_what_happened(
    observing: Observing, webhook: Webhook, broker: EmbeddedBroker, topic: str
) -> None:
    servers = broker.client_config.bootstrap_servers
    classic, epochs, exact = (f"{kind}-{uuid.uuid4()}" for kind in ("classic", "epochs", "exact"))
    commit_in_transactions(servers, exact, topic)
    c1 = PythonMember(servers, classic, topic, settings={"client_id": "c1"})
    with closing(c1):
        before = shared(c1=c1)  # the observer reads the topic from its beginning
        observing.start()
        wait_until(lambda: observing.history(classic) != [], "the first batch", START_TIMEOUT_S)
        notify, since_ms = observing.notify(webhook), time.time_ns() // 1_000_000
        k1 = epochs_member(servers, epochs, topic, "k1")
        with closing(k1):
            alone = shared(k1=k1)
            observing.await_holdings(epochs, alone)
            r1 = ConfluentMember(servers, classic, topic, settings={"client.id": "r1"})
            k2 = epochs_member(servers, epochs, topic, "k2")
            with closing(r1), closing(k2):
                both, two = shared(c1=c1, r1=r1), shared(k1=k1, k2=k2)
                observing.await_holdings(classic, both)
                observing.await_holdings(epochs, two)
            after, again = shared(c1=c1), shared(k1=k1)
            observing.await_holdings(classic, after)
            observing.await_holdings(epochs, again)
            describe_what_is_there(observing, classic, epochs, topic)
            one_is_waited_for(observing, topic)
    observing.await_holdings(classic, {})
    observing.await_holdings(epochs, {})
    told_of(observing, classic, [(JOINED, "c1"), (JOINED, "r1"), (GONE, "r1"), (GONE, "c1")])
    told_of(observing, epochs, [(JOINED, "k1"), (JOINED, "k2"), (GONE, "k2"), (GONE, "k1")])
    assert_in_order([before, both, after, {}], holdings_in(observing.history(classic)))
    assert_in_order([alone, two, again, {}], holdings_in(observing.history(epochs)))
    another_observer_is_refused(observing)
    told_unasked(observing, webhook, notify, since_ms, {classic, epochs})
    offsets = [offset for offset in observing.offsets(exact) if offset is not None]
    assert ABORTED not in offsets
    assert offsets[-1] == COMMITTED


def epochs_member(servers: str, group_id: str, topic: str, client_id: str) -> ConfluentMember:
    """A member by the consumer protocol."""
    settings = {"client.id": client_id}
    return ConfluentMember(servers, group_id, topic, is_of_consumer_protocol=True, settings=settings)


def shared(**members: PythonMember | ConfluentMember) -> Holdings:
    """Wait until the members share the topic. Returns what each has, by its client id."""
    share(*members.values())
    return {name: member.partitions() for name, member in members.items()}


def holdings_in(history: list[HistoryEntry]) -> list[Holdings]:
    """What the members had, by client id, each time when the group became Stable or Empty."""
    clients: dict[str | None, str] = {}
    held: Holdings = {}
    found = []
    for entry in history:
        if entry.type is EntryType.MEMBER_ADDED:
            clients[entry.member_id] = entry.client_id or ""
        elif entry.type is EntryType.MEMBER_REMOVED:
            held.pop(clients[entry.member_id], None)
        elif entry.assigned is not None:
            held[clients[entry.member_id]] = {n for numbers in entry.assigned.values() for n in numbers}
        elif entry.assignments is not None:
            held = {clients[member]: numbers_of(data) for member, data in entry.assignments.items()}
        if entry.type in (EntryType.STABLE, EntryType.EMPTY):
            found.append(dict(held))
    return found


def numbers_of(assignment: bytes) -> set[int]:
    return {partition.partition for partition in decode_assignment(assignment).partitions}


def assert_in_order(expected: list[Holdings], found: list[Holdings]) -> None:
    """All that was seen at the clients is in the history, in order. Clients may have joined again between."""
    rest = iter(found)
    assert all(any(held == one for held in rest) for one in expected), (expected, found)


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


def told_of(observing: Observing, group_id: str, happened: list[tuple[CauseKind, str]]) -> None:
    """The report has each rebalance once, with its cause and its client."""
    history = observing.history(group_id)
    reader = HistoryReader(from_start=True)
    entries = [entry for entry in history if reader.is_new(entry)]
    assert reader.gaps == {}
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    found = course_of(history).rebalances
    # kafka-python's consumer may join once more than needed.
    told = [r for r in found if r.cause.kind is not CauseKind.JOINED_AGAIN]
    assert [(r.cause.kind, r.cause.client_id) for r in told] == happened
    assert {r.outcome for r in found[:-1]} == {RebalanceOutcome.STABLE}
    assert found[-1].outcome is RebalanceOutcome.EMPTY
    report = report_of(group_id, course_of(history), now_ms=entries[-1].at_ms)
    assert [note for note in report.notes if "cluster's own coordinator" not in note] == []
    text = observing.ask(why, group_id)
    assert "left or expired" in text
    assert "session timeout" not in text


def another_observer_is_refused(observing: Observing) -> None:
    """With another folder it would write everything once more."""
    another = ObserverOptions(observing.broker.client_config, observing.folder / "other", observing.layout)
    observer = Observer(another)
    with pytest.raises(TopicsError, match=r"another observer writes .*a new folder.* --prefix"):
        observer.start()
    assert not (observing.folder / "other" / "identity.json").exists()


def told_unasked(
    observing: Observing, webhook: Webhook, notify: Child, since_ms: int, group_ids: set[str]
) -> None:
    """Each rebalance since `notify` began is one message. The observer may have written earlier ones before.
    No alarm is sent, and only topics that are there are read.
    """
    happened = {
        (group_id, r.began_ms, r.ended_ms)
        for group_id in group_ids
        for r in course_of(observing.history(group_id)).rebalances
    }
    due = {
        (group_id, began_ms, ended_ms)
        for group_id, began_ms, ended_ms in happened
        if ended_ms is None or ended_ms > since_ms
    }
    assert due

    def told(got: Webhook) -> list[tuple[str, int, int]]:
        ours = [one for one in got.messages() if one["group"] in group_ids and one["kind"] == "rebalance"]
        return [(one["group"], one["began_ms"], one["ended_ms"]) for one in ours]

    webhook.wait_for(lambda got: due <= set(told(got)), "all rebalances")
    assert set(told(webhook)) <= happened
    assert len(told(webhook)) == len(set(told(webhook)))
    assert "alarm" not in {one["kind"] for one in webhook.messages()}
    assert "trying again" not in notify.log_path.read_text()


def one_is_waited_for(observing: Observing, topic: str) -> None:
    """A member stops to poll, and another one joins: the rebalance is shown while it lasts, with its
    beginning, and afterwards with the member that the others waited for.
    """
    servers, group_id = observing.broker.client_config.bootstrap_servers, f"waiting-{uuid.uuid4()}"
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
        wait_until(has_all, "s1 has all")
        before_ms = time.time_ns() // 1_000_000
        s2 = ConfluentMember(servers, group_id, topic, settings={"client.id": "s2", **limits})
        with closing(s2):
            wait_until(lambda: is_rebalancing(observing.history(group_id)), "shown while it lasts")
            observing.await_holdings(group_id, shared(s2=s2))
    first, *others = course_of(observing.history(group_id)).rebalances
    found = next(one for one in others if one.cause.client_id == "s2")
    assert (found.cause.kind, found.cause.client_id) == (JOINED, "s2")
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
    """Whether the last entry is the beginning of a rebalance that was seen."""
    return history[-1].type is EntryType.PREPARING_REBALANCE and history[-1].within_ms is not None


def describe_what_is_there(observing: Observing, classic: str, epochs: str, topic: str) -> None:
    """The commands that read work as for the coordinator's own groups. Those that change a group refuse."""
    listed = observing.ask(groups, "list", "--state")
    assert {tuple(line.split()) for line in listed.splitlines()} >= {(classic, "Stable"), (epochs, "Stable")}
    members = observing.ask(groups, "describe", "--members", "--verbose", classic, epochs)
    assert "c1" in members
    assert "k1" in members
    assert f"{topic}:0,1,2,3" in members
    assert "range" in observing.ask(assign, "--from-group", classic)
    servers = ["--bootstrap-servers", observing.broker.client_config.bootstrap_servers]
    refused = invoke(groups, ["delete", classic, *servers, "--prefix", observing.prefix])
    assert refused.exit_code != 0
    assert "read only" in refused.output


def test_the_topics_of_a_coordinator_are_not_an_observers(broker: EmbeddedBroker, tmp_path: Path) -> None:
    layout = TopicLayout.observed(f"owned-{uuid.uuid4()}", 1)
    create_topic(broker.client_config, layout.requests_topic, 1, {})
    observer = Observer(ObserverOptions(broker.client_config, tmp_path, layout))
    with pytest.raises(TopicsError, match=f"{layout.requests_topic} exists.* --prefix"):
        observer.start()
    folder = Folder(tmp_path)
    folder.lock()  # it is free again
    folder.unlock()
