"""What an observer says of a damaged checkpoint and of a full disk, and that it goes on afterwards."""

import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, TopicPartition

from checkpoints.spark_logs import last_batch
from cli.processes.child import Children
from cli.processes.family import family
from embedded.broker import EmbeddedBroker
from kafka_why.contract.service.status import ServicePhase, ServiceStatus
from kafka_why.local_files import LocalFiles
from streaming.service.status import read_status
from tests.e2e.harness import START_TIMEOUT_S, wait_until
from tests.harness.run_command import no_file_grows
from tests.slow.test_observe import Observing

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


@pytest.fixture
def observing(broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Observing]:
    with Children(tmp_path) as children:
        yield Observing(broker, children, tmp_path, f"observed-{uuid.uuid4()}")


def test_damage_and_a_full_disk_are_named_and_the_observer_goes_on(observing: Observing, topic: str) -> None:
    group_id = f"commits-{uuid.uuid4()}"
    folder = observing.folder / "data" / "observer"
    commit_and_see(observing, group_id, topic, 1)
    wait_until(lambda: last_batch(LocalFiles(folder), "commits") >= 0, "the end of the batch")
    observing.running.stop()
    # The state after the last committed batch. A later changelog is of a batch that runs again.
    changelog = folder / f"spark/state/0/0/{last_batch(LocalFiles(folder), 'commits') + 1}.changelog"
    content = changelog.read_bytes()
    changelog.write_bytes(bytes(len(content)))
    observing.start()
    commit(observing.broker, group_id, topic, 2)
    reason = wait_for(folder, ServicePhase.STOPPED).reason
    assert f"the checkpoint is damaged: {changelog} does not match its checksum. Put back" in reason
    assert "stop the observer, move its folder away, and delete its topics" in reason
    assert "coordinator" not in reason
    observing.running.stop()
    changelog.write_bytes(content)
    observing.start()
    wait_for(folder, ServicePhase.READY)
    commit_and_see(observing, group_id, topic, 3)
    with no_file_grows(*family(observing.running.pid)):
        commit(observing.broker, group_id, topic, 4)
        wait_until(lambda: metric(observing, "group_coordinator_alarm 1.0"), "the alarm")
        wait_until(lambda: metric(observing, 'group_coordinator_phase{phase="restarting"} 1.0'), "the phase")
    wait_until(lambda: metric(observing, "group_coordinator_alarm 0.0"), "its end")
    commit_and_see(observing, group_id, topic, 5)


def commit(broker: EmbeddedBroker, group_id: str, topic: str, offset: int) -> None:
    settings = {"bootstrap.servers": broker.client_config.bootstrap_servers, "group.id": group_id}
    with closing(Consumer(settings)) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def commit_and_see(observing: Observing, group_id: str, topic: str, offset: int) -> None:
    """Commit an offset, and wait until the observer has written it."""
    commit(observing.broker, group_id, topic, offset)
    if observing.starts == 0:
        observing.start()
    wait_until(lambda: observing.offsets(group_id)[-1:] == [offset], f"offset {offset}", START_TIMEOUT_S)


def wait_for(folder: Path, phase: ServicePhase) -> ServiceStatus:
    wait_until(lambda: read_status(folder / "status.json").phase is phase, phase.value, START_TIMEOUT_S)
    return read_status(folder / "status.json")


def metric(observing: Observing, line: str) -> bool:
    """Whether the metrics have this line."""
    ready = re.search(r"metrics (http://\S+),", observing.running.log_path.read_text())
    assert ready is not None
    with urlopen(ready[1], timeout=10) as response:
        return line.encode() in response.read().splitlines()
