"""The supervisor of a query, and the status while it waits."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest
from kafka.errors import KafkaError
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from checkpoints.checkpoint import Checkpoint
from kafka_why.contract.service import ServicePhase
from kafka_why.local_files import FolderNotWritable
from streaming.query.session import Session
from streaming.service.can_continue import CannotContinue
from streaming.service.ownership.owner import NotOwner
from streaming.service.query.supervision import SupervisedQuery, Supervisor
from streaming.service.status import StatusBoard

FULL = "the disk is full: folder cannot take 1048576 bytes: No space left on device"
CUT_OFF = "no broker answers"


class Spark:
    """A session whose JVM lives."""

    log_path = "spark.log"
    local_dir = None
    can_restart = False

    def has_lost_jvm(self) -> bool:
        return False

    def kill(self) -> None:
        """Its queries end with it."""

    def check_running(self) -> None:
        pass


class Query:
    """A query of Spark's that runs until it is stopped, and ends when `answers` is set: until then it is in a
    call to a broker. `stop_error` is raised by each stop.
    """

    runId = "1"  # noqa: N815 - Spark's name

    def __init__(self, stop_error: Exception | None = None, *, answers: bool = True) -> None:
        self._jsq = self
        self.is_active = True
        self.stop_error = stop_error
        self.is_stopping, self.answers = threading.Event(), threading.Event()
        if answers:
            self.answers.set()

    def lastProgress(self) -> None:  # noqa: N802 - Spark's name
        return None

    def awaitTermination(self, timeout_s: float) -> bool:  # noqa: N802 - Spark's name
        return not self.is_active

    def stop(self) -> None:
        self.is_stopping.set()
        assert self.answers.wait(60.0)
        self.is_active = False
        if self.stop_error is not None:
            raise self.stop_error


class Supervised(SupervisedQuery):
    """A query that no batch commits."""

    source, service, remedy = "requests", "service", "none"

    def __init__(self, stop_error: Exception | None = None, *, answers: bool = True) -> None:
        self.stop_error, self.answers = stop_error, answers
        self.started: list[Query] = []
        self.has_started = threading.Event()

    def start(self, stopping: threading.Event) -> StreamingQuery:
        assert not any(query.is_active for query in self.started), "a query with that name is already active"
        self.started.append(Query(self.stop_error, answers=self.answers))
        self.has_started.set()
        return cast(StreamingQuery, self.started[-1])

    def committed(self, batch: Any) -> None:
        raise AssertionError

    def watch(self) -> None:
        raise AssertionError


class CutOff(Supervised):
    """A query whose broker never answers again."""

    def obstacle(self) -> str:
        return CUT_OFF


@pytest.fixture
def status(tmp_path: Path) -> StatusBoard:
    return StatusBoard(tmp_path / "status.json")


def test_full_disk_is_reported_while_the_query_still_runs(
    status: StatusBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's clients in it may wait for minutes for a broker that hangs, as on a full disk."""
    monkeypatch.setattr("streaming.service.query.supervision.describe_full_disk", lambda _folders: FULL)
    query = CutOff(answers=False)
    supervisor = supervised(query, status, tmp_path, Ends())
    supervisor.start()
    assert query.has_started.wait(60.0)
    (running,) = query.started
    assert running.is_stopping.wait(60.0)
    assert (status.current.phase, status.current.reason) == (ServicePhase.RESTARTING, CUT_OFF)
    assert status.current.alarm == FULL
    running.answers.set()
    supervisor.stop()


class Checked(CutOff):
    """A query whose check, as one that waits for a broker, ends only when the query is being stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.is_checked = threading.Event()

    def check_can_continue(self) -> None:
        assert self.started[-1].is_stopping.wait(60.0)
        self.is_checked.set()


def test_no_batch_begins_while_a_check_waits_for_a_broker(status: StatusBoard, tmp_path: Path) -> None:
    query, ends = Checked(), Ends()
    supervisor = supervised(query, status, tmp_path, ends)
    supervisor.start()
    try:
        assert query.is_checked.wait(60.0)
    finally:
        supervisor.stop()
    assert not ends.reported


class Failing(Supervised):
    """A query with an error from outside of Spark, at the first check after its start."""

    def __init__(self, error: Exception, stop_error: Exception | None = None) -> None:
        super().__init__(stop_error)
        self.error: Exception | None = error
        self.runs_again = threading.Event()

    def watch(self) -> None:
        error, self.error, self.stop_error = self.error, None, None
        if error is not None:
            raise error
        self.runs_again.set()


class Ends:
    """The ends of a service that a supervisor has reported."""

    def __init__(self) -> None:
        self.reported: list[Exception] = []
        self.has_come = threading.Event()

    def __call__(self, _: str, error: Exception) -> None:
        self.reported.append(error)
        self.has_come.set()


@pytest.fixture
def ends() -> Ends:
    return Ends()


def supervised(query: SupervisedQuery, status: StatusBoard, folder: Path, ends: Ends) -> Supervisor:
    session = cast(Session, Spark())
    return Supervisor(query, Checkpoint.at(folder / "checkpoint"), status, session, ends)


@pytest.mark.parametrize("stop_error", [None, Py4JNetworkError("the JVM is gone")], ids=["stops", "no-stop"])
@pytest.mark.parametrize("error", [KafkaError("no leader"), FolderNotWritable("full")], ids=repr)
def test_query_is_stopped_after_an_error_on_another_thread_and_restarted(
    error: Exception, stop_error: Exception | None, status: StatusBoard, tmp_path: Path, ends: Ends
) -> None:
    query = Failing(error, stop_error)
    supervisor = supervised(query, status, tmp_path, ends)
    supervisor.start()
    try:
        assert query.runs_again.wait(60.0)
        assert status.current.reason == f"batch 0 failed, attempt 1: {error}"
    finally:
        supervisor.stop()
    assert [query.is_active for query in query.started] == [False, False]
    assert not ends.reported


@pytest.mark.parametrize("stop_error", [None, Py4JNetworkError("the JVM is gone")], ids=["stops", "no-stop"])
@pytest.mark.parametrize("error", [NotOwner("another"), RuntimeError("a fault")], ids=repr)
def test_query_is_stopped_by_an_error_that_ends_the_service(
    error: Exception, stop_error: Exception | None, status: StatusBoard, tmp_path: Path, ends: Ends
) -> None:
    query = Failing(error, stop_error)
    supervisor = supervised(query, status, tmp_path, ends)
    supervisor.start()
    assert ends.has_come.wait(60.0)
    supervisor.stop()
    assert ends.reported == [error]
    assert [query.is_active for query in query.started] == [False]


class Lost(Supervised):
    """A query whose only batch fails because its records are gone."""

    def __init__(self, status: StatusBoard, ends: Ends) -> None:
        super().__init__()
        self.starts = 0
        self.seen: list[tuple[ServicePhase, int]] = []
        self._status, self._ends = status, ends

    def start(self, stopping: threading.Event) -> StreamingQuery:
        self.starts += 1
        raise PySparkException("KafkaIllegalStateException: Some data may have been lost")

    def check_can_continue(self) -> None:
        raise CannotContinue("records were deleted before they were handled")

    def ended(self, error: Exception) -> None:
        self.seen.append((self._status.current.phase, len(self._ends.reported)))


class LostBehindAnObstacle(Lost):
    """A query that waits for clock records, which no broker can take because their topic is gone."""

    def start(self, stopping: threading.Event) -> StreamingQuery:
        self.starts += 1
        return Supervised.start(self, stopping)

    def obstacle(self) -> str:
        return CUT_OFF


@pytest.mark.parametrize("kind", [Lost, LostBehindAnObstacle])
def test_a_query_that_can_never_continue_ends_the_service_at_once(
    kind: type[Lost], status: StatusBoard, tmp_path: Path, ends: Ends
) -> None:
    """The replica ends before the rest of the service, which takes longer."""
    query = kind(status, ends)
    supervisor = supervised(query, status, tmp_path, ends)
    supervisor.start()
    assert ends.has_come.wait(60.0)
    supervisor.stop()
    assert query.seen == [(ServicePhase.STOPPED, 0)]
    assert [str(error) for error in ends.reported] == ["records were deleted before they were handled"]
    assert (query.starts, [running.is_active for running in query.started]) == (
        1,
        [False] * len(query.started),
    )
