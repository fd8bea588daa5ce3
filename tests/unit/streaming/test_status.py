"""The status board and its file."""

from pathlib import Path

import pytest

from kafka_why.contract.service import ServicePhase
from streaming.service.status import StatusBoard, read_status


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "status.json"


def test_every_status_change_is_written_to_the_file(path: Path) -> None:
    board = StatusBoard(path)
    board.enter(ServicePhase.STARTING, "preparing")
    assert read_status(path) == board.current
    assert (board.current.phase, board.current.reason, board.current.batch_id) == (
        ServicePhase.STARTING,
        "preparing",
        -1,
    )
    board.enter(ServicePhase.FAILING, "batch 3 failed")
    assert read_status(path).phase is ServicePhase.FAILING
    assert [file.name for file in path.parent.iterdir()] == ["status.json"], "nothing half written is left"


@pytest.mark.parametrize("phase", [ServicePhase.STARTING, ServicePhase.RESTARTING, ServicePhase.FAILING])
def test_committed_batch_makes_the_service_ready(path: Path, phase: ServicePhase) -> None:
    board = StatusBoard(path)
    board.enter(phase, "for a reason")
    board.batch_committed(4)
    assert (read_status(path).phase, read_status(path).batch_id) == (ServicePhase.READY, 4)


def test_batch_reported_after_the_stop_does_not_change_the_phase(path: Path) -> None:
    board = StatusBoard(path)
    board.enter(ServicePhase.STOPPED, "stopped in order")
    board.batch_committed(5)
    assert (board.current.phase, board.current.batch_id) == (ServicePhase.STOPPED, -1)


def test_batch_reported_late_does_not_end_a_failure(path: Path) -> None:
    """Spark reports batches on another thread: the report of batch 3 comes after the failure of batch 4."""
    board = StatusBoard(path)
    board.enter(ServicePhase.RESTARTING, "batch 4 failed", batch_id=3)
    board.batch_committed(3)
    assert read_status(path).phase is ServicePhase.RESTARTING
    board.batch_committed(4)
    assert read_status(path).phase is ServicePhase.READY


def fill_disk(path: Path) -> None:
    """Prevent writes beside the file, as on a full disk."""
    path.with_suffix(".new").symlink_to("/dev/full")


def test_status_on_a_full_disk_overwrites_the_old_one(path: Path) -> None:
    board = StatusBoard(path)
    board.enter(
        ServicePhase.READY, "batches are being committed, and this reason is longer than the next one"
    )
    fill_disk(path)
    board.enter(ServicePhase.RESTARTING, "the disk is full")
    assert read_status(path) == board.current


def test_unwritable_status_is_written_as_soon_as_a_write_succeeds(path: Path) -> None:
    """It is written as soon as a write succeeds, even without another change."""
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    fill_disk(path)
    board = StatusBoard(path)
    board.enter(ServicePhase.RESTARTING, "the disk is full")
    assert not path.is_symlink()
    assert board.current.phase is ServicePhase.RESTARTING
    board.set_alarm(None)
    assert read_status(path) == board.current


def test_a_stopped_coordinator_has_no_alarm_and_no_replica(path: Path) -> None:
    board = StatusBoard(path)
    for _ in range(2):
        board.set_alarm("time stands still")
        board.set_replica("answering")
        board.enter(ServicePhase.STOPPED, "stopped in order")
    board.set_alarm("time stands still")
    board.set_replica("answering")
    assert (board.current.alarm, read_status(path).alarm) == (None, None)
    assert (board.current.replica, read_status(path).replica) == ("off", "off")
