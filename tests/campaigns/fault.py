"""A fault that strikes a stage."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A fault. `weight` is its relative frequency.

    `hit` applies it to a stage, with a source of random choices, and returns when it is over: paused
    processes run again, and damage is repaired. It returns True if the coordinator refused to continue and
    reported what to do. It raises AssertionError if the coordinator reacted in a wrong way.
    """

    name: str
    weight: float
    hit: Callable[[Any, Random], bool | None]


def by_name(*faults: Fault) -> dict[str, Fault]:
    return {fault.name: fault for fault in faults}


def pause_randomly(
    send: Callable[[signal.Signals], None], random: Random, least_s: float, most_s: float
) -> None:
    """Pause the processes that `send` signals, for a random time."""
    with paused(send):
        time.sleep(random.uniform(least_s, most_s))


@contextmanager
def paused(send: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Pause the processes that `send` signals, until the block ends."""
    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)
