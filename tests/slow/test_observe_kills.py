"""An observer under load and its Spark are killed: no entry is lost, and none is there twice.

Afterwards an observer that nobody disturbs reads the same records and writes files, and both have to say the
same. `--examples 10` kills ten times as often.
"""

import json
import os
import random
import signal
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import chain, count, islice
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, TopicPartition
from msgspec import structs

from checkpoints.spark_logs import last_batch
from cli.processes.child import Children, family
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.history_reader import HistoryReader
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.service import ServicePhase
from kafka_why.local_files import LocalFiles
from kafka_why.why.history import HistoryUnavailable, read_folder
from streaming.service.status import read_status
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember
from tests.e2e.harness import START_TIMEOUT_S, command_of, read_topic, wait_until
from tests.harness.examples import scaled
from tests.slow.test_observe import Observing

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.one_form,
    pytest.mark.examples,
    pytest.mark.usefixtures("quick_java"),
]

KILLS = 1
"""Of each kind."""
AGREE_TIMEOUT_S = START_TIMEOUT_S
# An observer works so long at the most, once it is ready, before it is killed.
WORKS_S = 3.0
MEMBERS_MAX = 3
ACT_EACH_S = 0.2
COMMIT_EACH_S = 0.02
COMMITS_OF_A_CLIENT = 100
SPARK = "org.apache.spark"
LAST_OFFSET = 1_000_000


@pytest.mark.timeout(900 + 60 * scaled(KILLS))
def test_no_entry_is_lost_or_repeated_by_kills(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    dice = random.Random(20261126)
    committing = f"commits-{uuid.uuid4()}"
    groups = [f"{kind}-{uuid.uuid4()}" for kind in ("classic", "consumer", "both")]
    with observing_as("broken", broker, tmp_path) as broken:
        with Load(broker, topic, groups, committing) as load:
            broken.start()
            wait_until(lambda: last_committed(broken) >= 0, "the end of a batch", START_TIMEOUT_S)
            for _ in range(scaled(KILLS)):
                load.check()
                threading.Event().wait(dice.uniform(0, WORKS_S))
                broken.running.kill()
                broken.start()
                threading.Event().wait(dice.uniform(0, WORKS_S))
                kill_spark(broken)
        wait_until(lambda: last_offsets(broken, committing) == {LAST_OFFSET}, "the last commits", 120)
        found: dict[str, list[HistoryEntry]] = {}

        def agree() -> bool:
            """Return True if both have the same entries. A deletion reaches one observer first."""
            in_files = entries_in(tmp_path / "out", groups)
            if in_files:
                found.update({group_id: entries_of(broken, group_id) for group_id in groups})
            return in_files != {} and in_files == found

        with observing_as("undisturbed", broker, tmp_path, tmp_path / "out") as undisturbed:
            undisturbed.begin()
            wait_until(agree, "the same entries in files", AGREE_TIMEOUT_S)
            with closing(kafka_clients.admin(broker.client_config)) as admin:
                prefix = undisturbed.prefix
                assert not [name for name in admin.list_topics() if name.startswith(prefix)]
    for entries in found.values():
        seqs: dict[str, list[int]] = {}  # a group that was deleted begins anew, as another incarnation
        for entry in entries:
            seqs.setdefault(entry.incarnation, []).append(entry.seq)
        assert all(found == list(range(1, len(found) + 1)) for found in seqs.values())
        # Each ten minutes a broker deletes the groups that have neither members nor offsets.
        assert entries[-1].type in (EntryType.EMPTY, EntryType.GROUP_DELETED)
        assert sum(entry.type is EntryType.MEMBER_ADDED for entry in entries) > 1


@contextmanager
def observing_as(
    name: str, broker: EmbeddedBroker, folder: Path, output_dir: Path | None = None
) -> Iterator[Observing]:
    """Yield an observer with a data folder, logs and topics of its own, which is not started. It does not
    look at the brokers, because two observers look at different times.
    """
    own = folder / name
    own.mkdir()
    prefix = f"{name}-{uuid.uuid4()}"
    with Children(own) as children:
        yield Observing(broker, children, own, prefix, poll_interval_ms=0, output_dir=output_dir)


def last_committed(observing: Observing) -> int:
    """Return the last batch that is committed, -1 if there is none."""
    return last_batch(LocalFiles(observing.state), "commits")


class Load:
    """Members of groups come and go, and a client commits, on two threads. At the end all members leave, and
    `LAST_OFFSET` is committed.
    """

    def __init__(self, broker: EmbeddedBroker, topic: str, groups: list[str], committing: str) -> None:
        self._servers = broker.client_config.bootstrap_servers
        self._topic = topic
        self._groups = groups
        self._committing = committing
        self._dice = random.Random(1)
        self._members: dict[str, list[ConfluentMember]] = {group_id: [] for group_id in groups}
        self._stopping = threading.Event()
        self._threads = ThreadPoolExecutor(max_workers=2)
        self._working = [self._threads.submit(work) for work in (self._come_and_go, self._commit_often)]

    def check(self) -> None:
        """Raise what has ended a thread."""
        for work in self._working:
            if work.done():
                work.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._threads.shutdown()
        for member in chain.from_iterable(self._members.values()):
            member.close()
        self._commit([TopicPartition(self._topic, p, LAST_OFFSET) for p in range(PARTITIONS)])
        self.check()

    def _come_and_go(self) -> None:
        while not self._stopping.wait(ACT_EACH_S):
            number = self._dice.randrange(len(self._groups))
            members = self._members[self._groups[number]]
            if len(members) < MEMBERS_MAX and self._dice.random() < 0.6:
                members.append(self._new_member(number))
            elif members:
                members.pop(self._dice.randrange(len(members))).close()

    def _new_member(self, number: int) -> ConfluentMember:
        """Return a member. The first group is classic, the second of the consumer protocol, the third is
        both.
        """
        by_epochs = number == 1 or (number == 2 and self._dice.random() < 0.5)
        return ConfluentMember(
            self._servers, self._groups[number], self._topic, is_of_consumer_protocol=by_epochs, poll_ms=100
        )

    def _commit_often(self) -> None:
        offsets = count(1)
        while not self._stopping.is_set():
            some = islice(offsets, COMMITS_OF_A_CLIENT)
            self._commit([TopicPartition(self._topic, offset % PARTITIONS, offset) for offset in some])

    def _commit(self, offsets: list[TopicPartition]) -> None:
        """Commit one after the other, with a pause after each until the end."""
        settings = {"bootstrap.servers": self._servers, "group.id": self._committing}
        with closing(Consumer(settings)) as consumer:
            for offset in offsets:
                consumer.commit(offsets=[offset], asynchronous=False)
                self._stopping.wait(COMMIT_EACH_S)


def kill_spark(observing: Observing) -> None:
    """Kill the JVM, and wait until the observer runs with another one."""
    path = observing.state / "status.json"
    jvm = [pid for pid in family(observing.running.pid) if SPARK in command_of(pid)][-1]
    os.kill(jvm, signal.SIGKILL)
    wait_until(lambda: read_status(path).phase is not ServicePhase.READY, "the end of Spark")
    wait_until(lambda: read_status(path).phase is ServicePhase.READY, "another Spark", START_TIMEOUT_S)


def last_offsets(observing: Observing, committing: str) -> set[int]:
    """Return the latest offsets of the partitions on the observer's topic, empty unless all are there."""
    records = read_topic(observing.broker.client_config, observing.layout.offsets_topic)
    values = {record.key: record.value for record in records if json.loads(record.key)[0] == committing}
    found = [json.loads(value)["offset"] for value in values.values() if value is not None]
    return set(found) if len(found) == PARTITIONS else set()


def entries_of(observing: Observing, group_id: str) -> list[HistoryEntry]:
    """Return the entries that readers of the topic take: each once."""
    reader = HistoryReader(from_start=True)
    entries = [entry for entry in observing.history(group_id) if reader.is_new(entry)]
    assert reader.gaps == {}
    return [without_observer(entry) for entry in entries]


def entries_in(folder: Path, group_ids: list[str]) -> dict[str, list[HistoryEntry]]:
    """All entries of these groups in the files of an observer, of none if one has no entry yet."""
    try:
        found = {group_id: read_folder(folder, group_id).entries for group_id in group_ids}
    except HistoryUnavailable:
        return {}
    return {
        group_id: [without_observer(entry) for entry in entries if isinstance(entry, HistoryEntry)]
        for group_id, entries in found.items()
    }


def without_observer(entry: HistoryEntry) -> HistoryEntry:
    """Return an incarnation's record. The observer's id comes behind it."""
    record, _, _ = entry.incarnation.partition("@")
    return structs.replace(entry, incarnation=record)
