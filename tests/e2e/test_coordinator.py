"""The coordinator with everything real: its query on Spark, its topics on a broker, clients that ask it.

The tests share one coordinator, and each has groups of its own. Some stop it and start it again.
"""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from kafka.consumer.fetcher import ConsumerRecord

from checkpoints.checkpoint import Checkpoint
from checkpoints.files import FolderError
from checkpoints.metadata import Epoch
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from records import kafka_clients
from records.client_config import ClientConfig
from records.codec import DeadLetter, Reason, clock_record, record_of
from records.history import HistoryReader
from records.layout import TopicLayout
from records.pack import unpack
from records.partitioner import partition_of
from state.errors import ErrorCode
from state.kafka.history import EntryType
from streaming.service import supervision
from streaming.service.coordinator import Coordinator, Options
from streaming.service.status import Phase, read_status
from streaming.service.ticker import Ticker
from streaming.service.topics import prepare_topics
from tests.e2e.harness import (
    QUICK_SPARK,
    START_TIMEOUT_S,
    Member,
    history_of,
    new_layout,
    read_topic,
    snapshots_of,
    stable_member,
    starts,
    wait_until,
)

pytestmark = pytest.mark.e2e

INITIAL_DELAY_MS = 500
SETTINGS = {
    "group.initial.rebalance.delay.ms": str(INITIAL_DELAY_MS),
    "group.min.session.timeout.ms": "100",
}


@dataclass
class Service:
    """A coordinator that is stopped and started, and two clients that stay."""

    options: Options
    coordinator: Coordinator
    one: CoordinatorClient
    other: CoordinatorClient

    @property
    def client_config(self) -> ClientConfig:
        return self.options.client_config

    @property
    def layout(self) -> TopicLayout:
        return self.options.layout

    def start(self, **settings: str) -> None:
        self.options = replace(self.options, settings={**self.options.settings, **settings})
        self.coordinator = Coordinator(self.options)
        self.coordinator.start()
        status = self.coordinator.status
        assert status.wait_for(Phase.READY, timeout_s=START_TIMEOUT_S), status.current


@pytest.fixture(scope="module")
def service(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    client_config, layout = broker.client_config, new_layout()
    options = Options(
        client_config,
        tmp_path_factory.mktemp("coordinator"),
        layout,
        SETTINGS,
        ui_port=None,
        tick_interval_ms=50,
        first_request_wait_s=1.0,
        spark=QUICK_SPARK,
    )
    prepare_topics(client_config, layout)
    with (
        patient_client(client_config, layout, "one", 3) as one,
        patient_client(client_config, layout, "other", 7) as other,
    ):
        service = Service(options, Coordinator(options), one, other)
        service.start()
        yield service
        service.coordinator.stop()


@pytest.fixture(autouse=True)
def whole(service: Service) -> None:
    """Starts the coordinator again where a test has stopped its ticker."""
    ticker = service.coordinator._ticker
    if ticker is not None and not ticker._thread.is_alive():
        service.coordinator.stop()
        service.start()


def patient_client(cluster: ClientConfig, layout: TopicLayout, name: str, reply: int) -> CoordinatorClient:
    """A client that waits for as long as a coordinator may need to start."""
    timeout_ms = int(START_TIMEOUT_S * 1000)
    return CoordinatorClient(
        cluster, layout, client_id=name, reply_partition=reply, request_timeout_ms=timeout_ms
    )


def test_two_members_from_join_to_leave(service: Service) -> None:
    a, b = Member.of(service.one, "two-members"), Member.of(service.other, "two-members")
    joins = [a.join(), b.join()]
    of_a, of_b = (join.result() for join in joins)
    assert (of_a.generation_id, of_b.generation_id) == (1, 1)
    assert of_a.leader == of_b.leader
    leader, follower = (a, b) if of_a.leader == a.member_id else (b, a)
    assert {m.member_id: m.metadata for m in (*of_a.members, *of_b.members)} == {
        member.member_id: member.member_id.encode() for member in (a, b)
    }

    of_follower = follower.sync(1)
    of_leader = leader.sync(1, {leader.member_id: b"first", follower.member_id: b"second"})
    assert (of_leader.result().assignment, of_follower.result().assignment) == (b"first", b"second")
    assert (a.heartbeat(1), b.heartbeat(1)) == (ErrorCode.NONE, ErrorCode.NONE)

    assert b.leave() is ErrorCode.NONE
    assert a.heartbeat(1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert a.join().result().generation_id == 2
    assert a.sync(2, {a.member_id: b"everything"}).result().assignment == b"everything"
    assert a.leave() is ErrorCode.NONE
    assert a.heartbeat(2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_answers_are_on_the_partition_that_was_asked_for(service: Service) -> None:
    stable_member(service.one, "answers")
    packed = [(value, record) for record in all_of(service, "responses") for value in unpack(record.value)]
    answers = [msgspec.json.decode(value) | {"at": record.partition} for value, record in packed]
    of_group = [answer for answer in answers if answer["group_id"] == "answers"]
    assert [answer["type"] for answer in of_group] == ["JoinGroup", "JoinGroup", "SyncGroup"]
    assert {answer["at"] for answer in of_group} == {service.one.reply_partition}
    partition = partition_of("answers", service.layout.request_partitions)
    offsets = [record_of(answer["request"])[1:] for answer in of_group]
    assert offsets == sorted({(partition, offset) for _, offset in offsets})


def all_of(service: Service, kind: str) -> list[ConsumerRecord]:
    topics = {"responses": service.layout.responses_topic, "dead letters": service.layout.dead_letters_topic}
    return read_topic(service.client_config, topics[kind])


def test_history_has_no_gap_and_the_snapshot_agrees(service: Service) -> None:
    member = stable_member(service.one, "history")
    member.leave()
    history = history_of(service.client_config, service.layout, "history")
    assert [event.type for event in history] == [
        EntryType.GROUP_CREATED,
        EntryType.MEMBER_ID_ASSIGNED,
        EntryType.MEMBER_ADDED,
        EntryType.PREPARING_REBALANCE,
        EntryType.COMPLETING_REBALANCE,
        EntryType.STABLE,
        EntryType.MEMBER_REMOVED,
        EntryType.PREPARING_REBALANCE,
        EntryType.EMPTY,
    ]
    reader = HistoryReader(from_start=True)
    assert all(reader.is_new(event) for event in history)
    assert reader.gaps == {}

    last = history[-1]
    snapshots = snapshots_of(service.client_config, service.layout, "history")
    assert [s.seq for s in snapshots] == sorted({s.seq for s in snapshots})
    for snapshot in snapshots:
        told = history[snapshot.seq - 1]
        assert (snapshot.incarnation, snapshot.state) == (told.incarnation, told.to_state)
        assert snapshot.generation == told.generation
    assert (snapshots[-1].seq, snapshots[-1].members, last.to_state) == (last.seq, [], "Empty")


def test_silent_member_expires_by_clock_records_alone(service: Service) -> None:
    member = stable_member(service.one, "silent", session_timeout_ms=4_000)
    wait_until(lambda: state_of(service, "silent") == "Empty", "the end of the session")
    (removed,) = (
        event
        for event in history_of(service.client_config, service.layout, "silent")
        if event.type is EntryType.MEMBER_REMOVED
    )
    assert removed.member_id == member.member_id
    assert removed.cause.startswith("heartbeat deadline")
    assert removed.cause.endswith(f"at {removed.at_ms}")  # to the millisecond, whenever the batch came


def state_of(service: Service, group_id: str) -> str | None:
    """The state of a group as its latest snapshot has it."""
    snapshots = snapshots_of(service.client_config, service.layout, group_id)
    return snapshots[-1].state if snapshots else None


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"bad", b"\xff\xfe", Reason.INVALID_REQUEST),
        (
            b"bad",
            b'{"type": "Nonsense", "correlation_id": "n", "reply_partition": 1}',
            Reason.INVALID_REQUEST,
        ),
        (None, b'{"type":"Clock","time_ms":"soon"}', Reason.INVALID_REQUEST),
    ],
)
def test_record_that_is_no_request_is_told_and_stops_nobody(
    service: Service, key: bytes | None, value: bytes, reason: Reason
) -> None:
    producer = kafka_clients.producer(service.client_config)
    sent = producer.send(service.layout.requests_topic, key=key, value=value, partition=0).get(timeout=30)
    producer.close()
    record = f"{sent.topic}-{sent.partition}-{sent.offset}"
    wait_until(lambda: record in dead_letters(service), "the dead letter")
    letter = dead_letters(service)[record]
    assert (letter.reason, letter.value, letter.key) == (reason, value, key or b"")
    assert Member.of(service.one, "after-bad").member_id


def dead_letters(service: Service) -> dict[str, DeadLetter]:
    letters = [msgspec.json.decode(r.value, type=DeadLetter) for r in all_of(service, "dead letters")]
    return {letter.request: letter for letter in letters}


def test_clock_record_of_an_owner_that_made_no_claim_ends_nothing(service: Service) -> None:
    """Whoever may write requests may write that too."""
    member = stable_member(service.one, "forged-owner")
    before_ms = service.coordinator.status.current.since_ms
    producer = kafka_clients.producer(service.client_config)
    forged = clock_record(0, owner_epoch=10**14)
    producer.send(service.layout.requests_topic, value=forged, partition=0).get(timeout=30)
    producer.close()
    status = service.coordinator.status
    assert status.wait_until(lambda now: now.since_ms > before_ms, timeout_s=START_TIMEOUT_S), status.current
    assert status.wait_for(Phase.READY, timeout_s=START_TIMEOUT_S), status.current
    assert member.heartbeat(1) is ErrorCode.NONE


def test_status_file_says_what_the_coordinator_does(service: Service) -> None:
    status = read_status(service.options.folder / "status.json")
    assert (status.phase, status.alarm) == (Phase.READY, None)
    before = service.coordinator.status.current.batch_id
    wait_until(lambda: service.coordinator.status.current.batch_id > before, "another batch")


def test_folder_in_use_is_refused_and_its_status_left_alone(service: Service) -> None:
    path = service.options.folder / "status.json"
    before = path.read_bytes()
    owner = f"in use by the coordinator with process id {os.getpid()} on host "
    with pytest.raises(FolderError, match=owner):
        Coordinator(service.options).start()
    assert path.read_bytes() == before


def test_folder_of_another_topic_is_refused(service: Service, tmp_path: Path) -> None:
    shutil.copy(service.options.folder / "identity.json", tmp_path)
    other = new_layout()
    with pytest.raises(FolderError) as refused:
        Coordinator(Options(service.client_config, tmp_path, other)).start()
    changed = f"requests_topic was '{service.layout.requests_topic}' and is '{other.requests_topic}'"
    assert changed in str(refused.value)
    status = read_status(tmp_path / "status.json")
    assert status.phase is Phase.STOPPED
    assert status.reason.startswith("the start failed: the state in")


def test_topic_that_was_made_anew_is_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    layout = new_layout()
    before = prepare_topics(broker.client_config, layout)
    Checkpoint.at(tmp_path).pin(before)
    admin = kafka_clients.admin(broker.client_config)
    admin.delete_topics([layout.requests_topic])
    wait_until(lambda: layout.requests_topic not in admin.list_topics(), "the end of the topic")
    admin.close()
    with pytest.raises(FolderError, match=f"requests_topic_id was '{before.requests_topic_id}' and is"):
        Coordinator(Options(broker.client_config, tmp_path, layout)).start()


def test_stop_and_start_keep_groups_and_answer_what_was_asked_meanwhile(service: Service) -> None:
    member = stable_member(service.one, "kept", session_timeout_ms=60_000)
    before = snapshots_of(service.client_config, service.layout, "kept")[-1]
    epochs = epochs_of(service)
    threads = {thread.name for thread in threading.enumerate()}
    service.coordinator.stop()
    assert read_status(service.options.folder / "status.json").phase is Phase.STOPPED
    assert not {"ticker", "supervisor"} & ({t.name for t in threading.enumerate()} - threads)

    asked = service.one.heartbeat("kept", generation_id=1, member_id=member.member_id)
    service.start(**{"group.max.size": "2"})
    assert asked.result().error_code is ErrorCode.NONE
    after = snapshots_of(service.client_config, service.layout, "kept")[-1]
    assert (after.incarnation, after.generation, after.members) == (
        before.incarnation,
        before.generation,
        before.members,
    )
    assert member.leave() is ErrorCode.NONE
    check_epochs(service, epochs)
    # The setting rules: a third member is one too many.
    full = [Member.of(service.one, "full") for _ in range(2)]
    joins = [one.join() for one in full]
    assert {join.result().error_code for join in joins} == {ErrorCode.NONE}
    refused = Member(service.one, "full", "").join().result()
    assert refused.error_code is ErrorCode.GROUP_MAX_SIZE_REACHED


def epochs_of(service: Service) -> list[Epoch]:
    return Checkpoint.at(service.options.folder).record().epochs


def check_epochs(service: Service, before: list[Epoch]) -> None:
    """A new configuration has begun behind the others, and was announced."""
    (*old, new) = epochs_of(service)
    assert old == before
    assert new.from_batch > old[-1].from_batch
    assert new.settings == {**old[-1].settings, "group.max.size": 2}
    *_, last, this = starts(service.client_config, service.layout)
    assert [(s.from_batch, s.settings) for s in (last, this)] == [
        (old[-1].from_batch, old[-1].settings),
        (new.from_batch, new.settings),
    ]


def test_nobody_expires_while_no_coordinator_runs(service: Service) -> None:
    """It is silent for longer than its session, meanwhile, and expires when it is so once more."""
    session_ms = 3_000
    member = stable_member(service.one, "silent-meanwhile", session_timeout_ms=session_ms)
    service.coordinator.stop()
    stopped_s = time.monotonic()
    wait_until(
        lambda: time.monotonic() > stopped_s + session_ms / 1000, "the end of its session by the clock"
    )
    # No gateway is in this process, so the outage ends with the first request.
    service.coordinator = Coordinator(replace(service.options, first_request_wait_s=START_TIMEOUT_S))
    service.coordinator.start()
    status = service.coordinator.status
    waits = "sessions begin with the first request"
    assert status.wait_until(lambda now: now.reason.startswith(waits), START_TIMEOUT_S), status.current
    asked_ms = time.time() * 1000
    asked = service.one.heartbeat("silent-meanwhile", generation_id=1, member_id=member.member_id)
    assert asked.result().error_code is ErrorCode.NONE
    until_ms = Checkpoint.at(service.options.folder).record().outages[-1].outage.until_ms
    assert until_ms >= asked_ms
    wait_until(lambda: state_of(service, "silent-meanwhile") == "Empty", "its end")
    history = history_of(service.client_config, service.layout, "silent-meanwhile")
    times = {event.type: event.at_ms for event in history}
    assert times[EntryType.TAKEN_OVER] == until_ms
    assert times[EntryType.MEMBER_REMOVED] == until_ms + session_ms


def test_without_clock_records_nobody_expires(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "TICKER_ALARM_AGE_S", 1.0)
    ticker = service.coordinator._ticker
    assert ticker is not None
    ticker.stop()
    stood_at_ms = ticker.attested_ms
    status = service.coordinator.status
    assert status.wait_until(lambda now: now.alarm is not None, timeout_s=30)
    told = read_status(service.options.folder / "status.json")
    assert "no clock record was acknowledged" in str(told.alarm)
    # Long after a member's time by any clock it is still there, while other groups are served.
    member = Member.of(service.one, "no-clock", session_timeout_ms=500)
    asked_s = ticker.age_s()
    wait_until(lambda: ticker.age_s() > asked_s + 2, "the member's time")
    Member.of(service.other, "served-meanwhile")
    assert pending_of(service, "no-clock") == [member.member_id]

    again = Ticker(service.client_config, service.layout.requests_topic, service.layout.request_partitions)
    again.start()
    try:
        wait_until(lambda: pending_of(service, "no-clock") == [], "the member's end")
    finally:
        again.stop()
    history = history_of(service.client_config, service.layout, "no-clock")
    (removed,) = (event for event in history if event.type is EntryType.PENDING_MEMBER_REMOVED)
    assert stood_at_ms < removed.at_ms < again.attested_ms


def pending_of(service: Service, group_id: str) -> list[str]:
    return snapshots_of(service.client_config, service.layout, group_id)[-1].pending_members
