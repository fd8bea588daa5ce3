"""When the watchdog ends a JVM."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from streaming.query.jvm import UNANSWERED_S, Watchdog
from tests.e2e.harness import wait_until

INTERVAL_S = 0.02
LONG_S = 3 * UNANSWERED_S * INTERVAL_S


@contextmanager
def watching(ping: Callable[[], object]) -> Iterator[list[str]]:
    hung: list[str] = []
    watchdog = Watchdog(ping, hung.append, interval_s=INTERVAL_S)
    watchdog.start()
    try:
        yield hung
    finally:
        watchdog.stop()


def test_a_jvm_that_answers_is_left_alone() -> None:
    with watching(lambda: None) as hung:
        time.sleep(LONG_S)
        assert hung == []


def test_a_jvm_that_does_not_answer_is_ended_once() -> None:
    answer = threading.Event()
    with watching(answer.wait) as hung:
        wait_until(lambda: hung != [], "the end of the JVM")
        time.sleep(LONG_S)
        assert hung == ["Spark's JVM has not answered for 10 s"]
        answer.set()


def test_a_jvm_that_has_ended_is_left_to_the_supervisor() -> None:
    def ping() -> None:
        raise Py4JNetworkError("the JVM has ended")

    with watching(ping) as hung:
        time.sleep(LONG_S)
        assert hung == []
