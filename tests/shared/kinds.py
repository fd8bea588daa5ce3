"""The faults. Faults of processes are those of `tests.campaigns`."""

from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from subprocess import CalledProcessError

from kafka import TopicPartition

from tests.campaigns.fault import Fault, by_name, pause_randomly
from tests.campaigns.processes import of_processes
from tests.e2e.harness import wait_until
from tests.shared.judge import Place
from tests.shared.stage import GROUPS, LASTING, RENEWED, SESSION_MS, ShareStage

LONGEST_HOLD_S = 1.5 * SESSION_MS / 1000
MOST_PARTITIONS = 12
LOOK_BACK_S = 20.0


def kill_members(stage: ShareStage, random: Random) -> None:
    """Kill one process with SIGKILL. It is started again."""
    random.choice(stage.members.processes).end_and_start()


def hold_members(stage: ShareStage, random: Random) -> None:
    """Stop one process until its sessions and the locks of its records are over."""
    process = random.choice(stage.members.processes)
    pause_randomly(process.signal, random, SESSION_MS / 1000 + 1, LONGEST_HOLD_S)


def move_leaders(stage: ShareStage, random: Random) -> None:
    """Reassign a partition to its replicas in another order, whose first one becomes its leader."""
    topic = random.choice((LASTING, RENEWED, "__share_group_state"))
    with stage.admin() as admin:
        (described,) = admin.describe_topics([topic])
        moved = {}
        for partition in described["partitions"]:
            nodes = [node for node in partition["replica_nodes"] if node != partition["leader_id"]]
            random.shuffle(nodes)
            moved[partition["partition_index"]] = [*nodes, partition["leader_id"]]
        admin.alter_partition_reassignments({TopicPartition(topic, p): n for p, n in moved.items()})
        wait_until(lambda: not admin.list_partition_reassignments(), "the new order of replicas")
        admin.elect_leaders(0, {topic: list(moved)}, raise_errors=False)


def add_partition(stage: ShareStage, random: Random) -> None:
    """Add a partition to the topic that stays, up to a maximum."""
    wanted = stage.producers.partitions[LASTING] + 1
    if wanted > MOST_PARTITIONS:
        make_topic_again(stage, random)
        return
    with stage.admin() as admin:
        admin.create_partitions({LASTING: wanted})
    stage.producers.grow(LASTING)


def make_topic_again(stage: ShareStage, _: Random) -> None:
    """Delete a topic and create another one of its name."""
    stage.make_again(RENEWED)


def reset_offsets(stage: ShareStage, random: Random, *, is_told: bool = True) -> None:
    """Let all members of a group leave. `kafka-share-groups` resets its offsets to those of 20 s ago, and the
    members come back. A partition without a state, which is not reset, begins at its first record. If the
    judge is not told, they are reset to the first records: so none is skipped, and many come twice.
    """
    group = random.choice(list(GROUPS))
    stage.while_empty(group, lambda: _reset(stage, group, is_told=is_told), is_told=is_told)


def _reset(stage: ShareStage, group: str, *, is_told: bool) -> dict[Place, int] | None:
    try:
        said = stage.tools.share_groups(
            *("--reset-offsets", "--group", group, "--all-topics", "--execute"),
            *(_some_time_ago() if is_told else ("--to-earliest",)),
        )
    except CalledProcessError as error:
        if "is not empty" not in error.output:
            raise
        return None  # a member that was killed has its session still
    rows = [line.split() for line in said.splitlines() if line.startswith(group)]
    starts = {
        Place(topic, stage.producers.lives[topic], int(partition)): int(offset)
        for _, topic, partition, offset in rows
    }
    return starts or None


def _some_time_ago() -> tuple[str, str]:
    to = datetime.now(UTC) - timedelta(seconds=LOOK_BACK_S)
    return "--to-datetime", to.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def delete_group(stage: ShareStage, random: Random) -> None:
    """Let all members leave, delete the group by `kafka-share-groups`, and let the members come back."""
    group = random.choice(list(GROUPS))
    stage.while_empty(group, lambda: _delete(stage, group))


def _delete(stage: ShareStage, group: str) -> dict[Place, int] | None:
    said = stage.tools.share_groups("--delete", "--group", group)
    return {} if "was successful" in said else None


AT_BROKERS = by_name(
    Fault("members killed", 3.0, kill_members),
    Fault("members held still beyond their session", 2.0, hold_members),
    Fault("leaders moved", 2.0, move_leaders),
    Fault("partitions added", 1.0, add_partition),
    Fault("topic deleted and made again", 1.5, make_topic_again),
    Fault("offsets reset", 1.5, reset_offsets),
    Fault("group deleted and made again", 1.0, delete_group),
) | of_processes("gateway killed", "broker killed", "broker held still")
"""What concerns groups of the brokers' own coordinators."""
ALL = AT_BROKERS | of_processes(
    "driver's Python killed",
    "driver's JVM killed",
    "replica killed",
    "Python worker killed",
    "driver held still",
)
PLANTED = Fault("offsets reset behind the judge's back", 1.5, partial(reset_offsets, is_told=False))
KINDS = ALL | by_name(PLANTED)
