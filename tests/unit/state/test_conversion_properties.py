"""Properties of every log in which clients move between the classic protocol and the consumer protocol.

The invariants are checked after each step of a play, what the clients use after each request, and the offsets
at each conversion (`tests.harness.mixed_log`).
"""

from hypothesis import example, given
from hypothesis import strategies as st

from kafka_why.contract.kafka.history import ConsumerGroupState, GroupState
from state.config import CoordinatorConfig, MigrationPolicy, ModernGroupConfig
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from tests.harness import batches
from tests.harness.consumer_clients import Consumer
from tests.harness.examples import examples
from tests.harness.mixed_log import MixedLog
from tests.harness.random_log import GROUPS

# A session ends after 9 rounds of silence. A rebalance that waits for such a member follows.
ROUNDS = 50

seeds = st.integers(0, 2**32 - 1)
configs = st.builds(
    CoordinatorConfig,
    group_initial_rebalance_delay_ms=st.sampled_from((3_000, 0)),
    group_consumer=st.builds(ModernGroupConfig, assignment_interval_ms=st.sampled_from((1_000, 0))),
    group_consumer_migration_policy=st.sampled_from((MigrationPolicy.BIDIRECTIONAL, *MigrationPolicy)),
)
logs = st.tuples(seeds, st.integers(20, 200), configs)
Log = tuple[int, int, CoordinatorConfig]


def played(log: Log) -> MixedLog:
    seed, moves, config = log
    world = MixedLog(seed, config)
    world.play(moves)
    return world


# A member of generation 4 was removed, and is at generation 4 of the group's next life when it comes back.
@example((5_281, 120, CoordinatorConfig(group_consumer=ModernGroupConfig(assignment_interval_ms=0))))
@given(logs)
@examples(100)
def test_a_conversion_keeps_offsets_and_gives_no_partition_to_two_members(log: Log) -> None:
    played(log)


@given(logs, seeds)
@examples(40)
def test_batching_does_not_change_the_outcome(log: Log, seed: int) -> None:
    batches.check_batching(played(log).rows, log[2], seed)


@given(logs)
@examples(60)
def test_converted_group_stabilizes_with_every_partition_used_once(log: Log) -> None:
    """After the last change the group comes to rest, and each client of it uses what it was assigned."""
    world = played(log)
    world.settle(ROUNDS)
    group = world.any_group(GROUPS[0])
    if isinstance(group, ConsumerGroup):
        assert group.state in (ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY)
    else:
        assert isinstance(group, ClassicGroup)
        assert group.state in (GroupState.STABLE, GroupState.EMPTY)
    wanted: set[tuple[bytes, int]] = set()
    used: list[tuple[bytes, int]] = []
    for client in world.mixed:
        if client.member_id in group.members:
            names = [name for name in client.names if name in world.cluster.now]
            if isinstance(client, Consumer) and client.pattern:
                names += list(world.cluster.resolve(client.pattern, 0).topics)
            images = [world.cluster.now[name] for name in names]
            wanted |= {(image.id.bytes, n) for image in images for n in range(image.partitions)}
            used += sorted(world.by_id(client))
    assert len(used) == len(set(used))
    assert set(used) == wanted


def test_random_logs_convert_both_ways() -> None:
    deep = {
        "UP3",
        "UP8",
        "UP9",
        "DN1",
        "DN7",
        "DN8",
        "DN13",
        "CV2",
        "CV9",
        "CV12",
        "CV14",
        "CV15",
        "CV24",
        "CV29",
    }
    for seed in range(2_000):
        policy = MigrationPolicy.UPGRADE if seed % 5 == 0 else MigrationPolicy.BIDIRECTIONAL
        world = MixedLog(seed, CoordinatorConfig(group_consumer_migration_policy=policy))
        world.play(150)
        deep -= world.rules
        if not deep:
            return
    raise AssertionError(f"not reached: {sorted(deep)}")
