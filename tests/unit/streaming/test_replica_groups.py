"""The groups in a replica's memory: how many are decoded, and which are due."""

import pytest

from checkpoints import codec
from state.configs import Configs
from state.dispatch import step
from state.inputs import Outage
from state.kafka.classic_group import ClassicGroup
from state.timeline import Row
from streaming.query.handling import AwakeGroup
from streaming.replica.answers import Answers
from streaming.replica.groups import Groups
from tests.harness.operator_call import call, spark_state
from tests.harness.replica_log import CONFIG
from tests.spark.log import LAYOUT, T0, Log, heartbeat

SESSION_MS = 10_000
NAMES = ("a", "b", "c", "d")


class ReplicaGroups:
    """Stable groups of one member each. The session of the n-th ends n seconds after that of the first."""

    def __init__(self, awake_max: int, outages: tuple[Outage, ...] = ()) -> None:
        self.woken: list[str] = []
        self.member_ids: dict[str, str] = {}
        self._outages = outages
        log, state = Log(), spark_state()
        for n, name in enumerate(NAMES):
            records, self.member_ids[name] = log.stable_member(T0 + 1_000 * n, name, session_ms=SESSION_MS)
            call(records, state)
            state = spark_state(tuple(state.get))
        self.groups = Groups(codec.read_row("shard 0", *state.get), self._awaken, awake_max=awake_max)

    def _awaken(self, group_id: str, entry: codec.Entry | None) -> AwakeGroup:
        self.woken.append(group_id)
        return AwakeGroup(group_id, entry, Configs(CONFIG), self._outages, step)

    def fire(self, until_ms: int) -> list[str]:
        """Fire what is due, as the state machine does. Returns the groups that were given."""
        given = []
        for group in self.groups.due(until_ms):
            group.fire_until(until_ms, Answers(LAYOUT.response_max_bytes, lambda _: None))
            self.groups.touched(group)
            given.append(group.timeline.group_id)
        return given

    def members(self, group_id: str) -> int:
        group = self.groups.awake(group_id).timeline.group
        assert isinstance(group, ClassicGroup)
        return len(group.members)


@pytest.mark.parametrize("awake_max", [1, 2, 3])
def test_groups_that_rest_longest_are_encoded_beyond_the_bound(awake_max: int) -> None:
    world = ReplicaGroups(awake_max)
    for name in (*NAMES, *reversed(NAMES)):
        world.groups.awake(name)
    assert world.woken == [*NAMES, *reversed(NAMES[:-awake_max])]
    assert len(world.groups) == len(NAMES)


def test_a_group_that_is_used_does_not_rest() -> None:
    world = ReplicaGroups(2)
    for name in ("a", "b", "a", "c", "a"):
        world.groups.awake(name)
    assert world.woken == ["a", "b", "c"]


def test_the_groups_with_a_deadline_until_a_time_are_due() -> None:
    world = ReplicaGroups(10)
    assert world.fire(T0 + SESSION_MS - 1) == []
    assert world.fire(T0 + SESSION_MS + 1_000) == ["a", "b"]
    assert [world.members(name) for name in NAMES] == [0, 0, 1, 1]
    assert world.fire(T0 + SESSION_MS + 3_000) == ["c", "d"]
    assert not any(world.members(name) for name in NAMES)


@pytest.mark.parametrize("awake_max", [1, 2, 10])
def test_more_groups_are_due_than_may_be_awake(awake_max: int) -> None:
    """What a deadline changes is kept, although the next group that is due puts this one to rest."""
    world = ReplicaGroups(awake_max)
    assert world.fire(T0 + SESSION_MS + 3_000) == list(NAMES)
    assert not any(world.members(name) for name in NAMES)


def test_a_later_deadline_is_found_at_the_time_of_the_earlier_one() -> None:
    world = ReplicaGroups(10)
    group = world.groups.awake("a")
    group.timeline.apply(Row(T0 + 5_000, "requests-0-99", heartbeat("a", world.member_ids["a"])))
    world.groups.touched(group)
    assert world.fire(T0 + SESSION_MS) == ["a"]
    assert world.members("a") == 1
    assert world.fire(T0 + SESSION_MS + 4_999) == ["b", "c", "d"]
    assert world.fire(T0 + SESSION_MS + 5_000) == ["a"]
    assert world.members("a") == 0


def test_deadlines_stand_still_in_an_outage() -> None:
    """The sessions of all groups would end in the outage. They begin anew at its end."""
    outage = Outage(T0 + 5_000, T0 + 60_000)
    world = ReplicaGroups(1, (outage,))
    for until_ms in (T0 + SESSION_MS, T0 + 50_000, outage.until_ms, outage.until_ms + SESSION_MS - 1):
        world.fire(until_ms)
        assert [world.members(name) for name in NAMES] == [1, 1, 1, 1]
    world.fire(outage.until_ms + SESSION_MS)
    assert [world.members(name) for name in NAMES] == [0, 0, 0, 0]


def test_a_group_that_has_ended_leaves_nothing() -> None:
    world = ReplicaGroups(1)
    assert "new" not in world.groups
    for name in ("new", "other"):
        world.groups.touched(world.groups.awake(name))  # no request has created them
    world.groups.rest()
    assert "new" not in world.groups
    assert "other" not in world.groups
    assert len(world.groups) == len(NAMES)
    assert world.fire(T0 + 9 * SESSION_MS) == list(NAMES)


def test_all_groups_can_be_put_to_rest() -> None:
    world = ReplicaGroups(10)
    for name in NAMES:
        world.groups.awake(name)
    world.groups.rest()
    assert [world.members(name) for name in NAMES] == [1, 1, 1, 1]
    assert world.woken == [*NAMES, *NAMES]
