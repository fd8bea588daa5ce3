"""Processes that are killed, stand still or are slow: the driver, its JVM, Python workers, the replica, the
gateway, a broker.
"""

import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from kafka_why.contract.service import ServicePhase
from tests.campaigns.fault import Fault, by_name, standing_still
from tests.campaigns.stage import START_TIMEOUT_S, Stage, signal_all
from tests.e2e.harness import wait_until

# The share of a slowed process is one such slice of ten.
SLICE_S = 0.02

Pids = Callable[[Stage], Sequence[int]]


def hold_s(random: Random) -> float:
    """Return a time to hold something: shorter than a session, or members could not keep their word."""
    return random.uniform(0.5, 5.0)


def kill_workers(stage: Stage, _: Random) -> None:
    """Kill Python workers with SIGKILL."""
    signal_all(stage.workers(), signal.SIGKILL)


def kill_driver(stage: Stage, _: Random) -> None:
    """Kill the driver with SIGKILL. The supervisor starts it again."""
    stage.coordinator.end_and_start()


def end_jvm(stage: Stage, _: Random, number: signal.Signals) -> None:
    """Kill the JVM, or stop it until the watchdog kills it. The same process starts another JVM."""
    wait_until(lambda: stage.phase(stage.coordinator) is ServicePhase.READY, "a coordinator", START_TIMEOUT_S)
    machine = stage.coordinator  # it is not ready meanwhile, so it is not looked for again
    driver, starts, jvm = machine.pid, machine.starts, stage.jvm(machine)
    signal_all([jvm], number)
    wait_until(lambda: stage.jvm(machine) != jvm, "another JVM", START_TIMEOUT_S)
    assert (machine.pid, machine.starts) == (driver, starts)


def hold(stage: Stage, random: Random, pids: Pids) -> None:
    """Stop the processes with SIGSTOP and continue them some seconds later."""
    with standing_still(partial(signal_all, list(pids(stage)))):
        time.sleep(hold_s(random))


def kill_replica(stage: Stage, _: Random) -> None:
    """Kill the replica with SIGKILL. The coordinator seeds another one."""
    replica = stage.replica()
    signal_all([replica], signal.SIGKILL)
    wait_until(lambda: stage.replica() != replica, "another replica", START_TIMEOUT_S)


def slow_replica(stage: Stage, random: Random) -> None:
    """Let the replica run for a tenth of the time. The query overtakes it, and each answer has two copies at
    once.
    """
    replica = [stage.replica()]
    until_s = time.monotonic() + 2 * hold_s(random)
    while time.monotonic() < until_s:
        with standing_still(partial(signal_all, replica)):
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
    """Stop one of the three brokers. After 3 s the others fence it, and it returns unaware of that."""
    node = random.choice(stage.brokers.nodes)
    with stage.brokers.holding(node):
        time.sleep(random.uniform(1, 8))
    stage.brokers.wait_until_in_sync()


def kill_driver_while_a_broker_hangs(stage: Stage, random: Random) -> None:
    """Kill the driver while a broker hangs: the coordinator starts with the two others alone."""
    node = random.choice(stage.brokers.nodes)
    with stage.brokers.holding(node):
        stage.coordinator.end_and_start()
        stage.wait_for_progress()
    stage.brokers.wait_until_in_sync()


def _gateway(stage: Stage) -> list[int]:
    assert stage.gateway.pid is not None
    return [stage.gateway.pid]


PROCESSES = by_name(
    Fault("driver's Python killed", 1.0, kill_driver),
    Fault("driver's JVM killed", 1.0, partial(end_jvm, number=signal.SIGKILL)),
    Fault("driver's JVM hangs", 0.5, partial(end_jvm, number=signal.SIGSTOP)),
    Fault("Python worker killed", 3.0, kill_workers),
    Fault("replica killed", 3.0, kill_replica),
    Fault("replica held still", 3.0, partial(hold, pids=lambda it: [it.replica()])),
    Fault("replica slowed", 3.0, slow_replica),
    Fault("gateway killed", 1.5, kill_gateway),
    Fault("broker killed", 1.0, kill_broker),
    Fault("driver held still", 2.0, partial(hold, pids=lambda it: [it.driver(), it.jvm()])),
    Fault("driver's JVM held still", 2.0, partial(hold, pids=lambda it: [it.jvm()])),
    Fault(
        "ticker stopped (the driver's Python held still)", 2.0, partial(hold, pids=lambda it: [it.driver()])
    ),
    Fault("Python worker held still", 3.0, partial(hold, pids=Stage.workers)),
    Fault("gateway held still", 2.0, partial(hold, pids=_gateway)),
    Fault("broker held still", 1.5, hold_broker),
    Fault("driver killed while a broker hangs", 0.7, kill_driver_while_a_broker_hangs),
)


def of_processes(*names: str) -> dict[str, Fault]:
    """Return these kinds of `PROCESSES`."""
    return {name: PROCESSES[name] for name in names}
