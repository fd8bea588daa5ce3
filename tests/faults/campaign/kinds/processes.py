"""Processes that are killed, stand still or are slow: the driver, its JVM, Python workers, the replica, the
gateway, a broker.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from tests.e2e.harness import wait_until
from tests.faults.campaign.cluster import START_TIMEOUT_S, CampaignCluster, signal_all
from tests.faults.campaign.kinds.fault import FaultOutcome, PlainFault, hold_s, standing_still

# The share of a slowed process is one such slice of ten.
SLICE_S = 0.02

Pids = Callable[[CampaignCluster], Sequence[int]]


@dataclass(frozen=True)
class Killed:
    """SIGKILL. `restarts` says that the coordinator is started again by its supervisor."""

    name: str
    pids: Pids
    weight: float = 1.0
    restarts: bool = False

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        starts = world.coordinator.starts
        signal_all(list(self.pids(world)), signal.SIGKILL)
        if self.restarts:
            world.coordinator.wait_until_started(starts, timeout_s=120)
        return FaultOutcome.WENT_ON


@dataclass(frozen=True)
class JvmEnds:
    """SIGKILL, or SIGSTOP until the watchdog kills it. The same process starts another JVM."""

    name: str
    number: signal.Signals
    weight: float = 1.0

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        machine = world.coordinator  # it is not ready meanwhile, so it is not looked for again
        driver, starts, jvm = machine.pid, machine.starts, world.jvm(machine)
        signal_all([jvm], self.number)
        wait_until(lambda: world.jvm(machine) != jvm, "another JVM", START_TIMEOUT_S)
        assert (machine.pid, machine.starts) == (driver, starts)
        return FaultOutcome.WENT_ON


@dataclass(frozen=True)
class HeldStill:
    """SIGSTOP, and SIGCONT some seconds later."""

    name: str
    pids: Pids
    weight: float = 1.0

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        with standing_still(partial(signal_all, list(self.pids(world)))):
            time.sleep(hold_s(random))
        return FaultOutcome.WENT_ON


def kill_replica(world: CampaignCluster, _: Random) -> None:
    """SIGKILL. The coordinator seeds another one."""
    replica = world.replica()
    signal_all([replica], signal.SIGKILL)
    wait_until(lambda: world.replica() != replica, "another replica", START_TIMEOUT_S)


def slow_replica(world: CampaignCluster, random: Random) -> None:
    """It runs for a tenth of the time. The query overtakes it, and each answer has two copies at once."""
    replica = [world.replica()]
    until_s = time.monotonic() + 2 * hold_s(random)
    while time.monotonic() < until_s:
        with standing_still(partial(signal_all, replica)):
            time.sleep(9 * SLICE_S)
        time.sleep(SLICE_S)


def kill_gateway(world: CampaignCluster, _: Random) -> None:
    starts = world.gateway.starts
    world.gateway.kill()
    world.gateway.wait_until_started(starts)


def kill_broker(world: CampaignCluster, random: Random) -> None:
    """One of three, with SIGKILL, and started again."""
    node = random.choice(world.brokers.nodes)
    world.brokers.kill(node)
    time.sleep(random.uniform(0, 3))
    world.brokers.restart(node)
    world.brokers.wait_until_in_sync()


def hold_broker(world: CampaignCluster, random: Random) -> None:
    """One of three. From 3 s on the others take it for lost; it comes back as one that does not know it."""
    node = random.choice(world.brokers.nodes)
    with world.brokers.holding(node):
        time.sleep(random.uniform(1, 8))
    world.brokers.wait_until_in_sync()


def kill_driver_while_a_broker_hangs(world: CampaignCluster, random: Random) -> None:
    """The coordinator is started again by the two others alone."""
    node = random.choice(world.brokers.nodes)
    with world.brokers.holding(node):
        starts = world.coordinator.starts
        world.coordinator.kill()
        world.coordinator.wait_until_started(starts)
        world.wait_until_recovered(time.monotonic())
    world.brokers.wait_until_in_sync()


def _driver(world: CampaignCluster) -> list[int]:
    return [world.driver()]


def _jvm(world: CampaignCluster) -> list[int]:
    return [world.jvm()]


def _both(world: CampaignCluster) -> list[int]:
    return [world.driver(), world.jvm()]


def _replica(world: CampaignCluster) -> list[int]:
    return [world.replica()]


def _gateway(world: CampaignCluster) -> list[int]:
    assert world.gateway.pid is not None
    return [world.gateway.pid]


def _executor(world: CampaignCluster) -> list[int]:
    """One of them."""
    return world.executors()[:1]


EXECUTORS = (
    Killed("executor killed", _executor, weight=3.0),
    HeldStill("executor held still", _executor, weight=2.0),
)
PROCESSES = (
    Killed("driver's Python killed", _driver, weight=1.0, restarts=True),
    JvmEnds("driver's JVM killed", signal.SIGKILL),
    JvmEnds("driver's JVM hangs", signal.SIGSTOP, weight=0.5),
    Killed("Python worker killed", CampaignCluster.workers, weight=3.0),
    PlainFault("replica killed", 3.0, kill_replica),
    HeldStill("replica held still", _replica, weight=3.0),
    PlainFault("replica slowed", 3.0, slow_replica),
    PlainFault("gateway killed", 1.5, kill_gateway),
    PlainFault("broker killed", 1.0, kill_broker),
    HeldStill("driver held still", _both, weight=2.0),
    HeldStill("driver's JVM held still", _jvm, weight=2.0),
    HeldStill("ticker stopped (the driver's Python held still)", _driver, weight=2.0),
    HeldStill("Python worker held still", CampaignCluster.workers, weight=3.0),
    HeldStill("gateway held still", _gateway, weight=2.0),
    PlainFault("broker held still", 1.5, hold_broker),
    PlainFault("driver killed while a broker hangs", 0.7, kill_driver_while_a_broker_hangs),
)
