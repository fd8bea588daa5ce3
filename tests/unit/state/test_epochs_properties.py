"""Properties of every log of groups with epochs: IV1 to IV8 of KIP-848's rules, SV1, SV7, and KSI1 to KSI7.
In some logs clients move between the classic protocol and the consumer protocol.

The invariants of a group are checked after each step of a play, what the clients use after each request, and
the offsets at each conversion (`tests.harness.consumer_log`, `mixed_log`, `streams_invariants`).
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_why.contract.kafka.history import ConsumerGroupState, GroupState
from kafka_why.contract.kafka.streams_responses import StatusCode, StreamsGroupHeartbeatResponse
from state.config import CoordinatorConfig, MigrationPolicy, ModernGroupConfig
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.streams_topics import ConfiguredTopology
from tests.harness import batches
from tests.harness.consumer_clients import Consumer
from tests.harness.consumer_log import ConsumerLog
from tests.harness.examples import examples
from tests.harness.mixed_log import MixedLog
from tests.harness.played_log import Log, PlayedLog
from tests.harness.random_log import GROUPS
from tests.harness.share_log import ShareLog
from tests.harness.streams_log import StreamsLog
from tests.unit.state.test_share_properties import check_assigned, seeds
from tests.unit.state.test_share_properties import logs as share_logs

# A silent member's session ends after 45 s, which are 9 rounds. What it held goes on in those after that: in
# a streams group by a target at the end of the assignment interval and a revocation that a heartbeat may not
# acknowledge, in a classic group after a rebalance that waits for the member.
CONSUMER_ROUNDS, STREAMS_ROUNDS, MIXED_ROUNDS = 20, 24, 50

consumer_configs = st.builds(
    CoordinatorConfig,
    group_consumer=st.builds(
        ModernGroupConfig, assignment_interval_ms=st.sampled_from((1_000, 1_000, 0, 15_000))
    ),
    group_consumer_max_size=st.sampled_from((2**31 - 1, 2**31 - 1, 3)),
    group_max_partitions=st.sampled_from((20_000, 20_000, 9)),
)
mixed_configs = st.builds(
    CoordinatorConfig,
    group_initial_rebalance_delay_ms=st.sampled_from((3_000, 0)),
    group_consumer=st.builds(ModernGroupConfig, assignment_interval_ms=st.sampled_from((1_000, 0))),
    group_consumer_migration_policy=st.sampled_from((MigrationPolicy.BIDIRECTIONAL, *MigrationPolicy)),
)
streams_configs = st.builds(
    CoordinatorConfig,
    group_streams=st.builds(ModernGroupConfig, assignment_interval_ms=st.sampled_from((1_000, 0, 15_000))),
    group_streams_initial_rebalance_delay_ms=st.sampled_from((3_000, 0)),
    group_streams_num_standby_replicas=st.sampled_from((0, 1, 2)),
    group_streams_max_size=st.sampled_from((200, 200, 3)),
    streams_topology_replace_when_empty=st.booleans(),
)
LOGS: dict[type[PlayedLog], st.SearchStrategy[Log]] = {
    ConsumerLog: st.tuples(seeds, st.integers(10, 150), consumer_configs),
    MixedLog: st.tuples(seeds, st.integers(20, 200), mixed_configs),
    StreamsLog: st.tuples(seeds, st.integers(10, 120), streams_configs),
    ShareLog: share_logs,
}


@pytest.mark.parametrize("kind", LOGS)
@given(data=st.data(), seed=seeds)
@examples(20)
def test_batching_does_not_change_the_outcome(kind: type[PlayedLog], data: st.DataObject, seed: int) -> None:
    log = data.draw(LOGS[kind])
    batches.check_batching(kind.played(log).rows, log[2], seed)


@pytest.mark.parametrize("kind", [ConsumerLog, ShareLog])
@given(data=st.data())
@examples(30)
def test_no_partition_is_used_twice_and_epochs_never_fall(kind: type[PlayedLog], data: st.DataObject) -> None:
    """Epochs never fall, and the history of a group's life has no gap (IV3, SV1)."""
    log = data.draw(LOGS[kind])
    batches.check_lives(kind.played(log).rows, log[2])


@given(LOGS[StreamsLog])
@examples(12)
def test_epochs_never_fall_and_answers_have_known_statuses(log: Log) -> None:
    """KSI3, and row SW31 of the protocol: an unknown status would make a client drop its assignment."""
    for effects in batches.check_lives(StreamsLog.played(log).rows, log[2]):
        for reply in effects.replies:
            if isinstance(reply.response, StreamsGroupHeartbeatResponse):
                codes = [status.status_code for status in reply.response.status]
                assert len(codes) == len(set(codes))
                assert StatusCode.MISSING_CLIENT_TAGS not in codes


@given(LOGS[StreamsLog])
@examples(20)
def test_well_behaved_members_reach_their_target(log: Log) -> None:
    """KSI5: then every task of a ready topology runs at exactly one member."""
    world = StreamsLog.played(log)
    world.settle(STREAMS_ROUNDS)
    for group_id in GROUPS:
        group = world.group(group_id)
        if group is None or not group.members:
            continue
        if not group.is_ready:
            assert not any(member.assigned or member.pending for member in group.members.values())
            continue
        assert group.state is ConsumerGroupState.STABLE
        assert isinstance(group.configured, ConfiguredTopology)
        active = sorted(task for member in group.members.values() for task in member.assigned.active)
        counts = group.configured.tasks
        assert active == sorted((id_, n) for id_, tasks in counts.items() for n in range(tasks.count))


@given(LOGS[ConsumerLog])
@examples(60)
def test_consumer_group_stabilizes_with_every_partition_assigned(log: Log) -> None:
    """After the last change, well-behaved clients come to a Stable group whose every partition has a member:
    that of the target.
    """
    world = ConsumerLog.played(log)
    world.settle(CONSUMER_ROUNDS)
    for group_id in GROUPS:
        group = world.group(group_id)
        if group is None or not group.members:
            continue
        assert group.state is ConsumerGroupState.STABLE
        for member in group.members.values():
            target = group.target.get(member.member_id, {})
            assert {id_: sorted(numbers) for id_, numbers in member.assigned.items()} == target
        for pattern, resolved in group.resolved_regexes.items():
            assert resolved.topics == list(world.cluster.resolve(pattern, 0, world.may).topics)
        check_assigned(group, log[2])
        for client in world.clients:
            if client.member_id in group.members:
                member = group.members[client.member_id]
                assert client.uses == {(id_, n) for id_, numbers in member.assigned.items() for n in numbers}


# A member of generation 4 was removed, and is at generation 4 of the group's next life when it comes back.
@example((5_281, 120, CoordinatorConfig(group_consumer=ModernGroupConfig(assignment_interval_ms=0))))
@given(LOGS[MixedLog])
@examples(100)
def test_a_conversion_keeps_offsets_and_gives_no_partition_to_two_members(log: Log) -> None:
    MixedLog.played(log)


@given(LOGS[MixedLog])
@examples(60)
def test_converted_group_stabilizes_with_every_partition_used_once(log: Log) -> None:
    """After the last change the group comes to rest, and each client of it uses what it was assigned."""
    world = MixedLog.played(log)
    world.settle(MIXED_ROUNDS)
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


CONSUMER_RULES = {f"RC{n}" for n in range(19)} - {"RC7", "RC8"} | {"TA1", "TA2", "TA3", "TA31", "TA32", "TM3"}
CONSUMER_RULES |= {"HB20", "HB27", "HB28", "HB30", "HB31", "HB42", "MI10", "MI11", "RG4e"}
CONVERSION_RULES = {"UP3", "UP8", "UP9", "DN1", "DN7", "DN8", "DN13"}
CONVERSION_RULES |= {"CV2", "CV9", "CV12", "CV14", "CV15", "CV24", "CV29"}
SHARE_RULES = {f"SH{n}" for n in (12, 14, 15, 16, 18, 19, 20, 21, 22, 23, 28, 29, 30, 31, 32, 33)}
SHARE_RULES |= {
    "ST1",
    "ST2",
    "ST3",
    "ST9",
    "ST10",
    "ST11",
    "SI5",
    "SI6",
    "SI7",
    "SI10",
    "SI11",
    "SI13",
    "SI14",
}
SHARE_RULES |= {"SO3", "SO5", "SO9", "SO9b", "SO9c", "SO10", "SO11", "SO12", "SO14", "SO14a", "SO15", "SO17"}
SHARE_RULES |= {
    "SO17a",
    "SO18",
    "SO18a",
    "SO19",
    "SO20",
    "SK6",
    "SP15",
    "SI18",
    "SP9",
    "SP12",
    "SP16",
    "SP17",
}
SHARE_RULES |= {"SD14", "SD15", "SD16", "TA31", "TA32", "MI10", "MI11"}


@pytest.mark.parametrize(
    ("kind", "moves", "rules"),
    [(ConsumerLog, 120, CONSUMER_RULES), (MixedLog, 150, CONVERSION_RULES), (ShareLog, 120, SHARE_RULES)],
)
def test_random_epoch_logs_reach_the_rare_rules(kind: type[PlayedLog], moves: int, rules: set[str]) -> None:
    """The logs above must reach the rows that need a long sequence of moves."""
    for seed in range(2_000):
        config = CoordinatorConfig(
            group_consumer_max_size=5,
            group_share_max_size=4,
            group_max_partitions=20 if seed % 3 else 9,
            group_consumer_migration_policy=(
                MigrationPolicy.BIDIRECTIONAL if seed % 5 else MigrationPolicy.UPGRADE
            ),
        )
        rules = rules - kind.played((seed, moves, config)).rules
        if not rules:
            return
    raise AssertionError(f"not reached: {sorted(rules)}")
