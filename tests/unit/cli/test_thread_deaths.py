"""A thread that dies is not passed over."""

import subprocess
import sys
import threading
from pathlib import Path

from structlog.testing import capture_logs

from cli.thread_deaths import watching_threads


def die() -> None:
    raise ValueError("no more\nand this is the rest")


def test_a_thread_that_dies_of_an_exception_is_told_with_its_name() -> None:
    told: list[str] = []
    with capture_logs() as lines, watching_threads(told.append):
        for target in (die, lambda: None):
            thread = threading.Thread(target=target, name="ticker")
            thread.start()
            thread.join()
    assert told == ["the thread ticker ended: ValueError: no more"]
    assert [line["event"] for line in lines] == told


LOGGING = """
import os, sys, threading
import structlog
from cli.logs import configure_logs
from cli.thread_deaths import watching_threads
configure_logs()
os.dup2(os.open("/dev/full", os.O_WRONLY), sys.stderr.fileno())
def log_and_die():
    structlog.get_logger().error("x" * 10_000)
    raise ValueError("no more")
with watching_threads(print):
    thread = threading.Thread(target=log_and_die, name="ticker")
    thread.start()
    thread.join()
"""


def test_a_log_line_on_a_full_disk_ends_no_thread() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGGING],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert done.stdout == "the thread ticker ended: ValueError: no more\n"
