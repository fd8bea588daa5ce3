"""A thread that dies is not passed over."""

import threading

from structlog.testing import capture_logs

from kafka_why.cli.signals import watching_threads


def die() -> None:
    raise ValueError("no more\nand this is the rest")


def test_death_of_a_thread_is_reported_with_its_name() -> None:
    told: list[str] = []
    with capture_logs() as lines, watching_threads(told.append):
        for target in (die, lambda: None):
            thread = threading.Thread(target=target, name="ticker")
            thread.start()
            thread.join()
    assert told == ["the thread ticker ended: ValueError: no more"]
    assert [line["event"] for line in lines] == told
