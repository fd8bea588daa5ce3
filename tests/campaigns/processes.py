"""Faults of processes, which are killed, paused or slowed: driver, JVM, Python workers, replica, gateway,
broker.
"""

import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from kafka_why.contract.service import ServicePhase
from tests.campaigns.fault import Fault, by_name, pause_randomly, paused
from tests.campaigns.stage import START_TIMEOUT_S, Stage, signal_all
from tests.e2e.harness import wait_until

# A slowed process runs in one of ten such slices.
SLICE_S = 0.02
HOLD_S = 0.5, 5.0
"""Shorter than a session, so that members do not expire."""

Pids = Callable[[Stage], Sequence[int]]


def kill_workers(stage: Stage, _: Random) -> None:
    """Kill Python workers with SIGKILL."""
    signal_all(stage.worker_pids(), signal.SIGKILL)


def kill_driver(stage: Stage, _: Random) -> None:
    """Kill the driver with SIGKILL. The supervisor starts it again."""
    stage.coordinator.end_and_start()


def end_jvm(stage: Stage, _: Random, number: signal.Signals) -> None:
    """Kill the JVM, or stop it until the watchdog kills it. The same process starts another JVM."""
    wait_until(lambda: stage.phase(stage.coordinator) is ServicePhase.READY, "a coordinator", START_TIMEOUT_S)
    process = stage.coordinator  # it is not ready meanwhile, so it is not looked for again
    driver, starts, jvm = process.pid, process.starts, stage.jvm_pid(process)
    signal_all([jvm], number)
    wait_until(lambda: stage.jvm_pid(process) != jvm, "another JVM", START_TIMEOUT_S)
    assert (process.pid, process.starts) == (driver, starts)


def hold(stage: Stage, random: Random, pids: Pids) -> None:
    """Pause the processes with SIGSTOP, and continue them some seconds later."""
    pause_randomly(partial(signal_all, list(pids(stage))), random, *HOLD_S)


def kill_replica(stage: Stage, _: Random) -> None:
    """Kill the replica with SIGKILL. The coordinator seeds another one."""
    replica = stage.replica_pid()
    signal_all([replica], signal.SIGKILL)
    wait_until(lambda: stage.replica_pid() != replica, "another replica", START_TIMEOUT_S)


def slow_replica(stage: Stage, random: Random) -> None:
    """Let the replica run for a tenth of the time, so that the query overtakes it."""
    replica = [stage.replica_pid()]
    until_s = time.monotonic() + 2 * random.uniform(*HOLD_S)
    while time.monotonic() < until_s:
        with paused(partial(signal_all, replica)):
            time.sleep(9 * SLICE_S)
        time.sleep(SLICE_S)


def kill_gateway(stage: Stage, _: Random) -> None:
    stage.gateway.end_and_start()


def kill_broker(stage: Stage, random: Random) -> None:
    """Kill one of the three brokers with SIGKILL and start it again."""
    node = random.choice(stage.brokers.nodes)
    stage.brokers.kill(node)
    time.sleep(random.uniform(0, 3))
    stage.brokers.restart(node)
    stage.brokers.wait_until_in_sync()


def hold_broker(stage: Stage, random: Random) -> None:
    """Pause one of the three brokers. After 3 s the others fence it, and it returns unaware of that."""
    node = random.choice(stage.brokers.nodes)
    with stage.brokers.paused(node):
        time.sleep(random.uniform(1, 8))
    stage.brokers.wait_until_in_sync()


def kill_driver_while_a_broker_hangs(stage: Stage, random: Random) -> None:
    """Kill the driver while a broker hangs: the coordinator starts with the two others alone."""
    node = random.choice(stage.brokers.nodes)
    with stage.brokers.paused(node):
        stage.coordinator.end_and_start()
        stage.wait_for_progress()
    stage.brokers.wait_until_in_sync()


def _gateway(stage: Stage) -> list[int]:
    return [stage.gateway.wait_until_started()]


PROCESSES = by_name(
    Fault("driver's Python killed", 1.0, kill_driver),
    Fault("driver's JVM killed", 1.0, partial(end_jvm, number=signal.SIGKILL)),
    Fault("driver's JVM hangs", 0.5, partial(end_jvm, number=signal.SIGSTOP)),
    Fault("Python worker killed", 3.0, kill_workers),
    Fault("replica killed", 3.0, kill_replica),
    Fault("replica held still", 3.0, partial(hold, pids=lambda it: [it.replica_pid()])),
    Fault("replica slowed", 3.0, slow_replica),
    Fault("gateway killed", 1.5, kill_gateway),
    Fault("broker killed", 1.0, kill_broker),
    Fault("driver held still", 2.0, partial(hold, pids=lambda it: [it.driver_pid(), it.jvm_pid()])),
    Fault("driver's JVM held still", 2.0, partial(hold, pids=lambda it: [it.jvm_pid()])),
    Fault(
        "ticker stopped (the driver's Python held still)",
        2.0,
        partial(hold, pids=lambda it: [it.driver_pid()]),
    ),
    Fault("Python worker held still", 3.0, partial(hold, pids=Stage.worker_pids)),
    Fault("gateway held still", 2.0, partial(hold, pids=_gateway)),
    Fault("broker held still", 1.5, hold_broker),
    Fault("driver killed while a broker hangs", 0.7, kill_driver_while_a_broker_hangs),
)


def of_processes(*names: str) -> dict[str, Fault]:
    """Return the faults of `PROCESSES` with these names."""
    return {name: PROCESSES[name] for name in names}
