"""The effect of Ctrl-C and SIGTERM on a command that runs until it is stopped."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def exit_on_signals() -> None:
    """During the start: exit, which ends everything started so far. The exit code is 128 + the signal."""
    _on_signals(_exit)


def stop_on_signals(stop: threading.Event) -> None:
    """After the start: set `stop`, so that the command ends in order."""
    _on_signals(lambda *_: stop.set())


def _on_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in SIGNALS:
        signal.signal(number, handler)


def _exit(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
