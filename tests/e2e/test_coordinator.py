"""The coordinator with everything real: its query on Spark, its topics on a broker, clients that ask it.

The tests share one coordinator, and each has groups of its own. It is stopped and started again in
`tests/slow/test_coordinator_restart.py`.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from checkpoints.checkpoint import Checkpoint
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.codec import DeadLetter, Reason, clock_record
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.service.status import ServicePhase
from kafka_why.local_files import FolderError
from streaming.service.coordinator import Coordinator
from streaming.service.options import Options
from streaming.service.status import read_status
from streaming.service.topics import prepare_topics
from tests.e2e.harness import (
    START_TIMEOUT_S,
    Member,
    new_layout,
    read_topic,
    stable_member,
    wait_until,
)
from tests.harness.restartable import Service, restartable

# Dead letters, the status and the folder are the query's, with a replica or without.
pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


@pytest.fixture(scope="module")
def service(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with restartable(broker, tmp_path_factory.mktemp("coordinator")) as service:
        yield service


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
    assert status.wait_for(ServicePhase.READY, timeout_s=START_TIMEOUT_S), status.current
    assert member.heartbeat(1) is ErrorCode.NONE


def test_status_file_says_what_the_coordinator_does(service: Service) -> None:
    status = read_status(service.options.folder / "status.json")
    assert (status.phase, status.alarm) == (ServicePhase.READY, None)
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
    assert status.phase is ServicePhase.STOPPED
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
