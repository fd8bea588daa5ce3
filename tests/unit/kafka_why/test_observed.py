"""History entries of observed groups of both protocols, by the rows of docs/observe.md."""

from collections.abc import Mapping
from typing import Any

import pytest

from kafka_why.contract.kafka.history import CONSUMER, DEAD, EntryType
from kafka_why.observed.records import (
    ClassicGroupRemoved,
    GroupEpoch,
    GroupEpochRemoved,
    MemberAssigned,
    MemberSubscribed,
    OffsetCommitted,
    TargetEpoch,
)
from kafka_why.observed.view import view_of
from tests.harness.observed_epochs import (
    NAMES,
    Said,
    group_removed,
    has,
    removed,
    settles,
    subscription,
    target,
)
from tests.harness.observed_log import (
    CREATED,
    G,
    Watched,
    at,
    check_history_ends,
    classic_member,
    committed,
    generation,
    generations,
    told,
    watch,
)

A, B = classic_member("a", 0), classic_member("b", 1)
ALONE = generation(1, classic_member("a", 0, 1), since_ms=1_900)
BOTH = Said(2_000, G, generation(1, A, B, since_ms=1_900))
B_GONE = Said(43_500, G, generation(2, classic_member("a", 0, 1), since_ms=43_400))
STATIC = classic_member("a", 0, instance="i")
BACK = classic_member("a2", 0, instance="i")
FORMED = [("CompletingRebalance", None, "OB10"), ("Stable", None, "OB10")]
JOINED = [("MemberAdded", "a", "OB4"), ("PreparingRebalance", "a", "OB4"), *FORMED]


@pytest.mark.parametrize(
    ("said", "tail", "fields"),
    [
        pytest.param(
            generations(ALONE),
            [("GroupCreated", None, "OB1"), *JOINED],
            {
                0: {"seq": 1, "observed": True},
                -2: {"at_ms": 1_900, "seq": 4},  # the generation was formed then
                -1: {"at_ms": 2_000, "seq": 5},  # the leader's assignment was stored then
            },
            id="a new group",
        ),
        # Kafka 3.9 writes no record of the creation, and neither does any version if the group had offsets.
        pytest.param(
            (Said(2_000, G, ALONE),),
            [("GroupCreated", None, "OB14"), *JOINED],
            {-1: {"seq": 5}},
            id="no creation",
        ),
        pytest.param(
            (Said(1_000, G, committed(0, 5, 1_000)), Said(2_000, G, ALONE)),
            [("GroupCreated", None, "OB14"), *JOINED],
            {0: {"at_ms": 1_900, "seq": 1}},
            id="offsets before the first generation",
        ),
        # The coordinator writes it again when one of them has come back.
        pytest.param(
            (Said(5_000, G, generation(1, STATIC)),),
            [("Stable", None, "OB2")],
            {},
            id="a first generation of static members",
        ),
        pytest.param(
            (CREATED, BOTH, Said(2_400, G, committed(1, 5, 2_400)), B_GONE),
            [("MemberRemoved", "b", "OB3"), ("PreparingRebalance", "b", "OB3"), *FORMED],
            {-4: {"reason": "left or expired: the last commit of its partitions was 41.0 s before"}},
            id="the last commit of a member that is gone",
        ),
        pytest.param(
            (CREATED, Said(1_500, G, committed(1, 5, 1_500)), BOTH, B_GONE),
            [("MemberRemoved", "b", "OB3"), ("PreparingRebalance", "b", "OB3"), *FORMED],
            {-4: {"reason": "left or expired: none of its partitions had a commit since it got them"}},
            id="a commit before its generation is not a member's own",
        ),
        pytest.param(
            generations(generation(1, A), generation(2, classic_member("b", 0))),
            [("PreparingRebalance", None, "OB7"), *FORMED],
            {-3: {"reason": "the log does not say in which order"}},
            id="members came and went",
        ),
        pytest.param(
            generations(generation(1, A), generation(4, A)),
            [("PreparingRebalance", None, "OB8"), *FORMED],
            {-3: {"reason": "generations 2 to 3 left no record"}},
            id="generations without a record",
        ),
        pytest.param(
            generations(generation(1, A), generation(2, A)),
            [("PreparingRebalance", None, "OB8"), *FORMED],
            {},
            id="the same members again",
        ),
        pytest.param(
            generations(generation(1, A), generation(2, classic_member("a", 0, topic="prices"))),
            [("MemberRejoined", "a", "OB6"), ("PreparingRebalance", "a", "OB6"), *FORMED],
            {},
            id="other topics",
        ),
        pytest.param(
            generations(generation(1, STATIC), generation(1, BACK)),
            [("MemberReplaced", "a2", "OB9")],
            {-1: {"replaced_member_id": "a-1"}},
            id="a static member under a new id in place",
        ),
        pytest.param(
            generations(generation(1, STATIC), generation(2, BACK)),
            [("MemberReplaced", "a2", "OB5"), ("PreparingRebalance", "a2", "OB5"), *FORMED],
            {},
            id="a static member under a new id by a rebalance",
        ),
        pytest.param(
            generations(generation(1, A), generation(2)),
            [("MemberRemoved", "a", "OB3"), ("PreparingRebalance", "a", "OB3"), ("Empty", None, "OB11")],
            {},
            id="an empty generation",
        ),
        # The history begins with entry 2, so every reader sees that it does not know the beginning.
        pytest.param(
            (Said(5_000, G, generation(7, A)),), [("Stable", None, "OB2")], {0: {"seq": 2}}, id="the middle"
        ),
        # A number is left out for what is missing.
        pytest.param(
            generations(generation(5, A), generation(2, B)),
            [("Stable", None, "OB2")],
            {-2: {"seq": 5}, -1: {"seq": 7}},
            id="a generation that goes back",
        ),
        pytest.param(
            (*generations(generation(1)), Said(9_000, G, ClassicGroupRemoved())),
            [("GroupDeleted", None, "OB12")],
            {-1: {"to_state": DEAD}},
            id="a removed group",
        ),
    ],
)
def test_records_of_a_classic_group_become_history_entries(
    said: tuple[Said, ...], tail: list[tuple[str, str | None, str]], fields: dict[int, dict[str, Any]]
) -> None:
    check_history_ends(Watched().take(said).history, tail, fields)


def test_offsets_of_a_removed_group_stay_until_their_tombstones() -> None:
    """They are a group without members, and without a history if no generation was seen."""
    commit, removed = Said(3_000, G, committed(0, 1, 3_000)), Said(9_000, G, ClassicGroupRemoved())
    watched = Watched().take((*generations(generation(1)), commit, removed))
    assert watched.groups[G].offsets
    assert watched.groups[G].incarnation != watched.history[0].incarnation
    watched.take([Said(9_500, G, OffsetCommitted("orders", 0, None))])
    assert not watched.groups
    alone = Watched().take([commit])
    assert (alone.history, view_of(alone.groups[G], NAMES).state) == ([], "Empty")


def test_group_removed_while_it_has_members_is_reported_as_converted() -> None:
    entries = watch(
        *generations(generation(3, classic_member("a", 0, 1))),
        *at(9_000, ClassicGroupRemoved(), MemberSubscribed("a-1", subscription("a")), GroupEpoch(3, 7)),
        *at(9_000, target("a-1", 0, 1), TargetEpoch(3), has("a-1", 3, 0, 1)),
        *joins("b", 4, 9_100),
    )
    converted = [entry for entry in entries if entry.type is EntryType.GROUP_CONVERTED]
    assert [(entry.rule, entry.targets) for entry in converted] == [("OB13", {"a-1": {"orders": [0, 1]}})]
    assert [entry.member_id for entry in entries if entry.type is EntryType.MEMBER_ADDED] == ["a-1", "b"]
    assert entries[-1].reason == "member b joined"


def joins(name: str, epoch: int, at_ms: int) -> tuple[Said, ...]:
    return at(at_ms, MemberSubscribed(name, subscription(name)), GroupEpoch(epoch, 7))


def has_settled(epoch: int, at_ms: int, **partitions: tuple[int, ...]) -> tuple[Said, ...]:
    return at(at_ms, *settles(CONSUMER, epoch, **partitions))


def leaves(name: str, epoch: int, at_ms: int) -> tuple[Said, ...]:
    return at(at_ms, *removed(name, CONSUMER), GroupEpoch(epoch, 7))


ONE_MEMBER = (*joins("a", 2, 1_000), *has_settled(2, 1_000, a=(0, 1)))
COMMITTED = Said(3_000, G, committed(1, 5, 3_000))
TWO_MEMBERS = (*ONE_MEMBER, *joins("b", 3, 2_000), *has_settled(3, 2_000, a=(0,), b=(1,)))
STATIC_MEMBER = subscription("a", instance="i")


@pytest.mark.parametrize(
    ("said", "tail", "fields"),
    [
        pytest.param(
            ONE_MEMBER,
            [
                ("GroupCreated", None, "OB20"),
                ("MemberAdded", "a", "OB21"),
                ("GroupEpochBumped", "a", "OB23"),
                ("TargetAssignmentComputed", None, "OB24"),
                ("MemberReconciled", "a", "OB25"),
                ("Stable", None, "OB26"),
            ],
            {},
            id="the first member",
        ),
        pytest.param(
            (
                *ONE_MEMBER,
                *joins("b", 3, 5_000),
                *at(5_000, target("a", 0), target("b", 1), TargetEpoch(3), has("b", 3, state=2)),
                Said(5_200, G, has("a", 2, 0, state=1, revoking=(1,))),
                Said(6_000, G, has("a", 3, 0)),
                Said(6_500, G, has("b", 3, 1)),
            ),
            [*(("MemberReconciled", name, "OB25") for name in "baab"), ("Stable", None, "OB26")],
            {
                -5: {"assigned": {}, "revoking": None, "awaiting": {"orders": [1]}, "took_ms": None},
                -4: {"assigned": {"orders": [0]}, "revoking": {"orders": [1]}, "took_ms": None},
                -3: {"assigned": {"orders": [0]}, "revoking": None, "took_ms": 800},
                -2: {"assigned": {"orders": [1]}, "awaiting": None, "took_ms": None},
            },
            id="the second waits for what the first gives up",
        ),
        pytest.param(
            (*ONE_MEMBER, COMMITTED, *joins("b", 3, 4_000), *leaves("a", 4, 9_000)),
            [("MemberRemoved", "a", "OB22"), ("GroupEpochBumped", "a", "OB23")],
            {
                at: {"reason": "left or expired: the last commit of its partitions was 6.0 s before"}
                for at in (-2, -1)
            },
            id="a member that went",
        ),
        pytest.param(
            (*joins("a", 9, 1_000), COMMITTED, *has_settled(9, 4_000, a=(0, 1)), *leaves("a", 10, 9_000)),
            [("MemberRemoved", "a", "OB22"), ("GroupEpochBumped", "a", "OB23"), ("Empty", None, "OB26")],
            {-3: {"reason": "left or expired: the last commit of its partitions was 6.0 s before"}},
            id="a member that had its partitions before the first record of them that was read",
        ),
        pytest.param(
            (*ONE_MEMBER, *leaves("a", 3, 9_000), Said(9_000, G, TargetEpoch(3))),
            [("MemberRemoved", "a", "OB22"), ("GroupEpochBumped", "a", "OB23"), ("Empty", None, "OB26")],
            {},
            id="the last member",
        ),
        pytest.param(
            (*ONE_MEMBER, Said(5_000, G, GroupEpoch(3, 8))),
            [("GroupEpochBumped", None, "OB27")],
            {-2: {"seq": 6}, -1: {"seq": 7}},
            id="another hash means other topics",
        ),
        pytest.param(
            (*ONE_MEMBER, Said(5_000, G, GroupEpoch(5, 8))),
            [("GroupEpochBumped", None, "OB27")],
            {-2: {"seq": 6}, -1: {"seq": 8}},
            id="an epoch that is left out is a gap",
        ),
        pytest.param(
            (
                *at(1_000, MemberSubscribed("a", STATIC_MEMBER), GroupEpoch(2, 7)),
                *has_settled(2, 1_000, a=(0, 1)),
                Said(5_000, G, has("a", -2, 0, 1)),
                *leaves("a", 2, 7_000)[:3],
                *at(7_000, MemberSubscribed("a2", STATIC_MEMBER), target("a2", 0, 1), has("a2", 2, 0, 1)),
            ),
            [
                ("MemberLeftTemporarily", "a", "OB25"),
                ("MemberReplaced", "a2", "OB28"),
                ("MemberReconciled", "a2", "OB25"),
            ],
            {-2: {"replaced_member_id": "a"}},
            id="a static member under a new id",
        ),
        pytest.param(
            (*ONE_MEMBER, *leaves("a", 3, 9_000), *at(99_000, *group_removed(CONSUMER))),
            [("GroupDeleted", None, "OB12")],
            {},
            id="a deleted group",
        ),
        pytest.param(
            (
                *TWO_MEMBERS,
                *at(9_000, MemberAssigned("a", None), MemberAssigned("b", None), TargetEpoch(None)),
                *at(9_000, MemberSubscribed("a", None), MemberSubscribed("b", None), GroupEpochRemoved()),
                Said(9_000, G, generation(3, classic_member("b", 1))),
            ),
            [],
            {
                -3: {"type": EntryType.GROUP_CONVERTED},
                **{at: {"group_type": "classic"} for at in (-3, -2, -1)},
            },
            id="the last consumer leaves a classic group",
        ),
    ],
)
def test_records_of_a_consumer_group_become_history_entries(
    said: tuple[Said, ...], tail: list[tuple[str, str | None, str]], fields: Mapping[int, Mapping[str, Any]]
) -> None:
    check_history_ends(watch(*said), tail, fields)


def test_commits_of_topics_with_an_unknown_name_are_not_mentioned() -> None:
    watched = Watched(names={}).take((*ONE_MEMBER, COMMITTED, *leaves("a", 3, 9_000)))
    removed = [entry.reason for entry in watched.history if entry.type is EntryType.MEMBER_REMOVED]
    assert removed == ["member a left or expired"]


def test_compacted_records_of_a_group_at_rest_produce_no_history() -> None:
    """Of a group at rest compaction leaves one record of each kind: nobody joined when they are read."""
    watched = Watched().take(
        (
            Said(1_000, G, MemberSubscribed("a", subscription("a"))),
            *joins("b", 9, 2_000),
            *has_settled(9, 2_000, a=(0,), b=(1,)),
        )
    )
    assert watched.history == []
    view = view_of(watched.groups[G], NAMES)
    assert (view.state, view.generation, [m.member_id for m in view.members]) == ("Stable", 9, ["a", "b"])
    watched.take(joins("c", 10, 8_000))
    assert told(watched.history) == [("MemberAdded", "c", "OB21"), ("GroupEpochBumped", "c", "OB23")]
    assert watched.history[0].seq == 2


def test_compacted_records_of_a_converted_group_produce_no_history() -> None:
    members = [Said(1_000, G, MemberSubscribed(name, subscription(name))) for name in ("a", "b")]
    first_epoch = (Said(1_000, G, GroupEpoch(2, 7)), *has_settled(2, 1_000, a=(0,), b=(1,)))
    assert watch(Said(1_000, G, ClassicGroupRemoved()), *members, *first_epoch) == []
