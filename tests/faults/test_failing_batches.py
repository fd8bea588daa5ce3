"""What happens when a batch fails again and again: the damage, or the record at fault, is named."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from checkpoints.spark_logs import last_batch
from embedded.broker import EmbeddedBroker
from kafka_why.contract.codec import DeadLetter, Reason, record_of
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.service.status import ServicePhase, ServiceStatus
from kafka_why.local_files import FolderError, LocalFiles
from kafka_why.partitioner import partition_of
from streaming.service import coordinator as coordinator_module
from streaming.service.coordinator import Coordinator
from streaming.service.options import Options
from streaming.service.status import read_status
from streaming.service.topics import prepare_topics
from tests.e2e.harness import (
    START_TIMEOUT_S,
    Member,
    coordinating,
    new_layout,
    read_topic,
    stable_member,
)
from tests.faults.faults import POISON, RUINED_GROUP, UNKNOWN_VERSION, FaultyOperator, poisoned_step
from tests.faults.test_supervision import client_of, options_for

pytestmark = pytest.mark.e2e


def test_a_damaged_checkpoint_is_named_and_one_that_lost_batches_is_refused(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    options = options_for(broker, tmp_path, new_layout())
    with coordinating(options) as coordinator, client_of(options) as client:
        stable_member(client, "kept", session_timeout_ms=900_000)
        assert coordinator.status.wait_until(lambda status: status.batch_id > 3, timeout_s=60)
    answered_twice = pytest.raises(FolderError, match="would be handled a second time")
    with moved_away(tmp_path / "spark" / "offsets", tmp_path / "spark" / "commits"), answered_twice:
        Coordinator(options).start()

    # The state after the last committed batch. A later changelog belongs to a batch that runs again, so it is
    # not read. A snapshot would make the changelogs needless.
    store = tmp_path / "spark/state/0/0"
    changelog = store / f"{last_batch(LocalFiles(tmp_path), 'commits') + 1}.changelog"
    assert not list(store.glob("*.zip"))
    changelog.write_bytes(bytes(changelog.stat().st_size))
    with Coordinator(options) as coordinator:
        assert coordinator.status.wait_for(ServicePhase.STOPPED, timeout_s=START_TIMEOUT_S)
        failure = coordinator.status.current.reason
        assert f"the checkpoint is damaged: {changelog} does not match its checksum. " in failure
        assert not coordinator.replica().is_answering


@contextmanager
def moved_away(*logs: Path) -> Iterator[None]:
    """Without the two newest files of each of Spark's logs, as after a restore of some files."""
    newest = [p for log in logs for p in sorted(log.glob("[0-9]*"), key=lambda it: int(it.name))[-2:]]
    for path in newest:
        path.rename(path.with_suffix(".away"))
    yield
    for path in newest:
        path.with_suffix(".away").rename(path)


def test_record_at_fault_is_named_and_can_be_skipped(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The step of the query alone is at fault. A replica would answer what the query cannot.
    options = replace(options_for(broker, tmp_path, new_layout()), replica=False)
    prepare_topics(options.client_config, options.layout)
    with client_of(options) as client, client_of(options, POISON) as poison:
        with monkeypatch.context() as patch:
            patch.setattr(coordinator_module, "Operator", partial(FaultyOperator, step=poisoned_step))
            with coordinating(options) as coordinator:
                client.heartbeat(RUINED_GROUP, generation_id=1, member_id="m")
                stable_member(client, "healthy")
                poison.heartbeat("poisoned", generation_id=1, member_id="m")
                partition = partition_of("poisoned", options.layout.request_partitions)
                record = f"{options.layout.requests_topic}-{partition}-"
                failing = wait_for_failing(coordinator)
                waiting = Member(client, "behind", "").join()
        at_fault = check_failing(failing, record)

        with coordinating(replace(options, skip=(at_fault,))) as coordinator:
            assert waiting.result().error_code is ErrorCode.MEMBER_ID_REQUIRED
            assert reasons_of(options)[at_fault] is Reason.SKIPPED
            client.heartbeat(RUINED_GROUP, generation_id=1, member_id="m")
            failing = wait_for_failing(coordinator)
    assert f"of version {UNKNOWN_VERSION}" in failing.reason
    assert "the error names no record" in failing.reason


def wait_for_failing(coordinator: Coordinator) -> ServiceStatus:
    assert coordinator.status.wait_for(ServicePhase.FAILING, timeout_s=START_TIMEOUT_S), (
        coordinator.status.current
    )
    return read_status(coordinator.options.folder / "status.json")


def check_failing(failing: ServiceStatus, record_prefix: str) -> str:
    """The id of the request at fault, the first of a pack, as the status names it."""
    assert failing.reason.startswith(f"batch {failing.batch_id + 1} failed 3 times and is tried again")
    _, _, named = failing.reason.partition("start with --skip-record ")
    record = named.split(" ")[0]
    assert re.fullmatch(rf"{re.escape(record_prefix)}\d+#0", record), failing.reason
    topic, partition, _ = record_of(record)
    assert f"{topic}[{partition}] " in failing.reason
    assert f"record {record} of group 'poisoned': poisoned" in failing.reason
    assert "Logical Plan" not in failing.reason
    return record


def reasons_of(options: Options) -> dict[str, Reason]:
    records = read_topic(options.client_config, options.layout.dead_letters_topic)
    letters = [msgspec.json.decode(record.value, type=DeadLetter) for record in records]
    return {letter.request: letter.reason for letter in letters}
