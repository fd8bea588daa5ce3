"""An observer is killed at random times under load: no entry is lost, and none is there twice.

Afterwards an observer that nobody disturbs reads the same records, and both have to say the same. `--examples
10` kills ten times as often.
"""

import json
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, TopicPartition
from msgspec import structs

from cli.processes.child import Children
from cli.processes.family import family
from embedded.broker import EmbeddedBroker
from kafka_why.contract.history_reader import HistoryReader
from kafka_why.contract.kafka.history import EntryType, HistoryEntry
from kafka_why.contract.service.status import ServicePhase
from streaming.service.status import read_status
from tests.e2e.gateway_clients import PARTITIONS, ConfluentMember
from tests.e2e.harness import START_TIMEOUT_S, command_of, read_topic, wait_until
from tests.harness.examples import scaled
from tests.slow.test_observe import Observing

pytestmark = [pytest.mark.e2e, pytest.mark.one_form, pytest.mark.examples]

KILLS = 2
AGREE_TIMEOUT_S = 60.0
# An observer works so long at the most, once it is ready, before it is killed.
WORKS_S = 3.0
MEMBERS_MAX = 3
ACT_EACH_S = 0.2
COMMITS_OF_A_CLIENT = 1_000
SPARK = "org.apache.spark"
LAST_OFFSET = 1_000_000


@dataclass(frozen=True)
class Reports:
    """What an observer's topics say of some groups: each entry once, and the latest of the rest."""

    entries: dict[str, list[HistoryEntry]]
    views: dict[str, Any]
    offsets: dict[str, Any]


@pytest.mark.timeout(900 + 60 * scaled(KILLS))
def test_no_kill_loses_or_repeats_an_entry(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> None:
    dice = random.Random(20261126)
    committing = f"commits-{uuid.uuid4()}"
    groups = [f"{kind}-{uuid.uuid4()}" for kind in ("classic", "consumer", "both")]
    with observing_as("killed", broker, tmp_path) as killed:
        with Load(broker, topic, groups, committing) as load:
            killed.start()
            for _ in range(scaled(KILLS)):
                load.check()
                threading.Event().wait(dice.uniform(0, WORKS_S))
                if dice.random() < 0.5:
                    killed.kill()
                    killed.start()
                else:
                    kill_spark(killed)
        with observing_as("undisturbed", broker, tmp_path) as undisturbed:
            undisturbed.start()
            for observing in (undisturbed, killed):
                wait_until(partial(has_read_all, observing, committing), "the last commits", 120)
            told, of_killed = reports_of_both(undisturbed, killed, [*groups, committing])
    assert of_killed == told
    for group_id in groups:
        entries = told.entries[group_id]
        seqs: dict[str, list[int]] = {}  # a group that was deleted begins anew, as another incarnation
        for entry in entries:
            seqs.setdefault(entry.incarnation, []).append(entry.seq)
        assert all(found == list(range(1, len(found) + 1)) for found in seqs.values())
        # Each ten minutes a broker deletes the groups that have neither members nor offsets.
        assert entries[-1].type in (EntryType.EMPTY, EntryType.GROUP_DELETED)
        assert sum(entry.type is EntryType.MEMBER_ADDED for entry in entries) > 1
    assert len([key for key in told.offsets if json.loads(key)[0] == committing]) == PARTITIONS


@contextmanager
def observing_as(name: str, broker: EmbeddedBroker, folder: Path) -> Iterator[Observing]:
    """An observer with a data folder, logs and topics of its own, which is not started. It does not look at
    the brokers, because two observers look at different times.
    """
    own = folder / name
    own.mkdir()
    with Children(own) as children:
        yield Observing(broker, children, own, f"{name}-{uuid.uuid4()}", poll_interval_ms=0)


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
        """The first group is a classic one, the second one is of the consumer protocol, the third is both."""
        by_epochs = number == 1 or (number == 2 and self._dice.random() < 0.5)
        return ConfluentMember(
            self._servers,
            self._groups[number],
            self._topic,
            is_of_consumer_protocol=by_epochs,
            poll_ms=100,
        )

    def _commit_often(self) -> None:
        offsets = count(1)
        while not self._stopping.is_set():
            some = islice(offsets, COMMITS_OF_A_CLIENT)
            self._commit([TopicPartition(self._topic, offset % PARTITIONS, offset) for offset in some])

    def _commit(self, offsets: list[TopicPartition]) -> None:
        """Commit one after the other."""
        settings = {"bootstrap.servers": self._servers, "group.id": self._committing}
        with closing(Consumer(settings)) as consumer:
            for offset in offsets:
                consumer.commit(offsets=[offset], asynchronous=False)


def kill_spark(observing: Observing) -> None:
    """Kill the JVM, and wait until the observer runs with another one."""
    path = observing.folder / "data" / "observer" / "status.json"
    jvm = [pid for pid in family(observing.running.pid) if SPARK in command_of(pid)][-1]
    os.kill(jvm, signal.SIGKILL)
    wait_until(lambda: read_status(path).phase is not ServicePhase.READY, "the end of Spark")
    wait_until(lambda: read_status(path).phase is ServicePhase.READY, "another Spark", START_TIMEOUT_S)


def has_read_all(observing: Observing, committing: str) -> bool:
    """Whether the last commits are on the observer's topic."""
    offsets = reports_of(observing, [committing]).offsets
    return [offset["offset"] for offset in offsets.values()] == [LAST_OFFSET] * PARTITIONS


def reports_of_both(one: Observing, other: Observing, groups: list[str]) -> tuple[Reports, Reports]:
    """The reports of both, as soon as they agree. A broker may delete groups after the last commits (each ten
    minutes), which one observer reads before the other.
    """
    give_up_s = time.monotonic() + AGREE_TIMEOUT_S
    while True:
        both = reports_of(one, groups), reports_of(other, groups)
        if both[0] == both[1] or time.monotonic() > give_up_s:
            return both


def reports_of(observing: Observing, groups: list[str]) -> Reports:
    """The reports, without the observer's id, and without what Kafka's clients would not read of them."""
    servers, layout = observing.broker.client_config, observing.layout
    reader = HistoryReader(from_start=True)
    entries: dict[str, list[HistoryEntry]] = {}
    for group_id in groups:
        entries[group_id] = [
            structs.replace(entry, incarnation=without_observer(entry.incarnation))
            for entry in observing.history(group_id)
            if reader.is_new(entry)
        ]
    assert reader.gaps == {}
    views = {record.key.decode(): record.value for record in read_topic(servers, layout.groups_topic)}
    offsets = {record.key.decode(): record.value for record in read_topic(servers, layout.offsets_topic)}
    return Reports(
        entries,
        {key: decoded(value) for key, value in views.items() if key in groups},
        {key: decoded(value) for key, value in offsets.items() if json.loads(key)[0] in groups},
    )


def decoded(value: bytes | None) -> Any:
    """Without the time of a view, which is that of the last record of the group in the batch."""
    if value is None:
        return None
    content = json.loads(value)
    content.pop("at_ms", None)
    return content | {"incarnation": without_observer(content["incarnation"])}


def without_observer(incarnation: str) -> str:
    """An incarnation's record. The observer's id comes behind it."""
    record, _, _ = incarnation.partition("@")
    return record
