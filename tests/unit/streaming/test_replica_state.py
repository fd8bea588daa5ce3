"""The replica in the status: its phrase, and the thread that keeps it there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_why.contract.service import NO_REPLICA_STATE, NOT_STARTED, PHASES, ReplicaState, ServicePhase
from kafka_why.contract.service import ReplicaPhase as ReplicaPhase
from streaming.service.status import ReplicaWatch, StatusBoard, read_status


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


def test_query_phase_change_keeps_the_replica_phrase(watched: Watched) -> None:
    watched.state = ReplicaState(phase="answering")
    assert watched.shows("answering")
    for phase in (ServicePhase.STARTING, ServicePhase.STANDBY, ServicePhase.RESTARTING, ServicePhase.FAILING):
        watched.board.enter(phase, "for a reason")
        assert read_status(watched.path).replica == "answering"
    watched.board.batch_committed(1)
    assert read_status(watched.path).replica == "answering"
