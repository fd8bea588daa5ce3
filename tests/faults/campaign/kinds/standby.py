"""A process with a coordinator is lost or sleeps, and the standby takes over."""

import os
import signal
import time
from contextlib import suppress
from functools import partial
from random import Random

from cli.processes.child import family
from kafka_why.contract.service import ServicePhase
from tests.campaigns.fault import Fault, paused
from tests.campaigns.restarting_process import LOST_ITS_TOPICS, RestartingProcess
from tests.campaigns.stage import START_TIMEOUT_S, signal_all
from tests.e2e.harness import running, wait_until
from tests.faults.campaign.stage import FaultStage


def kill_active(stage: FaultStage, _: Random) -> None:
    """Kill the whole coordinator: its Python, its JVM and its workers. It comes back as the
    standby after the takeover, because a restarted one claims the topics of its own folder without a wait.
    """
    active, standby = both(stage)
    with active.held_down(partial(signal_family, active, signal.SIGKILL)):
        wait_until(lambda: stage.phase(standby) is ServicePhase.READY, "the takeover", START_TIMEOUT_S)


def let_active_sleep(stage: FaultStage, _: Random) -> None:
    """Stop the whole coordinator until the standby has taken over. When it wakes up, it ends."""
    active, standby = both(stage)
    ends, starts = len(active.ends), active.starts
    with paused(partial(signal_family, active)):
        wait_until(lambda: stage.phase(standby) is ServicePhase.READY, "the takeover", START_TIMEOUT_S)
    end = active.wait_for_end(ends, START_TIMEOUT_S)
    assert end.exit_code == LOST_ITS_TOPICS, end
    active.wait_until_started(starts)


def let_replica_sleep(stage: FaultStage, random: Random) -> None:
    """Stop the replica while the coordinator is killed and the standby takes over. When it wakes up,
    it answers what it had read before it finds that its owner has ended.
    """
    active, standby = both(stage)
    replica = stage.replica_pid()
    kill_the_rest = partial(signal_family, active, signal.SIGKILL, spared=replica)
    with paused(partial(signal_all, [replica])), active.held_down(kill_the_rest):
        wait_until(lambda: stage.phase(standby) is ServicePhase.READY, "the takeover", START_TIMEOUT_S)
        time.sleep(random.uniform(0, 3))
        signal_all([replica], signal.SIGCONT)
        wait_until(lambda: not running([replica]), "the end of the replica", START_TIMEOUT_S)


def kill_standby(stage: FaultStage, _: Random) -> None:
    standby = both(stage)[1]
    standby.end_and_start(partial(signal_family, standby, signal.SIGKILL))


def hold_standby(stage: FaultStage, random: Random) -> None:
    """Stop the standby, which the active coordinator does not need."""
    _, standby = both(stage)
    with paused(partial(signal_family, standby)):
        time.sleep(random.uniform(1, 10))


def both(stage: FaultStage) -> tuple[RestartingProcess, RestartingProcess]:
    """Return the coordinator that works and the one that waits, when they do."""
    found: list[RestartingProcess] = []

    def are_there() -> bool:
        phases = {stage.phase(process): process for process in stage.coordinators}
        found[:] = [phases[phase] for phase in (ServicePhase.READY, ServicePhase.STANDBY) if phase in phases]
        return len(found) == 2

    wait_until(are_there, "one that works and one that waits", START_TIMEOUT_S)
    return found[0], found[1]


def signal_family(process: RestartingProcess, number: signal.Signals, spared: int | None = None) -> None:
    """Send it to the process and all below it but one, as if it came to the whole process."""
    seen = {spared}
    assert process.pid is not None
    while fresh := set(family(process.pid)) - seen:
        for pid in fresh:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        seen |= fresh


STANDBY = (
    Fault("coordinator's process lost, the standby takes over", 1.0, kill_active),
    Fault("coordinator sleeps until the standby has taken over", 1.0, let_active_sleep),
    Fault("replica sleeps until the standby has taken over", 2.0, let_replica_sleep),
    Fault("standby killed", 1.0, kill_standby),
    Fault("standby held still", 0.5, hold_standby),
)
