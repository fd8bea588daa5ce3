"""The groups in a replica's memory: how many are decoded, and which are due."""

import pytest

from checkpoints import codec
from state.config import Configs
from state.dispatch import step
from state.kafka.classic_group import ClassicGroup
from state.timeline import Row
from streaming.query.handling import DecodedGroup
from streaming.replica.answers import Answers
from streaming.replica.groups import ReplicaGroups
from tests.harness.operator_call import call, spark_state
from tests.harness.replica_log import CONFIG
from tests.spark.log import LAYOUT, T0, Log, heartbeat

SESSION_MS = 10_000
NAMES = ("a", "b", "c", "d")


class StableGroups:
    """Stable groups of one member each. The session of the n-th ends n seconds after that of the first."""

    def __init__(self, decoded_max: int) -> None:
        self.woken: list[str] = []
        self.member_ids: dict[str, str] = {}
        log, state = Log(), spark_state()
        for n, name in enumerate(NAMES):
            records, self.member_ids[name] = log.stable_member(T0 + 1_000 * n, name, session_ms=SESSION_MS)
            call(records, state)
            state = spark_state(tuple(state.get))
        self.groups = ReplicaGroups(
            codec.read_row("shard 0", *state.get), self._decode_group, decoded_max=decoded_max
        )

    def _decode_group(self, group_id: str, entry: codec.StoredGroup | None) -> DecodedGroup:
        self.woken.append(group_id)
        return DecodedGroup(group_id, entry, Configs(CONFIG), (), step)

    def fire(self, until_ms: int) -> list[str]:
        """Fire what is due, as the state machine does. Return the groups that were given."""
        given = []
        for group in self.groups.due(until_ms):
            group.fire_until(until_ms, Answers(LAYOUT.response_max_bytes, lambda _: None))
            self.groups.touched(group)
            given.append(group.timeline.group_id)
        return given

    def members(self, group_id: str) -> int:
        group = self.groups.decoded(group_id).timeline.group
        assert isinstance(group, ClassicGroup)
        return len(group.members)


@pytest.mark.parametrize("decoded_max", [1, 2, 3])
def test_least_recently_used_groups_over_the_limit_are_encoded(decoded_max: int) -> None:
    world = StableGroups(decoded_max)
    for name in (*NAMES, *reversed(NAMES)):
        world.groups.decoded(name)
    assert world.woken == [*NAMES, *reversed(NAMES[:-decoded_max])]
    assert len(world.groups) == len(NAMES)


def test_postponed_deadline_is_rescheduled_when_the_earlier_one_is_due() -> None:
    world = StableGroups(10)
    group = world.groups.decoded("a")
    group.timeline.apply(Row(T0 + 5_000, "requests-0-99", heartbeat("a", world.member_ids["a"])))
    world.groups.touched(group)
    assert world.fire(T0 + SESSION_MS) == ["a"]
    assert world.members("a") == 1
    assert world.fire(T0 + SESSION_MS + 4_999) == ["b", "c", "d"]
    assert world.fire(T0 + SESSION_MS + 5_000) == ["a"]
    assert world.members("a") == 0
