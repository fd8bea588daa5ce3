"""The faults. Those that the fault campaign has, too, are its own."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from subprocess import CalledProcessError

from kafka import TopicPartition

from tests.e2e.harness import wait_until
from tests.faults.campaign.cluster import CampaignCluster
from tests.faults.campaign.kinds.fault import Fault, FaultOutcome, standing_still
from tests.faults.campaign.kinds.processes import PROCESSES
from tests.shared.judge import Place
from tests.shared.stage import GROUPS, LASTING, RENEWED, SESSION_MS, Stage

LONGEST_HOLD_S = 1.5 * SESSION_MS / 1000
MOST_PARTITIONS = 12
LOOK_BACK_S = 20.0


@dataclass(frozen=True)
class MemberKilled:
    """SIGKILL to one process. It is started again."""

    name: str = "members killed"
    weight: float = 3.0

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        assert isinstance(world, Stage)
        keeper = random.choice(world.members.keepers)
        starts = keeper.starts
        keeper.kill()
        keeper.wait_until_started(starts)
        return FaultOutcome.WENT_ON


@dataclass(frozen=True)
class MemberHeldStill:
    """SIGSTOP to one process until its sessions and the locks of its records are over, and SIGCONT."""

    name: str = "members held still beyond their session"
    weight: float = 2.0

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        assert isinstance(world, Stage)
        with standing_still(random.choice(world.members.keepers).signal):
            time.sleep(random.uniform(SESSION_MS / 1000 + 1, LONGEST_HOLD_S))
        return FaultOutcome.WENT_ON


@dataclass(frozen=True)
class LeaderMoved:
    """A partition goes to its replicas in another order, whose first one becomes its leader."""

    name: str = "leaders moved"
    weight: float = 2.0

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        assert isinstance(world, Stage)
        topic = random.choice((LASTING, RENEWED, "__share_group_state"))
        with world.admin() as admin:
            (described,) = admin.describe_topics([topic])
            moved = {}
            for partition in described["partitions"]:
                nodes = [node for node in partition["replica_nodes"] if node != partition["leader_id"]]
                random.shuffle(nodes)
                moved[partition["partition_index"]] = [*nodes, partition["leader_id"]]
            admin.alter_partition_reassignments({TopicPartition(topic, p): n for p, n in moved.items()})
            wait_until(lambda: not admin.list_partition_reassignments(), "the new order of replicas")
            admin.elect_leaders(0, {topic: list(moved)}, raise_errors=False)
        return FaultOutcome.WENT_ON


@dataclass(frozen=True)
class PartitionsAdded:
    """The topic that stays gets one partition more, up to a number."""

    name: str = "partitions added"
    weight: float = 1.0

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        assert isinstance(world, Stage)
        wanted = world.producers.partitions[LASTING] + 1
        if wanted > MOST_PARTITIONS:
            return TopicMadeAgain().strike(world, random)
        with world.admin() as admin:
            admin.create_partitions({LASTING: wanted})
        world.producers.grow(LASTING)
        return FaultOutcome.WENT_ON


@dataclass(frozen=True)
class TopicMadeAgain:
    """A topic is deleted, and another one of its name is made."""

    name: str = "topic deleted and made again"
    weight: float = 1.5

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        assert isinstance(world, Stage)
        world.make_again(RENEWED)
        return FaultOutcome.WENT_ON


@dataclass(frozen=True)
class OffsetsReset:
    """All members of a group leave, `kafka-share-groups` resets its offsets to those of 20 s ago, and the
    members come back. A partition without a state, which is not reset, begins at its first record. If the
    judge is not told, they are reset to the first records: so none is skipped, and many come twice.
    """

    name: str = "offsets reset"
    weight: float = 1.5
    is_told: bool = True

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        assert isinstance(world, Stage)
        group = random.choice(list(GROUPS))
        world.while_empty(group, lambda: self._reset(world, group), is_told=self.is_told)
        return FaultOutcome.WENT_ON

    def _reset(self, world: Stage, group: str) -> dict[Place, int] | None:
        try:
            said = world.tools.share_groups(
                *("--reset-offsets", "--group", group, "--all-topics", "--execute"),
                *(_some_time_ago() if self.is_told else ("--to-earliest",)),
            )
        except CalledProcessError as error:
            if "is not empty" not in error.output:
                raise
            return None  # a member that was killed has its session still
        rows = [line.split() for line in said.splitlines() if line.startswith(group)]
        starts = {
            Place(topic, world.producers.lives[topic], int(partition)): int(offset)
            for _, topic, partition, offset in rows
        }
        return starts or None


def _some_time_ago() -> tuple[str, str]:
    to = datetime.now(UTC) - timedelta(seconds=LOOK_BACK_S)
    return "--to-datetime", to.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class GroupDeleted:
    """All members of a group leave, `kafka-share-groups` deletes it, and the members come back: it begins
    anew.
    """

    name: str = "group deleted and made again"
    weight: float = 1.0

    def strike(self, world: CampaignCluster, random: Random) -> FaultOutcome:
        assert isinstance(world, Stage)
        group = random.choice(list(GROUPS))
        world.while_empty(group, lambda: self._delete(world, group))
        return FaultOutcome.WENT_ON

    def _delete(self, world: Stage, group: str) -> dict[Place, int] | None:
        said = world.tools.share_groups("--delete", "--group", group)
        return {} if "was successful" in said else None


_OF_CAMPAIGN: dict[str, Fault] = {fault.name: fault for fault in PROCESSES}
_OF_GROUPS: tuple[Fault, ...] = (
    MemberKilled(),
    MemberHeldStill(),
    LeaderMoved(),
    PartitionsAdded(),
    TopicMadeAgain(),
    OffsetsReset(),
    GroupDeleted(),
)
AT_BROKERS: tuple[Fault, ...] = (
    *_OF_GROUPS,
    *(_OF_CAMPAIGN[name] for name in ("gateway killed", "broker killed", "broker held still")),
)
"""What concerns groups of the brokers' own coordinators."""
ALL: tuple[Fault, ...] = (
    *AT_BROKERS,
    *(
        _OF_CAMPAIGN[name]
        for name in (
            "driver's Python killed",
            "driver's JVM killed",
            "replica killed",
            "Python worker killed",
            "driver held still",
        )
    ),
)
PLANTED = OffsetsReset("offsets reset behind the judge's back", is_told=False)
KINDS: dict[str, Fault] = {fault.name: fault for fault in (*ALL, PLANTED)}
"""By name."""
