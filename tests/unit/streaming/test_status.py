"""The status board and its file."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_why.contract.service import NO_REPLICA_STATE, NOT_STARTED, PHASES, ReplicaState, ServicePhase
from kafka_why.contract.service import ReplicaPhase as ReplicaPhase
from streaming.service.status import ReplicaWatch, StatusBoard, read_status


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
    """Neither it nor a change of the phase changes the replica's phrase."""
    board = StatusBoard(path)
    board.set_replica("answering")
    board.enter(phase, "for a reason")
    assert read_status(path).replica == "answering"
    board.batch_committed(4)
    assert (read_status(path).phase, read_status(path).batch_id) == (ServicePhase.READY, 4)
    assert read_status(path).replica == "answering"


def test_batch_reported_after_a_stop_does_not_change_the_service_phase(path: Path) -> None:
    board = StatusBoard(path)
    board.enter(ServicePhase.STOPPED, "stopped in order")
    board.batch_committed(5)
    assert (board.current.phase, board.current.batch_id) == (ServicePhase.STOPPED, -1)


def test_late_batch_report_does_not_end_a_failure(path: Path) -> None:
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


class Watched:
    """A watch over a replica whose state the test sets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.board = StatusBoard(path)
        self.state = NOT_STARTED
        self.watch = ReplicaWatch(lambda: self.state, self.board)

    def shows(self, phrase: str) -> bool:
        """Wait until the status shows it."""
        return self.board.wait_until(lambda status: status.replica == phrase, timeout_s=10)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path / "status.json")
    watched.watch.start()
    yield watched
    watched.watch.stop()


def test_every_reported_replica_phase_is_a_listed_phase() -> None:
    assert set(PHASES) == {NO_REPLICA_STATE.phase, *ReplicaPhase}
    assert [phase for phase in PHASES if ReplicaState(phase=phase).is_answering] == ["answering"]


def test_every_replica_phrase_is_in_the_status_file(watched: Watched) -> None:
    for state in (NOT_STARTED, ReplicaState(phase="answering"), ReplicaState(phase="ended", reason="killed")):
        watched.state = state
        assert watched.shows(state.phrase)
        assert read_status(watched.path).replica == state.phrase
