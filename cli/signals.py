"""What Ctrl-C and SIGTERM do to a command that runs until it is told to stop."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_on_signals() -> None:
    """While starting: end what has been started so far. The exit code is the shell's for that signal."""
    _on_signals(_exit)


def stop_on_signals(stop: threading.Event) -> None:
    """Once started: stop in order."""
    _on_signals(lambda *_: stop.set())


def _on_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
