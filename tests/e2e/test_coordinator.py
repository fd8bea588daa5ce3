"""Folders and topics with which a coordinator does not start, beside a real broker. No Spark is started."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Epoch, OwnerRecord
from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.service import ServicePhase
from kafka_why.local_files import FolderError, ServiceFolder
from streaming.service.coordinator import Coordinator
from streaming.service.starts import Options
from streaming.service.status import read_status
from streaming.service.topics import prepare_topics
from tests.e2e.harness import new_layout, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


def test_folder_in_use_is_refused_and_its_status_left_alone(broker: EmbeddedBroker, tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    status.write_bytes(b"of the coordinator that runs")
    in_use = ServiceFolder(tmp_path)
    in_use.lock()
    with pytest.raises(
        FolderError, match=f"in use by the coordinator with process id {os.getpid()} on host "
    ):
        Coordinator(Options(broker.client_config, tmp_path, new_layout())).start()
    in_use.unlock()
    assert status.read_bytes() == b"of the coordinator that runs"


def test_folder_of_another_topic_is_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
    layout, other = new_layout(), new_layout()
    Checkpoint.at(tmp_path).pin(prepare_topics(broker.client_config, layout))
    with pytest.raises(FolderError) as refused:
        Coordinator(Options(broker.client_config, tmp_path, other)).start()
    changed = f"requests_topic was '{layout.requests_topic}' and is '{other.requests_topic}'"
    assert changed in str(refused.value)
    status = read_status(tmp_path / "status.json")
    assert status.phase is ServicePhase.STOPPED
    assert status.reason.startswith("the start failed: the state in")


def test_deleted_or_recreated_topic_is_refused(broker: EmbeddedBroker, tmp_path: Path) -> None:
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


def test_batch_of_other_rules_is_refused_before_any_write(broker: EmbeddedBroker, tmp_path: Path) -> None:
    layout, checkpoint = new_layout(), Checkpoint.at(tmp_path)
    written = OwnerRecord([Epoch(0, {}, [], "0.0.1")])
    checkpoint.create(prepare_topics(broker.client_config, layout), written)
    owner = checkpoint.newest_owner()
    plans = tmp_path / "spark" / "offsets"
    plans.mkdir(parents=True)
    (plans / "0").touch()
    with pytest.raises(FolderError, match=r"batch 0 was planned by version 0\.0\.1 and is not committed"):
        Coordinator(Options(broker.client_config, tmp_path, layout)).start()
    assert (checkpoint.newest_owner(), checkpoint.record()) == (owner, written)
