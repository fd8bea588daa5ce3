"""The effect of Ctrl-C and SIGTERM on a command that runs until it is stopped."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import structlog

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_on_signals() -> None:
    """Exit on a signal, with the code 128 + its number. For use during the start: it also ends what was
    started.
    """
    _on_signals(_exit)


def stop_on_signals(stop: threading.Event) -> None:
    """Set `stop` on a signal, so that the command ends in order. For use after the start."""
    _on_signals(lambda *_: stop.set())


def _on_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


# A thread that dies of an exception ends the process, because the service has lost a part of itself.


log = structlog.get_logger()


class StopEvent(threading.Event):
    """An event that is set when a command has to end.

    `failure` is the reason, or None if the user ended the command.
    """

    failure: str | None = None

    def fail(self, reason: str) -> None:
        """End the command. Only the first reason is kept, because later ones may be its consequences."""
        self.failure = self.failure or reason
        self.set()


@contextmanager
def watching_threads(on_death: Callable[[str], None]) -> Iterator[None]:
    """Call `on_death` with the reason when a thread ends with an exception. The call is on that thread.

    Threads of libraries count, too: a producer whose sender thread has ended sends nothing.
    """

    def report_death(death: threading.ExceptHookArgs) -> None:
        name = death.thread.name if death.thread is not None else "unknown"
        first_line, _, _ = str(death.exc_value).strip().partition("\n")
        reason = f"the thread {name} ended: {death.exc_type.__name__}: {first_line}"
        try:
            log.error(reason, exc_info=death.exc_value)
        finally:
            on_death(reason)

    before = threading.excepthook
    threading.excepthook = report_death
    try:
        yield
    finally:
        threading.excepthook = before
