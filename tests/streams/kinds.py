"""The faults. Faults of processes are those of `tests.campaigns`."""

from functools import partial
from random import Random

from tests.campaigns.fault import Fault, by_name, pause_randomly
from tests.campaigns.processes import HOLD_S, of_processes
from tests.e2e.harness import wait_until
from tests.streams.stage import SESSION_MS, StreamsStage
from tests.transactions.applications import PARTITIONS

BEYOND_SESSION_S = SESSION_MS / 1000 + 1, 1.5 * SESSION_MS / 1000


def kill_instance(stage: StreamsStage, _: Random) -> None:
    """Kill the dynamic member with SIGKILL, and start it again while its old session continues. A static
    member cannot join again before its session is over.
    """
    instance = stage.word_count.running[-1]
    instance.kill()
    instance.start()


def hold_instance(stage: StreamsStage, random: Random, seconds: tuple[float, float]) -> None:
    """Pause an instance beyond its session. Then it continues with tasks and a transaction that it lost."""
    pause_randomly(random.choice(stage.word_count.running).java.signal, random, *seconds)


def close_instance(stage: StreamsStage, random: Random) -> None:
    """Let an instance leave. The stage starts it again when the others have its tasks."""
    random.choice(stage.word_count.running).close()


def add_instance(stage: StreamsStage, _: Random) -> None:
    """Start another instance. The stage closes it when it has its share of the tasks."""
    stage.word_count.all_instances[-1].start()


def roll_instance(stage: StreamsStage, _: Random) -> None:
    """Close the static member, which remains in the group, and start it again."""
    instance = stage.word_count.all_instances[0]
    instance.close(leaves=False)
    instance.start()


def forget_to_commit(stage: StreamsStage, random: Random) -> None:
    """Kill the dynamic member while it runs with at-least-once processing and without commits, so that words
    are counted again.
    """
    instance = stage.word_count.running[-1]
    instance.close()
    instance.start(processing_guarantee="at_least_once", commit_interval_ms="600000")
    stage.wait_for_progress()
    # More than is ever under way, so some of it came from this instance.
    enough = stage.word_count.seen + 2 * stage.word_count.backlog * PARTITIONS
    wait_until(lambda: stage.word_count.seen > enough, "words that the instance has counted")
    kill_instance(stage, random)


REFERENCE = by_name(
    Fault("instance killed", 3.0, kill_instance),
    Fault("instance held still", 2.0, partial(hold_instance, seconds=HOLD_S)),
    Fault("instance held still beyond its session", 2.0, partial(hold_instance, seconds=BEYOND_SESSION_S)),
    Fault("instance closed", 2.0, close_instance),
    Fault("instance added", 2.0, add_instance),
    Fault("static instance rolled", 2.0, roll_instance),
) | of_processes("broker killed")
"""The faults that are also tried with Kafka's own coordinator."""
ALL = REFERENCE | of_processes(
    "gateway killed",
    "driver's Python killed",
    "driver's JVM killed",
    "replica killed",
    "Python worker killed",
)
PLANTED = Fault("instance killed that is not exactly once", 1.0, forget_to_commit)
KINDS = ALL | by_name(PLANTED)
