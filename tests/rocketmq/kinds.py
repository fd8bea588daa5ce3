"""The faults. Faults of the coordinator's processes are those of `tests.campaigns`."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from random import Random

from tests.campaigns.fault import Fault, by_name, pause_randomly, paused
from tests.campaigns.processes import of_processes
from tests.rocketmq.load import Machine
from tests.rocketmq.stage import BROKER, RocketMqStage

Pid = Callable[[RocketMqStage, Random], int | None]
LONG_S = 150.0
"""RocketMQ closes a silent connection after 120 to 130 s, and then clients notice within 20 s."""
LATE_S = 20.0
"""The time after LONG_S in which the other consumers have to receive a new message of each queue."""


def kill_consumers(stage: RocketMqStage, random: Random) -> None:
    """SIGKILL to one JVM, which is started again some seconds later."""
    machine = _machine(stage, random)
    machine.kill()
    time.sleep(random.uniform(0, 5))
    machine.start()


def hold(stage: RocketMqStage, random: Random, pid: Pid) -> None:
    """SIGSTOP, and SIGCONT some seconds later."""
    held = pid(stage, random)
    assert held is not None
    pause_randomly(partial(os.kill, held), random, 1, 8)


def hold_consumers_long(stage: RocketMqStage, random: Random) -> None:
    """SIGSTOP to one JVM for LONG_S. Then the other one reads all queues, before SIGCONT."""
    machine = _machine(stage, random)
    with paused(partial(os.kill, machine.pid)):
        time.sleep(LONG_S)
        stage.load.wait_for_progress(held=machine, timeout_s=LATE_S)


def hold_gateway_long(stage: RocketMqStage, random: Random) -> None:
    """SIGSTOP to one of two for LONG_S. Then all clients are at the other one, before SIGCONT."""
    gateway = random.choice(stage.gateways)
    with paused(gateway.signal):
        time.sleep(LONG_S)
        stage.load.wait_for_progress(timeout_s=LATE_S)


def kill_broker(stage: RocketMqStage, random: Random) -> None:
    """SIGKILL. It is started again on the same folder."""
    broker = stage.cluster.brokers[BROKER]
    broker.kill()
    time.sleep(random.uniform(0, 3))
    broker.start()


def kill_name_server(stage: RocketMqStage, random: Random) -> None:
    """SIGKILL. The next one knows no broker until that registers itself again, within 30 s."""
    stage.cluster.name_server.kill()
    time.sleep(random.uniform(0, 3))
    stage.cluster.name_server.start()


def kill_gateway(stage: RocketMqStage, random: Random) -> None:
    """SIGKILL to one of two. It is started again at once."""
    gateway = random.choice(stage.gateways)
    gateway.end_and_start()
    stage.wait_until_ready(gateway)


def stop_gateway(stage: RocketMqStage, random: Random) -> None:
    """SIGTERM to one of two, which drains. It is started again at once."""
    gateway = random.choice(stage.gateways)
    gateway.end_and_start(partial(gateway.signal, signal.SIGTERM))
    stage.wait_until_ready(gateway)


def _machine(stage: RocketMqStage, random: Random) -> Machine:
    return random.choice(stage.load.machines)


PLAIN = by_name(
    Fault("consumers killed", 3.0, kill_consumers),
    Fault("consumers held still", 2.0, partial(hold, pid=lambda stage, random: _machine(stage, random).pid)),
    Fault("consumers held still for 150 s", 0.2, hold_consumers_long),
    Fault("RocketMQ broker killed", 1.5, kill_broker),
    Fault("RocketMQ broker held still", 1.5, partial(hold, pid=lambda it, _: it.cluster.brokers[BROKER].pid)),
    Fault("name server killed", 1.0, kill_name_server),
    Fault("name server held still", 1.0, partial(hold, pid=lambda it, _: it.cluster.name_server.pid)),
)
"""The faults that clients without gateways have, too."""
KINDS = (
    PLAIN
    | by_name(
        Fault("a gateway killed", 3.0, kill_gateway),
        Fault("a gateway stopped", 1.0, stop_gateway),
        Fault(
            "a gateway held still", 2.0, partial(hold, pid=lambda it, random: random.choice(it.gateways).pid)
        ),
        Fault("a gateway held still for 150 s", 0.2, hold_gateway_long),
    )
    | of_processes(
        "driver's Python killed",
        "driver's JVM killed",
        "replica killed",
        "replica held still",
        "Python worker killed",
        "driver held still",
    )
)
