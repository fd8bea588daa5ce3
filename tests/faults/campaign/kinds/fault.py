"""What a fault is."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Generic, Protocol, TypeVar

from tests.faults.campaign.cluster import CampaignCluster

W = TypeVar("W", bound=CampaignCluster, contravariant=True)
"""The world that a fault needs."""


class FaultOutcome(StrEnum):
    """How the coordinator took a fault."""

    WENT_ON = "went on"
    REFUSED = "refused clearly"
    """It said what to do, and it was done."""


class Fault(Protocol[W]):
    """A fault. `strike` returns when it is over: what was held runs again, what was damaged is mended.

    `weight` is how often it strikes beside the others. `strike` raises AssertionError if the coordinator took
    it in another way than it should.
    """

    @property
    def name(self) -> str: ...
    @property
    def weight(self) -> float: ...
    def strike(self, world: W, random: Random) -> FaultOutcome: ...


@dataclass(frozen=True)
class PlainFault(Generic[W]):
    """A fault after which the coordinator goes on. `hit` is `strike` without its outcome."""

    name: str
    weight: float
    hit: Callable[[W, Random], None]

    def strike(self, world: W, random: Random) -> FaultOutcome:
        self.hit(world, random)
        return FaultOutcome.WENT_ON


@contextmanager
def standing_still(send: Callable[[signal.Signals], None]) -> Iterator[None]:
    """The processes that `send` sends a signal to are stopped during the block."""
    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


def hold_s(random: Random) -> float:
    """How long something is held: shorter than a session, or members could not keep their word."""
    return random.uniform(0.5, 5.0)
