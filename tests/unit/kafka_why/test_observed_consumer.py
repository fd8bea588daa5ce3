"""What follows from the records of groups of the consumer protocol, by the rows of docs/observe.md."""

from collections.abc import Mapping
from typing import Any

import pytest

from kafka_why.contract.kafka.history import CONSUMER, EntryType
from kafka_why.observed.records import (
    ClassicGroupRemoved,
    GroupEpoch,
    GroupEpochRemoved,
    MemberAssigned,
    MemberSubscribed,
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
    G,
    Watched,
    at,
    check_told,
    classic_member,
    committed,
    generation,
    generations,
    told,
    watch,
)


def test_group_removed_with_members_has_changed_its_protocol() -> None:
    entries = watch(
        *generations(generation(3, classic_member("a", 0, 1))),
        *at(9_000, ClassicGroupRemoved(), MemberSubscribed("a-1", subscription("a")), GroupEpoch(3, 7)),
        *at(9_000, target("a-1", 0, 1), TargetEpoch(3, 9_000), has("a-1", 3, 0, 1)),
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


ALONE = (*joins("a", 2, 1_000), *has_settled(2, 1_000, a=(0, 1)))
COMMITTED = Said(3_000, G, committed(1, 5, 3_000))
BOTH = (*ALONE, *joins("b", 3, 2_000), *has_settled(3, 2_000, a=(0,), b=(1,)))
STATIC = subscription("a", instance="i")


@pytest.mark.parametrize(
    ("said", "tail", "fields"),
    [
        pytest.param(
            ALONE,
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
                *ALONE,
                *joins("b", 3, 5_000),
                *at(5_000, target("a", 0), target("b", 1), TargetEpoch(3, 5_000), has("b", 3, state=2)),
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
            (*ALONE, COMMITTED, *joins("b", 3, 4_000), *leaves("a", 4, 9_000)),
            [("MemberRemoved", "a", "OB22"), ("GroupEpochBumped", "a", "OB23")],
            {
                at: {"reason": "left or expired: the last commit of its partitions was 6.0 s before"}
                for at in (-2, -1)
            },
            id="a member that went",
        ),
        pytest.param(
            (
                *joins("a", 9, 1_000),
                COMMITTED,
                *has_settled(9, 4_000, a=(0, 1)),
                *leaves("a", 10, 9_000),
            ),
            [("MemberRemoved", "a", "OB22"), ("GroupEpochBumped", "a", "OB23"), ("Empty", None, "OB26")],
            {-3: {"reason": "left or expired: the last commit of its partitions was 6.0 s before"}},
            id="a member that had its partitions before the first record of them that was read",
        ),
        pytest.param(
            (*ALONE, *leaves("a", 3, 9_000), Said(9_000, G, TargetEpoch(3, None))),
            [("MemberRemoved", "a", "OB22"), ("GroupEpochBumped", "a", "OB23"), ("Empty", None, "OB26")],
            {},
            id="the last member",
        ),
        pytest.param(
            (*ALONE, Said(5_000, G, GroupEpoch(3, 8))),
            [("GroupEpochBumped", None, "OB27")],
            {-2: {"seq": 6}, -1: {"seq": 7}},
            id="another hash means other topics",
        ),
        pytest.param(
            (*ALONE, Said(5_000, G, GroupEpoch(5, 8))),
            [("GroupEpochBumped", None, "OB27")],
            {-2: {"seq": 6}, -1: {"seq": 8}},
            id="an epoch that is left out is a gap",
        ),
        pytest.param(
            (
                *at(1_000, MemberSubscribed("a", STATIC), GroupEpoch(2, 7)),
                *has_settled(2, 1_000, a=(0, 1)),
                Said(5_000, G, has("a", -2, 0, 1)),
                *leaves("a", 2, 7_000)[:3],
                *at(7_000, MemberSubscribed("a2", STATIC), target("a2", 0, 1), has("a2", 2, 0, 1)),
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
            (
                *ALONE,
                *leaves("a", 3, 9_000),
                *at(99_000, *group_removed(CONSUMER)),
            ),
            [("GroupDeleted", None, "OB12")],
            {},
            id="a deleted group",
        ),
        pytest.param(
            (
                *BOTH,
                *at(9_000, MemberAssigned("a", None), MemberAssigned("b", None), TargetEpoch(None, None)),
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
    check_told(watch(*said), tail, fields)


def test_commits_of_topics_without_a_known_name_are_not_mentioned() -> None:
    watched = Watched(names={}).take((*ALONE, COMMITTED, *leaves("a", 3, 9_000)))
    removed = [entry.reason for entry in watched.history if entry.type is EntryType.MEMBER_REMOVED]
    assert removed == ["member a left or expired"]


def test_compacted_records_of_a_group_make_no_history() -> None:
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


def test_compacted_records_of_a_converted_group_make_no_history() -> None:
    members = [Said(1_000, G, MemberSubscribed(name, subscription(name))) for name in ("a", "b")]
    first_epoch = (Said(1_000, G, GroupEpoch(2, 7)), *has_settled(2, 1_000, a=(0,), b=(1,)))
    assert watch(Said(1_000, G, ClassicGroupRemoved()), *members, *first_epoch) == []
