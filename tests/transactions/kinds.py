"""The faults. Those that the fault campaign has, too, are its own."""

import signal
import time
from dataclasses import dataclass
from random import Random

from tests.faults.campaign.cluster import CampaignCluster
from tests.faults.campaign.kinds.fault import Fault, FaultOutcome, standing_still
from tests.faults.campaign.kinds.processes import PROCESSES
from tests.transactions.loops.options import SESSION_TIMEOUT_MS
from tests.transactions.stage import Stage

LONGEST_HOLD_S = 1.5 * SESSION_TIMEOUT_MS / 1000


@dataclass(frozen=True)
class InstanceKilled:
    """SIGKILL to one instance, in the midst of a transaction mostly. It is started again."""

    name: str = "instance killed"
    weight: float = 4.0

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        assert isinstance(world, Stage)
        random.choice(world.instances()).kill()
        return FaultOutcome.WENT_ON


@dataclass(frozen=True)
class InstanceHeldStill:
    """SIGSTOP to one instance, and SIGCONT. In half of the cases its session ends meanwhile, so that it goes
    on with a transaction and a generation that are over.
    """

    name: str = "instance held still"
    weight: float = 3.0

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        assert isinstance(world, Stage)
        instance = random.choice(world.instances())
        with standing_still(instance.signal):
            time.sleep(random.uniform(1.0, LONGEST_HOLD_S))
        return FaultOutcome.WENT_ON


@dataclass(frozen=True)
class FollowerKilled:
    """An exception in the thread that reads the markers. The coordinator ends, and is started again."""

    name: str = "follower's thread killed"
    weight: float = 1.0

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        starts = world.coordinator.starts
        world.coordinator.signal(signal.SIGUSR1)
        world.coordinator.wait_until_started(starts, timeout_s=120)
        return FaultOutcome.WENT_ON


_OF_CAMPAIGN: dict[str, Fault] = {fault.name: fault for fault in PROCESSES}
_OF_INSTANCES: tuple[Fault, ...] = (InstanceKilled(), InstanceHeldStill())
_OF_BROKERS: tuple[Fault, ...] = (_OF_CAMPAIGN["broker killed"], _OF_CAMPAIGN["broker held still"])
REFERENCE = (*_OF_INSTANCES, *_OF_BROKERS)
"""What happens to applications with Kafka's own coordinator."""
ALL: tuple[Fault, ...] = (
    *REFERENCE,
    FollowerKilled(),
    *(
        _OF_CAMPAIGN[name]
        for name in (
            "driver's Python killed",
            "driver's JVM killed",
            "Python worker killed",
            "driver held still",
            "gateway killed",
            "gateway held still",
        )
    ),
)
KINDS: dict[str, Fault] = {fault.name: fault for fault in ALL}
"""By name."""
