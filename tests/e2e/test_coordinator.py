"""The coordinator with everything real: its query on Spark, its topics on a broker, clients that ask it.

The tests share one coordinator, and each has groups of its own. It is stopped and started again in
`tests/slow/test_coordinator_restart.py`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from checkpoints.checkpoint import Checkpoint
from checkpoints.files import FolderError
from connections import kafka_clients
from embedded.broker import EmbeddedBroker
from records.codec import DeadLetter, Reason, clock_record, record_of
from records.history import HistoryReader
from records.pack import unpack
from records.partitioner import partition_of
from state.errors import ErrorCode
from state.kafka.history import EntryType, HistoryEntry
from streaming.service.coordinator import Coordinator
from streaming.service.options import Options
from streaming.service.status import Phase, read_status
from streaming.service.topics import prepare_topics
from tests.e2e.harness import (
    START_TIMEOUT_S,
    Member,
    history_of,
    new_layout,
    querys_answers,
    read_topic,
    settle,
    snapshots_of,
    stable_member,
    wait_until,
)
from tests.harness.restartable import Service, restartable

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def service(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with restartable(broker, tmp_path_factory.mktemp("coordinator")) as service:
        yield service


def test_two_members_from_join_to_leave(service: Service) -> None:
    a, b = Member.of(service.one, "two-members"), Member.of(service.other, "two-members")
    # One after the other: a pause between two joins may be longer than the initial delay.
    assert a.join().result().generation_id == 1
    joins = [b.join()]
    wait_until(lambda: a.heartbeat(1) is ErrorCode.REBALANCE_IN_PROGRESS, "the other's join")
    joins.append(a.join())
    of_b, of_a = (join.result() for join in joins)
    assert (of_a.generation_id, of_b.generation_id) == (2, 2)
    assert of_a.leader == of_b.leader
    leader, follower = (a, b) if of_a.leader == a.member_id else (b, a)
    assert {m.member_id: m.metadata for m in (*of_a.members, *of_b.members)} == {
        member.member_id: member.member_id.encode() for member in (a, b)
    }

    of_follower = follower.sync(2)
    of_leader = leader.sync(2, {leader.member_id: b"first", follower.member_id: b"second"})
    assert (of_leader.result().assignment, of_follower.result().assignment) == (b"first", b"second")
    assert (a.heartbeat(2), b.heartbeat(2)) == (ErrorCode.NONE, ErrorCode.NONE)

    assert b.leave() is ErrorCode.NONE
    assert a.heartbeat(2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert a.join().result().generation_id == 3
    assert a.sync(3, {a.member_id: b"everything"}).result().assignment == b"everything"
    assert a.leave() is ErrorCode.NONE
    assert a.heartbeat(3) is ErrorCode.UNKNOWN_MEMBER_ID


def test_answers_are_on_the_partition_that_was_asked_for(service: Service) -> None:
    stable_member(service.one, "answers")
    settle(service.client_config, service.layout)
    read = querys_answers(service.client_config, service.layout)
    packed = [(value, record) for record in read for value in unpack(record.value)]
    answers = [msgspec.json.decode(value) | {"at": record.partition} for value, record in packed]
    of_group = [answer for answer in answers if answer["group_id"] == "answers"]
    assert [answer["type"] for answer in of_group] == ["JoinGroup", "JoinGroup", "SyncGroup"]
    assert {answer["at"] for answer in of_group} == {service.one.reply_partition}
    partition = partition_of("answers", service.layout.request_partitions)
    offsets = [record_of(answer["request"])[1:] for answer in of_group]
    assert offsets == sorted({(partition, offset) for _, offset in offsets})


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
    # A member has its id for a whole session before it joins, and the short session begins with the join.
    member = replace(Member.of(service.one, "silent"), session_timeout_ms=4_000)
    assert member.join().result().generation_id == 1

    def removals() -> list[HistoryEntry]:
        history = history_of(service.client_config, service.layout, "silent", settled=False)
        return [event for event in history if event.type is EntryType.MEMBER_REMOVED]

    # The state alone would not show it: before the join is on the topic, the group is empty, too.
    wait_until(lambda: bool(removals()), "the end of the session")
    (removed,) = removals()
    assert removed.member_id == member.member_id
    assert removed.cause.startswith("heartbeat deadline")
    assert removed.cause.endswith(f"at {removed.at_ms}")  # to the millisecond, whenever the batch came


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
    letters = [
        msgspec.json.decode(r.value, type=DeadLetter)
        for r in read_topic(service.client_config, service.layout.dead_letters_topic)
    ]
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


def test_topic_that_is_gone_or_was_made_anew_is_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    layout = new_layout()
    before = prepare_topics(broker.client_config, layout)
    Checkpoint.at(tmp_path).pin(before)
    with closing(kafka_clients.admin(broker.client_config)) as admin:
        admin.delete_topics([layout.requests_topic])
        wait_until(lambda: layout.requests_topic not in admin.list_topics(), "the end of the topic")
        with pytest.raises(FolderError, match=f"the topic {layout.requests_topic} does not exist any more"):
            Coordinator(Options(broker.client_config, tmp_path, layout)).start()
        assert layout.requests_topic not in admin.list_topics()
    prepare_topics(broker.client_config, layout)
    with pytest.raises(FolderError, match=f"requests_topic_id was '{before.requests_topic_id}' and is"):
        Coordinator(Options(broker.client_config, tmp_path, layout)).start()
