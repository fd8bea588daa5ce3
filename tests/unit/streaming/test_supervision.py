"""What the status says while the supervisor of a query waits."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from checkpoints.checkpoint import Checkpoint
from streaming.query.session import Session
from streaming.service.can_continue import CannotContinue
from streaming.service.query.supervision import SupervisedQuery, Supervisor
from streaming.service.status import Phase, Status, StatusBoard

FULL = "the disk is full: folder cannot take 1048576 bytes: No space left on device"
CUT_OFF = "no broker answers"


class Spark:
    """A session whose JVM lives."""

    log_path = "spark.log"
    local_dir = None
    can_restart = False

    def has_lost_jvm(self) -> bool:
        return False

    def check_running(self) -> None:
        """It runs."""


class Running:
    """A query that does not end before `answers` is set, because it is in a call to a broker."""

    runId = "1"  # noqa: N815 - Spark's name

    def __init__(self) -> None:
        self._jsq = self
        self.is_stopping = threading.Event()
        self.answers = threading.Event()

    def lastProgress(self) -> None:  # noqa: N802 - Spark's name
        return None

    def awaitTermination(self, timeout_s: float) -> bool:  # noqa: N802 - Spark's name
        return self.answers.wait(timeout_s)

    def stop(self) -> None:
        self.is_stopping.set()
        assert self.answers.wait(60.0)


class CutOff(SupervisedQuery):
    """A query whose broker never answers again."""

    source, service, way_back = "requests", "service", "none"

    def __init__(self, running: Running) -> None:
        self.running = running

    def start(self, stopping: threading.Event) -> StreamingQuery:
        return cast(StreamingQuery, self.running)

    def obstacle(self) -> str:
        return CUT_OFF

    def committed(self, batch: Any) -> None:
        raise AssertionError

    def watch(self, running: StreamingQuery) -> None:
        raise AssertionError


@pytest.fixture
def status(tmp_path: Path) -> StatusBoard:
    return StatusBoard(tmp_path / "status.json")


@pytest.fixture
def running(status: StatusBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr("streaming.service.query.supervision.describe_full_disk", lambda _folders: FULL)
    query = Running()
    session = cast(Session, Spark())
    supervisor = Supervisor(
        CutOff(query), Checkpoint.at(tmp_path / "checkpoint"), status, session, lambda *_: None
    )
    supervisor.start()
    yield query
    query.answers.set()
    supervisor.stop()


def test_the_phase_and_a_full_disk_are_shown_although_the_query_does_not_end(
    running: Running, status: StatusBoard
) -> None:
    """Kafka's clients in it may wait for minutes for a broker that hangs, as on a full disk."""
    assert running.is_stopping.wait(60.0)
    assert shown(status.current) == (Phase.RESTARTING, CUT_OFF, FULL)


def shown(status: Status) -> tuple[Phase, str, str | None]:
    return status.phase, status.reason, status.alarm


class Lost(SupervisedQuery):
    """A query whose only batch fails because its records are gone."""

    source, service, way_back = "requests", "service", "none"

    def __init__(self) -> None:
        self.starts = 0
        self.calls: list[str] = []

    def start(self, stopping: threading.Event) -> StreamingQuery:
        self.starts += 1
        raise PySparkException("KafkaIllegalStateException: Some data may have been lost")

    def check_can_continue(self) -> None:
        raise CannotContinue("records were deleted before they were handled")

    def ended(self, error: Exception) -> None:
        self.calls.append(f"ended: {error}")

    def committed(self, batch: Any) -> None:
        raise AssertionError

    def watch(self, running: StreamingQuery) -> None:
        raise AssertionError


def test_a_query_that_can_never_continue_ends_the_service_at_its_first_failure(
    status: StatusBoard, tmp_path: Path
) -> None:
    """What answers beside the query ends before the rest of the service, which takes longer."""
    query = Lost()

    def on_end(reason: str, error: Exception) -> None:
        query.calls.append(f"{status.current.phase}: {reason}")

    supervisor = Supervisor(
        query, Checkpoint.at(tmp_path / "checkpoint"), status, cast(Session, Spark()), on_end
    )
    supervisor.start()
    assert status.wait_for(Phase.STOPPED, timeout_s=60)
    supervisor.stop()
    lost = "records were deleted before they were handled"
    assert query.calls == [f"ended: {lost}", f"stopped: {lost}"]
    assert query.starts == 1
