"""Properties of every log of streams groups: rows KSI1 to KSI7. The invariants of a group are checked after
each step of a play (`tests.harness.streams_invariants`).
"""

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from kafka_why.contract.kafka.streams_responses import StatusCode, StreamsGroupHeartbeatResponse
from state.config import CoordinatorConfig, ModernGroupConfig
from state.kafka.streams_group import StreamsGroup, StreamsGroupState
from state.kafka.streams_topics import ConfiguredTopology
from state.timeline import Timeline
from tests.harness import batches, invariants
from tests.harness.common import kafka_effects
from tests.harness.examples import examples
from tests.harness.random_log import GROUPS
from tests.harness.streams_log import StreamsLog

# A silent member's session ends after 45 s, which are 9 rounds. Then its tasks go to the others, by a target
# at the end of the assignment interval and a revocation that a heartbeat may not acknowledge.
ROUNDS = 24

seeds = st.integers(0, 2**32 - 1)
configs = st.builds(
    CoordinatorConfig,
    group_streams=st.builds(ModernGroupConfig, assignment_interval_ms=st.sampled_from((1_000, 0, 15_000))),
    group_streams_initial_rebalance_delay_ms=st.sampled_from((3_000, 0)),
    group_streams_num_standby_replicas=st.sampled_from((0, 1, 2)),
    group_streams_max_size=st.sampled_from((200, 200, 3)),
    streams_topology_replace_when_empty=st.booleans(),
)
logs = st.tuples(seeds, st.integers(10, 120), configs)
Log = tuple[int, int, CoordinatorConfig]


def played(log: Log) -> StreamsLog:
    seed, moves, config = log
    world = StreamsLog(seed, config)
    world.play(moves)
    return world


@given(logs, seeds)
@examples(8)
def test_batching_does_not_change_the_outcome(log: Log, seed: int) -> None:
    batches.check_batching(played(log).rows, log[2], seed)


@given(logs)
@examples(12)
def test_epochs_never_fall_and_answers_have_known_statuses(log: Log) -> None:
    """KSI3, and row SW31 of the protocol: an unknown status would make a client drop its assignment."""
    rows, config = played(log).rows, log[2]
    for group_id in GROUPS:
        timeline = Timeline(group_id, None, config, step=batches.checked_step)
        before, incarnation = (0, 0, 0), ""
        for row in rows:
            if row.request.group_id == group_id:
                timeline.apply(row)
                group = timeline.group
                if not isinstance(group, StreamsGroup):
                    continue
                epochs = group.group_epoch, group.assignment_epoch, group.endpoint_epoch
                if group.incarnation == incarnation:
                    assert all(now >= then for now, then in zip(epochs, before, strict=True))
                incarnation, before = group.incarnation, epochs
        effects = kafka_effects(timeline.drain_effects())
        history = [entry for one in effects for entry in one.history]
        for _, entries in groupby(history, lambda entry: entry.incarnation):
            invariants.check_life(list(entries))
        for reply in (reply for one in effects for reply in one.replies):
            if isinstance(reply.response, StreamsGroupHeartbeatResponse):
                codes = [status.status_code for status in reply.response.status]
                assert len(codes) == len(set(codes))
                assert StatusCode.MISSING_CLIENT_TAGS not in codes


@given(logs)
@examples(20)
def test_well_behaved_members_reach_their_target(log: Log) -> None:
    """KSI5: then every task of a ready topology runs at exactly one member."""
    world = played(log)
    world.settle(ROUNDS)
    for group_id in GROUPS:
        group = world.group(group_id)
        if group is None or not group.members:
            continue
        if not group.is_ready:
            assert not any(member.assigned or member.pending for member in group.members.values())
            continue
        assert group.state is StreamsGroupState.STABLE
        assert isinstance(group.configured, ConfiguredTopology)
        active = sorted(task for member in group.members.values() for task in member.assigned.active)
        counts = group.configured.tasks
        assert active == sorted((id_, n) for id_, tasks in counts.items() for n in range(tasks.count))
