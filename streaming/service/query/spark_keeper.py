"""The keeper of Spark: it restarts Spark, within the running service, whenever its JVM has ended.

A JVM ends when it is killed, runs out of memory, or hangs and the watchdog kills it. The rest of the service
continues meanwhile. For clients this is like the end of a query, only longer. The keeper gives up if Spark
keeps ending without a committed batch, so that another process or machine can try.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import structlog

from kafka_why.local_files import FolderNotWritable
from streaming.query.jvm import SparkFailed, Watchdog
from streaming.query.session import CHECKPOINT_FILE_MANAGER, Session, wait_for_master
from streaming.service.backoff import backoff_s
from streaming.service.can_continue import CannotContinue
from streaming.service.options import Options
from streaming.service.starts import StartTimes


@contextmanager
def starting_spark(
    options: Options, file_manager: str, hold_fd: int, times: StartTimes
) -> Iterator[Future[Session]]:
    """Start Spark in a thread, once its master answers. If the block raises, Spark is stopped again."""
    given_up = threading.Event()

    def start() -> Session:
        wait_for_master(options.master, given_up)
        session = Session(
            log_path=options.folder / "spark.log",
            ui_host=options.ui_host,
            ui_port=options.ui_port,
            hold_fd=hold_fd,
            temporary_folder=options.folder / "tmp",
            master=options.master,
            driver_host=options.driver_host,
            extra={CHECKPOINT_FILE_MANAGER: file_manager, **options.spark},
        )
        times.end_of("spark")
        return session

    with ThreadPoolExecutor(1, "spark-start") as thread:
        session = thread.submit(start)
        try:
            yield session
        except BaseException:  # also KeyboardInterrupt
            given_up.set()
            with suppress(Exception):
                session.result().close()
            raise


MOST_RESTARTS = 5

log = structlog.get_logger()


class SparkEnded(RuntimeError):
    """Spark has ended and is not started again. The message has the reason and the path of Spark's log."""


class RestartableSpark(Protocol):
    """The part of `streaming.query.session.Session` that a keeper needs."""

    log_path: Path | str

    @property
    def can_restart(self) -> bool: ...

    def ping(self) -> None: ...

    def has_lost_jvm(self) -> bool: ...

    def kill(self) -> None: ...

    def restart(self) -> None: ...


class SparkKeeper:
    """A keeper of one Spark between `start` and `stop`. One thread calls `keep` and `worked`.

    A hung JVM is killed if this process can start another one, or if `has_standby`: the service then ends,
    and the standby takes over. `pause` waits for a number of seconds, or until `stopping` is set. `on_reason`
    is called with a sentence before each restart.
    """

    def __init__(
        self,
        spark: RestartableSpark,
        stopping: threading.Event,
        *,
        pause: Callable[[float], object],
        on_reason: Callable[[str], object] = lambda _: None,
        has_standby: bool = False,
    ) -> None:
        self._spark = spark
        self._stopping = stopping
        self._pause = pause
        self._on_reason = on_reason
        self._kills_hung = spark.can_restart or has_standby
        self._hung: str | None = None
        self._restarts = 0  # since Spark last worked
        self._watchdog: Watchdog | None = None

    def start(self) -> None:
        """Begin to watch the JVM."""
        if self._kills_hung:
            self._watchdog = Watchdog(self._spark.ping, self.kill_hung)
            self._watchdog.start()

    def stop(self) -> None:
        """Stop watching the JVM. Spark keeps running."""
        if self._watchdog is not None:
            self._watchdog.stop()

    def kill_hung(self, reason: str) -> None:
        """Kill a hung JVM, if this process or a standby starts another one. Any thread may call it."""
        if self._kills_hung:
            log.error("the JVM hangs", reason=reason)
            self._hung = reason
            self._spark.kill()

    def worked(self) -> None:
        """Reset the count of restarts, because Spark has done its work."""
        self._restarts = 0

    def keep(self, work: Callable[[], None]) -> None:
        """Call `work` until it returns, again after each end of Spark, with another JVM.

        An error of `work` is raised if Spark still runs, or after `stopping`. Raises SparkEnded if Spark is
        given up.
        """
        while True:
            try:
                return work()
            except Exception as error:
                if self._stopping.is_set() or not self._has_ended(error):
                    raise
                reason = self._reason(error)
            self._restart(reason)

    def _has_ended(self, error: Exception) -> bool:
        if isinstance(error, CannotContinue):
            return False  # no other JVM could either
        return isinstance(error, SparkFailed) or self._spark.has_lost_jvm()

    def _reason(self, error: Exception) -> str:
        if isinstance(error, SparkFailed):
            return str(error)
        end = "Spark's JVM has ended" if self._hung is None else f"{self._hung}, so it was killed"
        return f"{end}; its log is {self._spark.log_path}"

    def _restart(self, reason: str) -> None:
        """Start Spark again, in several attempts if necessary. Returns early if `stopping` is set."""
        self.stop()
        self._hung = None
        while not self._stopping.is_set():
            if not self._spark.can_restart:
                raise SparkEnded(reason)
            if self._restarts == MOST_RESTARTS:
                raise SparkEnded(f"{reason}. It was started {MOST_RESTARTS} times since it last worked")
            pause_s = backoff_s(self._restarts)
            self._restarts += 1
            log.error("Spark has ended", reason=reason, attempt=self._restarts, again_in_s=pause_s)
            self._on_reason(f"{reason}. It is started again, attempt {self._restarts} of {MOST_RESTARTS}")
            self._pause(pause_s)
            try:
                if not self._stopping.is_set():
                    self._spark.restart()
                    log.info("Spark runs again")
                    self.start()
                return
            except (SparkFailed, FolderNotWritable) as error:
                reason = str(error)
