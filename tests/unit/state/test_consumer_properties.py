"""Properties of every log of groups of the consumer protocol (section 1.4 of KIP-848's rules: IV1 to IV8).

The invariants are checked after each step of a play, and what the clients use after each request
(`tests.harness.consumer_log`).
"""

from collections.abc import Sequence
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.kafka.history import ConsumerGroupState, EntryType, HistoryEntry
from state.config import CoordinatorConfig, ModernGroupConfig
from state.kafka.consumer_group import ConsumerGroup
from state.timeline import Timeline
from tests.harness import batches
from tests.harness.common import kafka_effects
from tests.harness.consumer_log import ConsumerLog
from tests.harness.examples import examples
from tests.harness.invariants import check_life
from tests.harness.random_log import GROUPS

# A silent member's session ends after 45 s, which are 9 rounds. What it held goes on in those after that.
ROUNDS = 20

seeds = st.integers(0, 2**32 - 1)
configs = st.builds(
    CoordinatorConfig,
    group_consumer=st.builds(
        ModernGroupConfig, assignment_interval_ms=st.sampled_from((1_000, 1_000, 0, 15_000))
    ),
    group_consumer_max_size=st.sampled_from((2**31 - 1, 2**31 - 1, 3)),
    group_max_partitions=st.sampled_from((20_000, 20_000, 9)),
)
logs = st.tuples(seeds, st.integers(10, 150), configs)
Log = tuple[int, int, CoordinatorConfig]


def played(log: Log) -> ConsumerLog:
    seed, moves, config = log
    world = ConsumerLog(seed, config)
    world.play(moves)
    return world


def _risen(before: tuple[str, int, int] | None, timeline: Timeline) -> tuple[str, int, int] | None:
    group = timeline.group
    if not isinstance(group, ConsumerGroup):
        return None
    if before is not None and before[0] == group.incarnation:
        assert group.group_epoch >= before[1]
        assert group.assignment_epoch >= before[2]
    return group.incarnation, group.group_epoch, group.assignment_epoch


def _check_life(history: Sequence[HistoryEntry]) -> None:
    """Check the history of a group from its creation to its end, if it has ended."""
    check_life(history)
    for entry in history:
        if entry.type is EntryType.MEMBER_RECONCILED:
            assert (entry.revoking is not None) == (entry.member_state == "UnrevokedPartitions")


@given(logs, seeds)
@examples(40)
def test_batching_does_not_change_the_outcome(log: Log, seed: int) -> None:
    batches.check_batching(played(log).rows, log[2], seed)


@given(logs)
@examples(60)
def test_no_partition_is_used_twice_and_epochs_never_fall(log: Log) -> None:
    """Epochs never fall, and the history of a group's life has no gap (IV3)."""
    rows, config = played(log).rows, log[2]
    for group_id in GROUPS:
        timeline = Timeline(group_id, None, config, step=batches.checked_step)
        epochs: tuple[str, int, int] | None = None
        for row in rows:
            if row.request.group_id == group_id:
                timeline.apply(row)
                epochs = _risen(epochs, timeline)
        history = [entry for effects in kafka_effects(timeline.drain_effects()) for entry in effects.history]
        for _, entries in groupby(history, lambda entry: entry.incarnation):
            _check_life(list(entries))


@given(logs)
@examples(60)
def test_consumer_group_stabilizes_with_every_partition_assigned(log: Log) -> None:
    """After the last change, well-behaved clients come to a Stable group whose every partition has a member:
    that of the target.
    """
    world = played(log)
    world.settle(ROUNDS)
    for group_id in GROUPS:
        group = world.group(group_id)
        if group is None or not group.members:
            continue
        assert group.state is ConsumerGroupState.STABLE
        for member in group.members.values():
            target = group.target.get(member.member_id, {})
            assert {id_: sorted(numbers) for id_, numbers in member.assigned.items()} == target
        assigned = {
            (id_, n) for target in group.target.values() for id_, numbers in target.items() for n in numbers
        }
        for pattern, resolved in group.resolved_regexes.items():
            assert resolved.topics == list(world.cluster.resolve(pattern, 0, world.may).topics)
        exist = [topic for name in group.subscribed() if (topic := group.topics.get(name)) is not None]
        wanted = {(topic.topic_id, n) for topic in exist for n in range(topic.partitions)}
        assert assigned <= wanted
        assert assigned == wanted or len(wanted) > log[2].group_max_partitions
        for client in world.clients:
            if client.member_id in group.members:
                member = group.members[client.member_id]
                assert client.uses == {(id_, n) for id_, numbers in member.assigned.items() for n in numbers}


def test_random_consumer_logs_cover_the_rules() -> None:
    """The logs above must reach the rows that need a long sequence of moves."""
    deep = {f"RC{n}" for n in range(19)} - {"RC7", "RC8"} | {"TA1", "TA2", "TA3", "TA31", "TA32", "TM3"}
    deep |= {"HB20", "HB27", "HB28", "HB30", "HB31", "HB42", "MI10", "MI11", "RG4e"}
    for seed in range(1_000):
        most = 20 if seed % 3 else 9
        world = ConsumerLog(seed, CoordinatorConfig(group_max_partitions=most, group_consumer_max_size=5))
        world.play(120)
        deep -= world.rules
        if not deep:
            return
    raise AssertionError(f"not reached: {sorted(deep)}")
