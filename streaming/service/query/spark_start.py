"""The start of Spark beside all else that a service starts, because it takes seconds."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

from streaming.query.master import wait_for_master
from streaming.query.session import CHECKPOINT_FILE_MANAGER, Session
from streaming.service.options import Options
from streaming.service.start_times import StartTimes


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
                session.result().stop()
            raise
