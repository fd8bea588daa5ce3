"""Processes that are killed, stand still or are slow: the driver, its JVM, Python workers, the replica, the
gateway, a broker.
"""

import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from tests.campaigns.fault import Fault, hold_s, standing_still
from tests.campaigns.stage import START_TIMEOUT_S, Stage, signal_all
from tests.e2e.harness import wait_until

# The share of a slowed process is one such slice of ten.
SLICE_S = 0.02

AnyStage = Stage[Any, Any]
Pids = Callable[[AnyStage], Sequence[int]]


def kill(stage: AnyStage, _: Random, pids: Pids) -> None:
    """SIGKILL."""
    signal_all(list(pids(stage)), signal.SIGKILL)


def kill_driver(stage: AnyStage, _: Random) -> None:
    """SIGKILL. The supervisor starts it again."""
    starts = stage.coordinator.starts
    stage.coordinator.kill()
    stage.coordinator.wait_until_started(starts, timeout_s=120)


def end_jvm(stage: AnyStage, _: Random, number: signal.Signals) -> None:
    """SIGKILL, or SIGSTOP until the watchdog kills it. The same process starts another JVM."""
    machine = stage.coordinator  # it is not ready meanwhile, so it is not looked for again
    driver, starts, jvm = machine.pid, machine.starts, stage.jvm(machine)
    signal_all([jvm], number)
    wait_until(lambda: stage.jvm(machine) != jvm, "another JVM", START_TIMEOUT_S)
    assert (machine.pid, machine.starts) == (driver, starts)


def hold(stage: AnyStage, random: Random, pids: Pids) -> None:
    """SIGSTOP, and SIGCONT some seconds later."""
    with standing_still(partial(signal_all, list(pids(stage)))):
        time.sleep(hold_s(random))


def kill_replica(stage: AnyStage, _: Random) -> None:
    """SIGKILL. The coordinator seeds another one."""
    replica = stage.replica()
    signal_all([replica], signal.SIGKILL)
    wait_until(lambda: stage.replica() != replica, "another replica", START_TIMEOUT_S)


def slow_replica(stage: AnyStage, random: Random) -> None:
    """It runs for a tenth of the time. The query overtakes it, and each answer has two copies at once."""
    replica = [stage.replica()]
    until_s = time.monotonic() + 2 * hold_s(random)
    while time.monotonic() < until_s:
        with standing_still(partial(signal_all, replica)):
            time.sleep(9 * SLICE_S)
        time.sleep(SLICE_S)


def kill_gateway(stage: AnyStage, _: Random) -> None:
    starts = stage.gateway.starts
    stage.gateway.kill()
    stage.gateway.wait_until_started(starts)


def kill_broker(stage: AnyStage, random: Random) -> None:
    """One of three, with SIGKILL, and started again."""
    node = random.choice(stage.brokers.nodes)
    stage.brokers.kill(node)
    time.sleep(random.uniform(0, 3))
    stage.brokers.restart(node)
    stage.brokers.wait_until_in_sync()


def hold_broker(stage: AnyStage, random: Random) -> None:
    """One of three. From 3 s on the others take it for lost; it comes back as one that does not know it."""
    node = random.choice(stage.brokers.nodes)
    with stage.brokers.holding(node):
        time.sleep(random.uniform(1, 8))
    stage.brokers.wait_until_in_sync()


def kill_driver_while_a_broker_hangs(stage: AnyStage, random: Random) -> None:
    """The coordinator is started again by the two others alone."""
    node = random.choice(stage.brokers.nodes)
    with stage.brokers.holding(node):
        starts = stage.coordinator.starts
        stage.coordinator.kill()
        stage.coordinator.wait_until_started(starts)
        stage.wait_for_progress()
    stage.brokers.wait_until_in_sync()


def _driver(stage: AnyStage) -> list[int]:
    return [stage.driver()]


def _jvm(stage: AnyStage) -> list[int]:
    return [stage.jvm()]


def _both(stage: AnyStage) -> list[int]:
    return [stage.driver(), stage.jvm()]


def _replica(stage: AnyStage) -> list[int]:
    return [stage.replica()]


def _gateway(stage: AnyStage) -> list[int]:
    assert stage.gateway.pid is not None
    return [stage.gateway.pid]


PROCESSES: tuple[Fault[AnyStage], ...] = (
    Fault("driver's Python killed", 1.0, kill_driver),
    Fault("driver's JVM killed", 1.0, partial(end_jvm, number=signal.SIGKILL)),
    Fault("driver's JVM hangs", 0.5, partial(end_jvm, number=signal.SIGSTOP)),
    Fault("Python worker killed", 3.0, partial(kill, pids=Stage.workers)),
    Fault("replica killed", 3.0, kill_replica),
    Fault("replica held still", 3.0, partial(hold, pids=_replica)),
    Fault("replica slowed", 3.0, slow_replica),
    Fault("gateway killed", 1.5, kill_gateway),
    Fault("broker killed", 1.0, kill_broker),
    Fault("driver held still", 2.0, partial(hold, pids=_both)),
    Fault("driver's JVM held still", 2.0, partial(hold, pids=_jvm)),
    Fault("ticker stopped (the driver's Python held still)", 2.0, partial(hold, pids=_driver)),
    Fault("Python worker held still", 3.0, partial(hold, pids=Stage.workers)),
    Fault("gateway held still", 2.0, partial(hold, pids=_gateway)),
    Fault("broker held still", 1.5, hold_broker),
    Fault("driver killed while a broker hangs", 0.7, kill_driver_while_a_broker_hangs),
)
BY_NAME = {fault.name: fault for fault in PROCESSES}
