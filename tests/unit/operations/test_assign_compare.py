"""Strategies' assignments of groups, and their moves: examples, and properties of any group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors.kafka.sticky_tasks import SubtopologyTasks, TaskMember
from kafka_why.assign.model import GroupSpec, InputError, Member, parse_members
from kafka_why.contract.kafka.history import STREAMS
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.observed.records import MemberSubscribed
from kafka_why.observed.view import view_of
from kafka_why.why.moves import owners
from kafka_why.why.reconciling import flat
from kafka_why.wording import Names
from operations.assign.compare import KAFKA, StrategyResult, outcome_text, rounds, strategy_result
from operations.assign.streams import StreamsSpec, streams_outcomes, streams_spec
from tests.harness.histories import Recorder
from tests.harness.observed_epochs import Said, settles, streams_epoch, streams_member, topology
from tests.harness.observed_log import G, Watched, at

TOPICS = {"orders": 6, "payments": 3}
GOES_BY_COUNTS = sorted(KAFKA)

wishes = st.lists(st.sampled_from(list(TOPICS)), min_size=1, unique=True).map(tuple)
any_members = st.dictionaries(st.sampled_from("abcdef"), st.builds(Member, wishes), min_size=1)


@st.composite
def groups(draw: st.DrawFn, members: st.SearchStrategy[dict[str, Member]] = any_members) -> GroupSpec:
    """Draw a group in which each partition has a member, a member that has left, or no owner."""
    group = GroupSpec(TOPICS, draw(members))
    held: dict[str, set[TopicPartition]] = {}
    for partition in group.partitions():
        owner = draw(st.sampled_from([*group.members, "gone", None]))
        if owner is not None:
            held.setdefault(owner, set()).add(partition)
    return GroupSpec(TOPICS, group.members, {owner: frozenset(taken) for owner, taken in held.items()})


def the(strategy: str, group: GroupSpec) -> StrategyResult:
    outcome = strategy_result(strategy, group, group)
    return outcome


@given(groups(), st.sampled_from([*GOES_BY_COUNTS, "lag-aware", "AVG", "CONSISTENT_HASH"]))
def test_spread_and_moves_count_the_assigned_partitions(group: GroupSpec, strategy: str) -> None:
    outcome = the(strategy, group)
    after = {share.member_id: flat(share.assignment) for share in outcome.shares}
    assert group.current is not None
    assert outcome.moves is not None
    last, now = owners(group.current), owners(after)
    assert outcome.moves.moved == sum(now[p] != last[p] for p in now.keys() & last.keys())
    assert outcome.moves.fresh == len(now.keys() - last.keys())
    assert [s.partitions for s in outcome.shares] == [len(after[s.member_id]) for s in outcome.shares]
    assert flat(outcome.nobodys) == set(group.partitions()) - now.keys()
    counts = [len(taken) for taken in after.values()]
    assert (outcome.spread.least, outcome.spread.most) == (min(counts), max(counts))


@given(groups())
def test_sticky_makes_no_needless_moves(group: GroupSpec) -> None:
    for strategy in ("sticky", "cooperative-sticky"):
        moves = the(strategy, group).moves
        assert moves is not None
        assert moves.needless == 0


@given(groups())
def test_cooperative_sticky_reaches_the_spread_of_sticky_and_keeps_it(group: GroupSpec) -> None:
    assert group.current is not None
    done = rounds("cooperative-sticky", group, group.current)
    assert len(done) <= 2
    (sticky,) = rounds("sticky", group, group.current)
    assert sorted(map(len, done[-1].values())) == sorted(map(len, sticky.values()))
    assert rounds("cooperative-sticky", group, done[-1]) == [done[-1]]
    for member_id, held in done[0].items():
        others = {p for m, taken in group.current.items() if m != member_id and m != "gone" for p in taken}
        assert not held & others, "a partition is given to another only when its owner has given it up"


def test_machine_room_strategies_use_racks() -> None:
    members = {"a": Member(("orders",), rack="east"), "b": Member(("orders",), rack="west")}
    racks = {"orders": [["east"], ["west"], ["west"], ["east"], ["north"], ["east"]]}
    group = GroupSpec(
        {"orders": 6}, {m: Member(("orders",), None, v.rack) for m, v in members.items()}, racks=racks
    )
    nearby, rooms = (
        strategy_result(name, group, group) for name in ("MACHINE_ROOM_NEARBY-AVG", "MACHINE_ROOM")
    )
    assert {s.member_id: s.assignment for s in nearby.shares} == {
        "a": {"orders": [0, 3, 4, 5]},
        "b": {"orders": [1, 2]},
    }
    assert rooms.nobodys == {"orders": [4]}


def test_machine_room_strategy_without_racks_is_refused() -> None:
    members = {"a": Member(("orders",), rack="east")}
    group = GroupSpec({"orders": 2}, members, racks={"orders": [["east"], []]})
    with pytest.raises(InputError, match=r"refuses topic orders: Machine room is null for mq"):
        the("MACHINE_ROOM_NEARBY-AVG", group)


HANDED_OVER = """\
cooperative-sticky
MEMBER #PARTITIONS GAINS LOSES ASSIGNMENT
a      3           0     3     orders 0-2
b      3           0     0     payments 0-2
c      3           3     0     orders 3-5
spread: 3 to 3, standard deviation 0.0 partitions per member
moved: 3 of 9 partitions, 0 needlessly
rounds: 2; the first revokes 3 partitions, the second assigns them, all other partitions stay consumed"""

NOBODYS = """\
AVG
MEMBER #PARTITIONS WEIGHT ASSIGNMENT
a      5           0      orders 0-2, payments 0-1
b      1           7      payments 2
spread: 1 to 5, standard deviation 2.0 partitions per member
weight: 0 to 7, standard deviation 3.5 a member
no member consumes orders 3-5"""


def test_outcome_reports_partitions_handed_over_in_two_rounds() -> None:
    current = {"a": flat({"orders": [*range(6)]}), "b": flat({"payments": [0, 1, 2]})}
    group = GroupSpec(TOPICS, parse_members("a,b,c", TOPICS), current)
    assert outcome_text(the("cooperative-sticky", group), Names(group.members)) == HANDED_OVER


def test_outcome_reports_weights_and_unconsumed_partitions() -> None:
    group = GroupSpec(
        TOPICS, parse_members("a,b=payments", TOPICS), weights={TopicPartition("payments", 2): 7}
    )
    assert outcome_text(the("AVG", group), Names(group.members)) == NOBODYS


TWO = StreamsSpec(
    {"a": TaskMember("p1", {"0": [0, 1], "1": [0]}), "b": TaskMember("p2", {"0": [2, 3]})},
    {"0": SubtopologyTasks(4, True), "1": SubtopologyTasks(1, False)},
    0,
)


def viewed(*said: Said) -> StreamsSpec:
    return streams_spec(view_of(Watched().take(list(said)).groups[G], {}))


def test_standby_replicas_are_added_on_members_without_the_task() -> None:
    now, one, two = streams_outcomes(TWO, [], [], [1, 2])
    kept = {"active 0": [0, 1], "active 1": [0]}, {"active 0": [2, 3]}
    assert (now.strategy, [share.assignment for share in now.shares]) == ("now", [*kept])
    added = {"standby 0": [2, 3]}, {"standby 0": [0, 1]}
    assert [share.assignment for share in one.shares] == [a | b for a, b in zip(kept, added, strict=True)]
    assert one.moves is not None
    assert (one.moves.moved, one.moves.partitions, one.nobodys) == (0, 5, {})
    shown = outcome_text(one, Names(["a", "b"]))
    assert shown.startswith("num.standby.replicas=1\nMEMBER #TASKS GAINS LOSES ASSIGNMENT\n")
    assert "spread: 4 to 5, standard deviation 0.5 tasks per member\nmoved: 0 of 5 tasks" in shown
    assert two.nobodys == {"standby 0": [0, 1, 2, 3]}
    assert "too few processes for all copies of standby 0 0-3" in outcome_text(two, Names(["a", "b"]))


def test_streams_tasks_move_when_members_join_and_leave() -> None:
    _, target = streams_outcomes(TWO, ["b"], ["c"], [])
    assert {share.member_id: share.partitions for share in target.shares} == {"a": 3, "c": 2}
    assert target.moves is not None
    assert target.moves.moved == 2
    with pytest.raises(InputError, match="no member is left"):
        streams_outcomes(TWO, ["a", "b"], [], [])


def test_assign_reads_a_group_from_its_published_view() -> None:
    joined = [MemberSubscribed(name, streams_member(name), STREAMS) for name in ("a", "b")]
    given = settles(STREAMS, 3, a=(0, 1), b=(2,))
    found = viewed(*at(1_000, *joined, topology(), streams_epoch(3, standbys="1"), *given))
    assert found == StreamsSpec(
        {"a": TaskMember("process-a", {"0": [0, 1]}), "b": TaskMember("process-b", {"0": [2]})},
        {"0": SubtopologyTasks(3, True)},
        1,
    )


def test_stateless_streams_group_has_no_standby_tasks() -> None:
    recorder = Recorder()
    recorder.play("config group.streams.initial.rebalance.delay.ms=0", "topics foo=2", "stream A e0")
    assert streams_spec(recorder.view()).subtopologies == {"0": SubtopologyTasks(2, False)}


def test_group_without_tasks_is_refused() -> None:
    joined = MemberSubscribed("a", streams_member("a"), STREAMS)
    with pytest.raises(InputError, match="group g is NotReady: no member has a task"):
        viewed(*at(1_000, joined, topology(), streams_epoch(2, -1), *settles(STREAMS, 2, a=())))
    with pytest.raises(InputError, match="group g has no members"):
        viewed(*at(1_000, topology(), streams_epoch(2)))
