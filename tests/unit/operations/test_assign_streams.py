"""The tasks of a streams group with another number of standby replicas, or with other members."""

import pytest

from assignors.kafka.sticky_tasks import SubtopologyTasks, TaskMember
from kafka_why.assign.model import InputError
from kafka_why.contract.kafka.history import STREAMS
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.observed.records import MemberSubscribed
from kafka_why.observed.view import view_of
from kafka_why.wording import Names
from operations.assign.compare import outcome_text
from operations.assign.streams import StreamsSpec, streams_outcomes, streams_spec
from state.kafka.protocols import view_of as view_of_own
from tests.harness.observed_epochs import Said, settles, streams_epoch, streams_member, topology
from tests.harness.observed_log import G, Watched, at
from tests.harness.scenario_player import ScenarioPlayer

TWO = StreamsSpec(
    {"a": TaskMember("p1", {"0": [0, 1], "1": [0]}), "b": TaskMember("p2", {"0": [2, 3]})},
    {"0": SubtopologyTasks(4, True), "1": SubtopologyTasks(1, False)},
    0,
)


def viewed(*said: Said) -> StreamsSpec:
    return streams_spec(view_of(Watched().take(list(said)).groups[G], {}))


def test_standby_replicas_are_added_where_the_tasks_are_not() -> None:
    now, one = streams_outcomes(TWO, [], [], [1])
    assert (now.strategy, [share.assignment for share in now.shares]) == (
        "now",
        [{"active 0": [0, 1], "active 1": [0]}, {"active 0": [2, 3]}],
    )
    assert [share.assignment for share in one.shares] == [
        {"active 0": [0, 1], "active 1": [0], "standby 0": [2, 3]},
        {"active 0": [2, 3], "standby 0": [0, 1]},
    ]
    assert one.moves is not None
    assert (one.moves.moved, one.moves.partitions, one.nobodys) == (0, 5, {})
    shown = outcome_text(one, Names(["a", "b"]))
    assert shown.splitlines()[:2] == [
        "num.standby.replicas=1",
        "MEMBER #TASKS GAINS LOSES ASSIGNMENT",
    ]
    assert "spread: 4 to 5, standard deviation 0.5 tasks per member\nmoved: 0 of 5 tasks" in shown


def test_copies_without_a_process_are_named() -> None:
    _, two = streams_outcomes(TWO, [], [], [2])
    assert two.nobodys == {"standby 0": [0, 1, 2, 3]}
    assert "too few processes for all copies of standby 0 0-3" in outcome_text(two, Names(["a", "b"]))


def test_members_come_and_go() -> None:
    _, target = streams_outcomes(TWO, ["b"], ["c"], [])
    assert {share.member_id: share.partitions for share in target.shares} == {"a": 3, "c": 2}
    assert target.moves is not None
    assert target.moves.moved == 2
    with pytest.raises(InputError, match="no member is left"):
        streams_outcomes(TWO, ["a", "b"], [], [])


def test_group_is_read_from_its_view() -> None:
    joined = [MemberSubscribed(name, streams_member(name), STREAMS) for name in ("a", "b")]
    given = settles(STREAMS, 3, a=(0, 1), b=(2,))
    found = viewed(*at(1_000, *joined, topology(), streams_epoch(3, standbys="1"), *given))
    assert found == StreamsSpec(
        {
            "a": TaskMember("process-a", {"0": [0, 1]}),
            "b": TaskMember("process-b", {"0": [2]}),
        },
        {"0": SubtopologyTasks(3, True)},
        1,
    )


def test_own_group_without_state_has_no_standby_tasks() -> None:
    player = ScenarioPlayer()
    for command in ("config group.streams.initial.rebalance.delay.ms=0", "topics foo=2", "stream A e0"):
        player.run(command)
    group = player.any_group()
    assert group is not None
    view = view_of_own(group)
    assert isinstance(view, GroupSnapshot)
    assert streams_spec(view).subtopologies == {"0": SubtopologyTasks(2, False)}


def test_group_without_tasks_is_refused() -> None:
    joined = MemberSubscribed("a", streams_member("a"), STREAMS)
    with pytest.raises(InputError, match="group g is NotReady: no member has a task"):
        viewed(*at(1_000, joined, topology(), streams_epoch(2, -1), *settles(STREAMS, 2, a=())))
    with pytest.raises(InputError, match="group g has no members"):
        viewed(*at(1_000, topology(), streams_epoch(2)))
