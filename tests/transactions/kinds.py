"""The faults. Faults of processes are those of `tests.campaigns`."""

import signal
from random import Random

from tests.campaigns.fault import Fault, by_name, pause_randomly
from tests.campaigns.processes import of_processes
from tests.transactions.loops.options import SESSION_TIMEOUT_MS
from tests.transactions.stage import TransactionStage

LONGEST_HOLD_S = 1.5 * SESSION_TIMEOUT_MS / 1000


def kill_instance(stage: TransactionStage, random: Random) -> None:
    """Kill one instance, mostly during a transaction. It is started again."""
    random.choice(stage.instances()).kill()


def hold_instance(stage: TransactionStage, random: Random) -> None:
    """Pause one instance for a while. In half of the cases its session ends meanwhile, so that it continues
    with a transaction and a generation that are over.
    """
    pause_randomly(random.choice(stage.instances()).signal, random, 1.0, LONGEST_HOLD_S)


def kill_follower(stage: TransactionStage, _: Random) -> None:
    """Raise an exception in the thread that reads the markers. The coordinator ends and is restarted."""
    stage.coordinator.end_and_start(lambda: stage.coordinator.signal(signal.SIGUSR1))


REFERENCE = by_name(
    Fault("instance killed", 4.0, kill_instance), Fault("instance held still", 3.0, hold_instance)
) | of_processes("broker killed", "broker held still")
"""The faults that are also tried with Kafka's own coordinator."""
KINDS = (
    REFERENCE
    | by_name(Fault("follower's thread killed", 1.0, kill_follower))
    | of_processes(
        "driver's Python killed",
        "driver's JVM killed",
        "Python worker killed",
        "driver held still",
        "gateway killed",
        "gateway held still",
    )
)
