"""The service continues when Spark's JVM has ended: the same process starts another one."""

import gc
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from kafka_why.local_files import FolderError
from streaming.query import jvm
from streaming.query.jvm import OwnJvm, SparkFailed
from streaming.query.session import Session
from streaming.query.storage import HadoopFiles
from tests.e2e.harness import running, wait_until
from tests.harness.run_command import SPARK, children_running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# pyspark leaves the pipe to a JVM that did not start to the garbage collector.
LEAVES_A_PIPE = pytest.mark.filterwarnings("ignore:.*FileIO:pytest.PytestUnraisableExceptionWarning")


def next_jvm(ended: set[int]) -> int:
    """Wait for a JVM of this process that is not one of these."""
    found: list[int] = []

    def has_come() -> bool:
        found[:] = [pid for pid in children_running(os.getpid(), SPARK) if pid not in ended]
        return bool(found)

    wait_until(has_come, "another JVM")
    return found[0]


@LEAVES_A_PIPE
def test_spark_session_starts_again_after_its_jvm_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(log_path=tmp_path / "spark.log", temporary_folder=tmp_path / "tmp") as session:
        check_nothing_is_left(session, tmp_path)
        nowhere = HadoopFiles(lambda: session.spark, "hdfs://127.0.0.1:1/there", has_atomic_rename=True)
        with pytest.raises(FolderError, match=r"/there/file cannot be written: .*Connection refused"):
            nowhere.write("file", b"")
        check_hanging_starts_are_killed(session, monkeypatch)
        session.check_running()
        # As where a cluster's master gives the application up. The JVM goes on then.
        session.spark.sparkContext._jsc.sc().stop()
        with pytest.raises(SparkFailed, match="Spark has stopped the application"):
            session.check_running()
        assert not session.has_lost_jvm()


def check_nothing_is_left(session: Session, folder: Path) -> None:
    """Check that restarts leave no thread, open file, import path or output on standard error behind. The
    next JVM reads what the one before wrote through Hadoop.
    """
    files = HadoopFiles(lambda: session.spark, folder.as_uri(), has_atomic_rename=True)
    files.write("file", b"before")
    before, after = (_used(session) for _ in range(2))
    assert files.read("file") == b"before"
    # What a test before this one has left may end meanwhile.
    assert after.threads <= before.threads
    assert after.files <= before.files
    assert after.path == before.path


def check_hanging_starts_are_killed(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a JVM has answered once nobody else watches it, and while Spark starts the watchdog does. The
    next one is started as after any other end.
    """
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(jvm, "LAUNCH_S", 4.0)
        session.kill()
        second = pool.submit(lambda: _stopped(next_jvm({session.jvm_pid})))
        with pytest.raises(SparkFailed, match=r"Spark did not start: .*, so it was killed\. Its log is "):
            session.restart()
        assert not running([second.result()])
    launch = session._launch

    def launch_stopped() -> OwnJvm:
        launched = launch()
        _stopped(launched.pid)
        return launched

    with monkeypatch.context() as patch:
        patch.setattr(session, "_launch", launch_stopped)
        patch.setattr(jvm, "UNANSWERED_S", 3)
        with pytest.raises(SparkFailed, match="Spark's JVM has not answered for 3 s, so it was killed"):
            session.restart()
    session.restart()
    session.ping()


def _stopped(pid: int) -> int:
    os.kill(pid, signal.SIGSTOP)
    return pid


class Used(NamedTuple):
    """The numbers of threads and open files of this process, and its import path."""

    threads: int
    files: int
    path: list[str]


def _used(session: Session) -> Used:
    """Kill Spark's JVM, start it again and use it. Return the resources that this process has then."""
    ended = session.jvm_pid
    os.kill(ended, signal.SIGKILL)
    assert session.has_lost_jvm()
    session.restart()
    assert not running([ended])
    assert session.spark.sparkContext.parallelize(range(4), 2).map(lambda n: n * 2).sum() == 12
    gc.collect()  # clients leave their sockets to the garbage collector
    return Used(threading.active_count(), len(list(Path("/proc/self/fd").iterdir())), list(sys.path))
