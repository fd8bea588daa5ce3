"""A machine with a coordinator is lost or sleeps, and the standby takes over."""

import os
import signal
from contextlib import suppress
from functools import partial
from random import Random

from cli.processes.family import family
from tests.e2e.harness import running, wait_until
from tests.faults.campaign.cluster import START_TIMEOUT_S, CampaignCluster, signal_all
from tests.faults.campaign.keeper import LOST_ITS_TOPICS, Keeper
from tests.faults.campaign.kinds.fault import PlainFault, standing_still

READY, STANDBY_PHASE = "ready", "standby"


def kill_active(world: CampaignCluster, _: Random) -> None:
    """SIGKILL of the whole coordinator: its Python, its JVM and its workers. It comes back as the
    standby after the takeover, because a restarted one claims the topics of its own folder without a wait.
    """
    active, standby = both(world)
    with active.held_down(partial(signal_family, active, signal.SIGKILL)):
        wait_until(lambda: world.phase(standby) == READY, "the takeover", START_TIMEOUT_S)


def let_active_sleep(world: CampaignCluster, _: Random) -> None:
    """SIGSTOP of the whole coordinator until the standby has taken over. When it wakes up, it ends."""
    active, standby = both(world)
    ends, starts = len(active.ends), active.starts
    with standing_still(partial(signal_family, active)):
        wait_until(lambda: world.phase(standby) == READY, "the takeover", START_TIMEOUT_S)
    end = active.wait_for_end(ends, START_TIMEOUT_S)
    assert end.exit_code == LOST_ITS_TOPICS, end
    active.wait_until_started(starts)


def let_replica_sleep(world: CampaignCluster, random: Random) -> None:
    """The replica stands still while the coordinator is killed and the standby takes over. When it wakes up,
    it answers what it had read before it finds that its owner has ended.
    """
    active, standby = both(world)
    replica = world.replica()
    kill_the_rest = partial(signal_family, active, signal.SIGKILL, spared=replica)
    with standing_still(partial(signal_all, [replica])), active.held_down(kill_the_rest):
        wait_until(lambda: world.phase(standby) == READY, "the takeover", START_TIMEOUT_S)
        world.pause(random.uniform(0, 3))
        signal_all([replica], signal.SIGCONT)
        wait_until(lambda: not running([replica]), "the end of the replica", START_TIMEOUT_S)


def kill_standby(world: CampaignCluster, _: Random) -> None:
    standby = both(world)[1]
    starts = standby.starts
    signal_family(standby, signal.SIGKILL)
    standby.wait_until_started(starts)


def hold_standby(world: CampaignCluster, random: Random) -> None:
    """The active one does not need it."""
    _, standby = both(world)
    with standing_still(partial(signal_family, standby)):
        world.pause(random.uniform(1, 10))


def both(world: CampaignCluster) -> tuple[Keeper, Keeper]:
    """The coordinator that works and the one that waits, when they do."""
    found: list[Keeper] = []

    def are_there() -> bool:
        phases = {world.phase(machine): machine for machine in world.machines}
        found[:] = [phases[phase] for phase in (READY, STANDBY_PHASE) if phase in phases]
        return len(found) == 2

    wait_until(are_there, "one that works and one that waits", START_TIMEOUT_S)
    return found[0], found[1]


def signal_family(keeper: Keeper, number: signal.Signals, spared: int | None = None) -> None:
    """Send it to the process and all below it but one, as if it came to the whole machine."""
    seen = {spared}
    assert keeper.pid is not None
    while fresh := set(family(keeper.pid)) - seen:
        for pid in fresh:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        seen |= fresh


STANDBY = (
    PlainFault("coordinator's machine lost, the standby takes over", 1.0, kill_active),
    PlainFault("coordinator sleeps until the standby has taken over", 1.0, let_active_sleep),
    PlainFault("replica sleeps until the standby has taken over", 2.0, let_replica_sleep),
    PlainFault("standby killed", 1.0, kill_standby),
    PlainFault("standby held still", 0.5, hold_standby),
)
