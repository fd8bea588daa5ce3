"""Properties of every log of share groups: rows SV2 and SV4 to SV6. `test_epochs_properties` has SV1 and SV7,
and the assignor's tests SV3. The invariants of a group are checked after each step of a play
(`tests.harness.share_invariants`).
"""

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import msgpack, structs
from msgspec.structs import replace

from kafka_why.contract.kafka.history import ConsumerGroupState
from kafka_why.contract.kafka.requests import AnyRequest
from kafka_why.contract.kafka.responses import ShareGroupHeartbeatResponse
from kafka_why.contract.kafka.share_requests import ShareStatePartition, ShareStateResult
from kafka_why.contract.messages import ErrorCode
from state.config import CoordinatorConfig, ModernGroupConfig
from state.dispatch import step
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.share.heartbeat import SHORTEST_MS
from state.kafka.share.protocol import open_tasks
from state.kafka.share_group import ShareGroup
from state.protocol import Received
from state.timeline import Timeline
from tests.harness import batches, invariants
from tests.harness.common import kafka_effects
from tests.harness.examples import examples
from tests.harness.played_log import Log
from tests.harness.random_log import GROUPS
from tests.harness.share_log import Client, ShareLog

# A silent member's session ends after 45 s, which are 9 rounds. Then its partitions go to the others.
ROUNDS = 14

seeds = st.integers(0, 2**32 - 1)
configs = st.builds(
    CoordinatorConfig,
    group_share=st.builds(ModernGroupConfig, assignment_interval_ms=st.sampled_from((1_000, 0, 15_000))),
    group_share_max_size=st.sampled_from((200, 200, 3)),
    group_max_partitions=st.sampled_from((20_000, 20_000, 9)),
    share_assign_at_once=st.booleans(),
)
logs = st.tuples(seeds, st.integers(10, 120), configs)


@given(logs)
@examples(12)
def test_only_share_members_awaiting_partitions_get_a_shorter_heartbeat_interval(log: Log) -> None:
    """Row SH28a."""
    rows, config = ShareLog.played(log).rows, log[2]
    whole_ms = config.group_share.heartbeat_interval_ms
    for group_id in GROUPS:
        timeline = Timeline(group_id, None, config, step=batches.checked_step)
        for row in rows:
            if row.request.group_id != group_id:
                continue
            timeline.apply(row)
            for answer in beats(timeline):
                assert isinstance(timeline.group, ShareGroup)
                if timeline.group.members[str(answer.member_id)].assigned or not config.share_assign_at_once:
                    assert answer.heartbeat_interval_ms == whole_ms
                else:
                    assert SHORTEST_MS <= answer.heartbeat_interval_ms <= whole_ms


def beats(timeline: Timeline) -> Iterator[ShareGroupHeartbeatResponse]:
    """Yield the answers to members of a share group since the last call."""
    for effects in kafka_effects(timeline.drain_effects()):
        for reply in effects.replies:
            answer = reply.response
            if isinstance(answer, ShareGroupHeartbeatResponse) and answer.member_epoch > 0:
                yield answer


class ResultLog(ShareLog):
    """Keeps what the share coordinator answered, each with the group that it was for, as it was then."""

    def __init__(self, seed: int, config: CoordinatorConfig) -> None:
        super().__init__(seed, config)
        self.results: list[tuple[ShareGroup, ShareStateResult, int]] = []

    def send(self, client: Client | None, request: AnyRequest) -> None:
        group = self.group(request.group_id)
        if group is not None and isinstance(request, ShareStateResult):
            self.results.append((copy_of(group), request, self.at_ms))
        super().send(client, request)


def copy_of(group: ShareGroup) -> ShareGroup:
    return msgpack.decode(msgpack.encode(group), type=ShareGroup)


@given(logs, seeds)
@examples(12)
def test_share_task_results_are_the_same_for_any_split_into_records(log: Log, seed: int) -> None:
    """Row SP12: the group and the answers are the same, in whichever records the outcomes of a task are."""
    world = ResultLog.played(log)
    random = Random(seed)
    for group, result, at_ms in world.results:
        partitions = random.sample(result.partitions, len(result.partitions))
        cuts = sorted(random.choices(range(len(partitions) + 1), k=random.randrange(4)))
        parts = [partitions[a:b] for a, b in pairwise([0, *cuts, len(partitions)])]
        whole = outcome_of(copy_of(group), [result.partitions], result, at_ms, log[2])
        assert outcome_of(copy_of(group), parts, result, at_ms, log[2]) == whole


def outcome_of(
    group: ShareGroup,
    parts: list[list[ShareStatePartition]],
    result: ShareStateResult,
    at_ms: int,
    config: CoordinatorConfig,
) -> tuple[Any, dict[str, tuple[ErrorCode, Any]]]:
    """Return the group, without the count of its entries and the reason of its rebalance, and the answers."""
    answers = {}
    after: Any = group
    now_ms = max(at_ms, group.clock_ms)
    for n, part in enumerate(parts):
        received = Received(f"requests-0-9999#{n}", replace(result, partitions=part))
        (effects,) = kafka_effects([step(after, group.group_id, received, now_ms, config)])
        after = effects.group
        for reply in effects.replies:
            fields = structs.asdict(reply.response)
            answers[reply.response.request] = (reply.response.error_code, fields.get("responses"))
    if not isinstance(after, ShareGroup):
        return None, answers
    invariants.check(after)
    return replace(after, seq=0, last_rebalance_at_ms=0, last_rebalance_reason=""), answers


# A topic that no longer fits into the group is left out of the target, which is no reason for another one.
@example(log=(972, 30, CoordinatorConfig(group_max_partitions=9, share_assign_at_once=False)))
@given(logs)
@examples(12)
def test_share_group_stabilizes_with_every_partition_assigned(log: Log) -> None:
    """SV2: after the last change each partition of a subscribed topic has a member, and the clients fetch
    from what the target says.
    """
    world = ShareLog.played(log)
    world.settle(ROUNDS)
    for group_id in GROUPS:
        group = world.group(group_id)
        if group is None or not group.members:
            continue
        assert group.state is ConsumerGroupState.STABLE and not group.is_rebalancing
        assert not open_tasks(group)
        check_assigned(group, log[2])
        for client in world.clients:
            member = group.members.get(client.member_id) if client.group_id == group_id else None
            if member is not None:
                assert {id_.bytes: numbers for id_, numbers in (client.has or {}).items()} == member.assigned
                assert member.assigned == group.target[client.member_id]


def check_assigned(group: ConsumerGroup | ShareGroup, config: CoordinatorConfig) -> None:
    """Check that each partition of a subscribed topic is in the target, unless there are too many."""
    assigned = {
        (id_, n) for target in group.target.values() for id_, numbers in target.items() for n in numbers
    }
    exist = [topic for name in group.subscribed() if (topic := group.topics.get(name)) is not None]
    wanted = {(topic.topic_id, n) for topic in exist for n in range(topic.partitions)}
    assert assigned <= wanted
    assert assigned == wanted or len(wanted) > config.group_max_partitions
