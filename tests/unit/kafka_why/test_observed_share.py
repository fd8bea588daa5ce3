"""History and views of observed share groups, by the rows of docs/observe.md."""

from collections.abc import Mapping
from typing import Any

import pytest

from kafka_why.contract.kafka.history import SHARE, EntryType
from kafka_why.observed.records import AnyRecord, GroupEpoch, MemberSubscribed, TargetEpoch
from kafka_why.observed.view import view_of
from tests.harness.observed_epochs import (
    Said,
    group_removed,
    has,
    removed,
    settles,
    share_partitions,
    subscription,
)
from tests.harness.observed_log import G, Watched, at, check_history_ends, watch

PENDING = "orders-0, orders-1 are initialized and were in no target assignment"


def joins(name: str, epoch: int) -> list[AnyRecord]:
    return [MemberSubscribed(name, subscription(name), SHARE), GroupEpoch(epoch, 7, SHARE)]


BEGUN = (
    *at(1_000, *joins("a", 2), *settles(SHARE, 2, a=()), share_partitions(initializing=(0, 1))),
    *at(1_400, share_partitions(0, 1)),
    *at(6_000, GroupEpoch(3, 7, SHARE), *settles(SHARE, 3, a=(0, 1))),
)


TWO = (*BEGUN, *at(7_000, *joins("b", 4), has("b", 3, kind=SHARE)))
DELETING = (*BEGUN, *at(9_000, share_partitions(deleting=True)))
GONE = at(9_000, *removed("a", SHARE), GroupEpoch(4, 0, SHARE))


def subscribes(*topics: str) -> tuple[Said, ...]:
    return at(7_000, MemberSubscribed("a", subscription("a", topics=topics), SHARE), GroupEpoch(4, 8, SHARE))


@pytest.mark.parametrize(
    ("said", "tail", "fields"),
    [
        pytest.param(
            BEGUN,
            [
                ("GroupCreated", None, "OB20"),
                ("MemberAdded", "a", "OB21"),
                ("GroupEpochBumped", "a", "OB23"),
                ("TargetAssignmentComputed", None, "OB24"),
                ("MemberReconciled", "a", "OB25"),
                ("Stable", None, "OB26"),
                ("SharePartitionsInitializing", None, "OB40"),
                ("SharePartitionsInitialized", None, "OB41"),
                ("GroupEpochBumped", None, "OB43"),
                ("TargetAssignmentComputed", None, "OB24"),
                ("MemberReconciled", "a", "OB25"),
                ("Stable", None, "OB26"),
            ],
            {
                2: {"reason": "member a joined"},
                7: {"partitions": {"orders": [0, 1]}, "took_ms": 400},
                8: {"reason": PENDING},
            },
            id="it gets partitions when they are initialized",
        ),
        # ShareGroup.maybeUpdateGroupState. Each entry `Stable` says that all have their targets.
        pytest.param(
            TWO,
            [("MemberReconciled", "b", "OB25")],
            {-1: {"to_state": "Stable"}},
            id="a member without a target",
        ),
        pytest.param(
            (*TWO, *at(8_000, *settles(SHARE, 4, a=(0,), b=(1,)))),
            [*(("MemberReconciled", name, "OB25") for name in "ab"), ("Stable", None, "OB26")],
            {-1: {"at_ms": 8_000}},
            id="all have their targets",
        ),
        # The offsets of share groups are not in this log.
        pytest.param(
            (*BEGUN, *GONE, *at(9_000, TargetEpoch(4, SHARE))),
            [("MemberRemoved", "a", "OB22"), ("GroupEpochBumped", "a", "OB23"), ("Empty", None, "OB26")],
            {-3: {"reason": "member a left or expired"}},
            id="a member that went",
        ),
        pytest.param(
            (*BEGUN, *subscribes("orders", "prices")),
            [("GroupEpochBumped", "a", "OB23")],
            {},
            id="one name more",
        ),
        pytest.param(
            (*BEGUN, *subscribes("prices")), [("GroupEpochBumped", "a", "OB23")], {}, id="another name"
        ),
        pytest.param(
            (*BEGUN, *subscribes("orders")), [("GroupEpochBumped", None, "OB27")], {}, id="the same"
        ),
        pytest.param(
            (*BEGUN, *at(9_000, *[share_partitions(0, 1, initializing=(2, 3))] * 2)),
            [("Stable", None, "OB26"), ("SharePartitionsInitializing", None, "OB40")],
            {
                -1: {
                    "reason": "the share coordinator was asked to initialize orders-2, orders-3",
                    "partitions": {"orders": [2, 3]},
                }
            },
            id="more partitions, told once",
        ),
        pytest.param(
            (*BEGUN, *at(9_000, *[share_partitions()] * 2)),
            [("Stable", None, "OB26"), ("SharePartitionsRemoved", None, "OB42")],
            {
                -1: {
                    "reason": "orders-0, orders-1 are no longer initialized: the topic was deleted",
                    "partitions": {"orders": [0, 1]},
                }
            },
            id="a deleted topic, told once",
        ),
        # The log does not say which: GroupMetadataManager.uninitializeShareGroupState.
        pytest.param(
            (*BEGUN, *at(9_000, share_partitions(0, 1, initializing=(2,)), share_partitions(0, 1))),
            [("SharePartitionsInitializing", None, "OB40"), ("SharePartitionsNotInitialized", None, "OB42")],
            {-1: {"reason": "orders-2 are no longer initializing: that failed, or the topic was deleted"}},
            id="an initialization that does not come",
        ),
        pytest.param(
            (*DELETING, *at(9_100, share_partitions(deleting=True)), *at(9_500, share_partitions())),
            [("SharePartitionsDeleting", None, "OB44"), ("SharePartitionsRemoved", None, "OB44")],
            {
                -2: {
                    "reason": "the share coordinator was asked to delete the state of orders",
                    "partitions": {"orders": [0, 1]},
                },
                -1: {"reason": "the state of orders was deleted, or the topic itself"},
            },
            id="state that is deleted",
        ),
        pytest.param(
            (*DELETING, *at(9_500, share_partitions(initializing=(0, 1)))),
            [("SharePartitionsDeleting", None, "OB44"), ("SharePartitionsInitializing", None, "OB40")],
            {},
            id="state that is needed again",
        ),
        # AlterShareGroupOffsets leaves them assignable, so nothing is removed.
        pytest.param(
            (*BEGUN, *at(9_000, share_partitions(0, 1, initializing=(0,)), share_partitions(0, 1))),
            [("Stable", None, "OB26"), ("SharePartitionsInitializing", None, "OB40")],
            {},
            id="altered offsets",
        ),
        pytest.param(
            (*BEGUN, *GONE, *at(9_500, share_partitions(deleting=True)), *at(9_600, *group_removed(SHARE))),
            [("SharePartitionsDeleting", None, "OB44"), ("GroupDeleted", None, "OB12")],
            {},
            id="a deleted group",
        ),
        # It has no epoch before its first member, as a group whose older records compaction has removed.
        pytest.param(
            (*at(500, share_partitions(initializing=(0,))), *at(1_000, *joins("a", 2))),
            [("MemberAdded", "a", "OB21"), ("GroupEpochBumped", "a", "OB23")],
            {0: {"seq": 2}},
            id="a group that altered offsets made",
        ),
        # The records that ended the one before are missing, so a number is left out.
        pytest.param(
            (Said(500, G, MemberSubscribed("c", subscription("c"))), Said(500, G, GroupEpoch(2, 7)), *BEGUN),
            [("Stable", None, "OB26")],
            {2: {"group_type": "consumer", "seq": 3}, 3: {"group_type": "share", "seq": 5}},
            id="a group of another type before",
        ),
    ],
)
def test_records_of_a_share_group_become_history_entries(
    said: tuple[Said, ...], tail: list[tuple[str, str | None, str]], fields: Mapping[int, Mapping[str, Any]]
) -> None:
    check_history_ends(watch(*said), tail, fields)


def test_history_of_an_older_share_group_starts_with_its_first_change() -> None:
    found = at(1_000, MemberSubscribed("a", subscription("a"), SHARE), GroupEpoch(40, 7, SHARE))
    found += at(1_500, share_partitions(0), *settles(SHARE, 40, a=(0,)))
    assert watch(*found) == []
    (group,) = Watched().take(found).groups.values()
    assert (group.state, group.generation, group.member_ids()) == ("Stable", 40, ["a"])
    first, *_ = watch(*found, *at(2_000, *joins("b", 41)))
    assert (first.seq, first.type) == (2, EntryType.MEMBER_ADDED)


def test_view_shows_the_state_of_share_partitions() -> None:
    (group,) = Watched().take((*BEGUN, *at(9_000, share_partitions(0, 1, initializing=(2,))))).groups.values()
    view = view_of(group, {})
    assert (view.protocol_type, view.group_type, view.state) == ("share", "share", "Stable")
    assert view.consumer
    assert view.consumer.share
    assert view.consumer.share.initialized == {"orders": [0, 1]}, "names are those of the log"
    assert view.consumer.share.initializing == {"orders": [2]}
    (member,) = view.members
    assert member.consumer is not None
    assert (member.consumer.member_type, member.consumer.assigned) == ("share", {"orders": [0, 1]})
