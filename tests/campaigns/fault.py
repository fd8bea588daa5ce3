"""A fault that strikes a stage."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Generic, TypeVar

W = TypeVar("W", contravariant=True)
"""The stage that a fault needs."""


class FaultOutcome(StrEnum):
    """The coordinator's reaction to a fault."""

    WENT_ON = "went on"
    REFUSED = "refused clearly"
    """It said what to do, and it was done."""


@dataclass(frozen=True)
class Fault(Generic[W]):
    """A fault. `weight` is how often it strikes beside the others.

    `hit` returns when it is over: what was held runs again, what was damaged is mended. It raises
    AssertionError if the coordinator took it in another way than it should, and returns None if it went on.
    """

    name: str
    weight: float
    hit: Callable[[W, Random], FaultOutcome | None]

    def strike(self, stage: W, random: Random) -> FaultOutcome:
        return self.hit(stage, random) or FaultOutcome.WENT_ON


@contextmanager
def standing_still(send: Callable[[signal.Signals], None]) -> Iterator[None]:
    """The processes that `send` sends a signal to are stopped during the block."""
    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


def hold_s(random: Random) -> float:
    """Return a time to hold something: shorter than a session, or members could not keep their word."""
    return random.uniform(0.5, 5.0)
