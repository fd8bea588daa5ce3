"""What a fault is."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from random import Random
from typing import Protocol

from tests.faults.campaign.cluster import CampaignCluster


class FaultOutcome(StrEnum):
    """How the coordinator took a fault."""

    WENT_ON = "went on"
    REFUSED = "refused clearly"
    """It said what to do, and it was done."""


class Fault(Protocol):
    """A fault. `strike` returns when it is over: what was held runs again, what was damaged is mended.

    `weight` is how often it strikes beside the others. `strike` raises AssertionError if the coordinator took
    it in another way than it should.
    """

    @property
    def name(self) -> str: ...
    @property
    def weight(self) -> float: ...
    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome: ...


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
