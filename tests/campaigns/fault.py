"""A fault that strikes a stage."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A fault. `weight` is how often it strikes beside the others.

    `hit`, of a stage and a source of random choices, returns when it is over: what was held runs again, what
    was damaged is mended. It returns True if the coordinator refused clearly to go on, and said what to do.
    It raises AssertionError if the coordinator took it in another way than it should.
    """

    name: str
    weight: float
    hit: Callable[[Any, Random], bool | None]


def by_name(*faults: Fault) -> dict[str, Fault]:
    return {fault.name: fault for fault in faults}


@contextmanager
def standing_still(send: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Stop the processes that `send` sends a signal to during the block."""
    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)
