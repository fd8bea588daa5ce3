"""What follows from the records of share groups, by the rows of docs/observe.md."""

import pytest

from state.kafka.history import EntryType, HistoryEntry
from state.kafka.observed.group import SHARE
from state.kafka.observed.records import AnyRecord, GroupEpoch, MemberSubscribed, TargetEpoch
from state.kafka.observed.view import view_of
from tests.harness.observed_epochs import (
    NAMES,
    Said,
    group_removed,
    has,
    removed,
    share_partitions,
    subscription,
    target,
)
from tests.harness.observed_log import (
    REAL_OF_OTHERS,
    G,
    Watched,
    real_records,
    told,
    watch,
)

PENDING = "orders-0, orders-1 are initialized and were in no target assignment"


def at(at_ms: int, *records: AnyRecord) -> tuple[Said, ...]:
    """Records of one request."""
    return tuple(Said(at_ms, G, record) for record in records)


def settles(epoch: int, **partitions: tuple[int, ...]) -> list[AnyRecord]:
    """The target assignment of an epoch, which members of a share group have at once."""
    return [
        *(target(name, *numbers, kind=SHARE) for name, numbers in partitions.items()),
        TargetEpoch(epoch, 1, SHARE),
        *(has(name, epoch, *numbers, kind=SHARE) for name, numbers in partitions.items()),
    ]


def joins(name: str, epoch: int) -> list[AnyRecord]:
    return [MemberSubscribed(name, subscription(name), SHARE), GroupEpoch(epoch, 7, SHARE)]


BEGUN = (
    *at(1_000, *joins("a", 2), *settles(2, a=()), share_partitions(initializing=(0, 1))),
    *at(1_400, share_partitions(0, 1)),
    *at(6_000, GroupEpoch(3, 7, SHARE), *settles(3, a=(0, 1))),
)


def entries_of(type_: EntryType, *said: Said) -> list[HistoryEntry]:
    return [entry for entry in watch(*said) if entry.type is type_]


def test_a_group_begins_with_its_first_member_and_gets_partitions_when_they_are_initialized() -> None:
    assert told(watch(*BEGUN)) == [
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
    ]


def test_an_initialization_has_its_partitions_and_its_time() -> None:
    (done,) = entries_of(EntryType.SHARE_PARTITIONS_INITIALIZED, *BEGUN)
    assert (done.partitions, done.took_ms) == ({"orders": [0, 1]}, 400)


def test_an_epoch_for_initialized_partitions_says_so() -> None:
    bumped = entries_of(EntryType.GROUP_EPOCH_BUMPED, *BEGUN)
    assert [entry.reason for entry in bumped] == ["member a joined", PENDING]


def test_a_share_group_with_members_is_stable_whatever_its_epochs_are() -> None:
    """ShareGroup.maybeUpdateGroupState. Each entry `Stable` says that all have their targets."""
    said = (*BEGUN, *at(7_000, *joins("b", 4), has("b", 3, kind=SHARE)))
    history = watch(*said, *at(8_000, *settles(4, a=(0,), b=(1,))))
    assert {entry.to_state for entry in history[2:]} == {"Stable"}
    assert [entry.at_ms for entry in history if entry.type is EntryType.STABLE] == [1_000, 6_000, 8_000]
    assert watch(*said)[-1].type is EntryType.MEMBER_RECONCILED, "b has no target yet"


def test_a_member_that_goes_left_or_expired_and_nothing_is_said_of_commits() -> None:
    """The offsets of share groups are not in this log."""
    gone = at(9_000, *removed("a", SHARE), GroupEpoch(4, 0, SHARE), TargetEpoch(4, None, SHARE))
    entries = watch(*BEGUN, *gone)[-3:]
    assert told(entries) == [
        ("MemberRemoved", "a", "OB22"),
        ("GroupEpochBumped", "a", "OB23"),
        ("Empty", None, "OB26"),
    ]
    assert entries[0].reason == "member a left or expired"


@pytest.mark.parametrize(
    ("names", "is_change"), [(("orders", "prices"), True), (("prices",), True), (("orders",), False)]
)
def test_only_other_names_are_another_subscription(names: tuple[str, ...], is_change: bool) -> None:
    again = MemberSubscribed("a", subscription("a", topics=names), SHARE)
    bumped = watch(*BEGUN, *at(7_000, again, GroupEpoch(4, 8, SHARE)))[-1]
    assert (bumped.rule, bumped.member_id) == (("OB23", "a") if is_change else ("OB27", None))


@pytest.mark.parametrize(
    ("then", "rule", "reason", "partitions"),
    [
        (
            share_partitions(0, 1, initializing=(2, 3)),
            "OB40",
            "the share coordinator was asked to initialize orders-2, orders-3",
            {"orders": [2, 3]},
        ),
        (
            share_partitions(),
            "OB42",
            "orders-0, orders-1 are not initialized any more: the topic was deleted",
            {"orders": [0, 1]},
        ),
        (
            share_partitions(deleting=True),
            "OB44",
            "the share coordinator was asked to delete the state of orders",
            {"orders": [0, 1]},
        ),
    ],
)
def test_a_change_of_the_share_state_is_told_once(
    then: AnyRecord, rule: str, reason: str, partitions: dict[str, list[int]]
) -> None:
    said = (*BEGUN, *at(9_000, then), *at(9_100, then))
    (entry,) = watch(*said)[len(watch(*BEGUN)) :]
    assert (entry.rule, entry.reason, entry.partitions) == (rule, reason, partitions)


def test_an_initialization_that_does_not_come_failed_or_its_topic_was_deleted() -> None:
    """The log does not say which: GroupMetadataManager.uninitializeShareGroupState."""
    said = (*BEGUN, *at(9_000, share_partitions(0, 1, initializing=(2,))), *at(9_100, share_partitions(0, 1)))
    entry = watch(*said)[-1]
    assert (entry.type, entry.rule) == (EntryType.SHARE_PARTITIONS_NOT_INITIALIZED, "OB42")
    assert entry.reason == "orders-2 are not initializing any more: that failed, or the topic was deleted"


def test_deleted_state_is_told_and_state_that_is_needed_again_is_initializing() -> None:
    deleting = (*BEGUN, *at(9_000, share_partitions(deleting=True)))
    deleted = watch(*deleting, *at(9_500, share_partitions()))[-1]
    assert (deleted.rule, deleted.reason) == ("OB44", "the state of orders was deleted, or the topic was")
    again = watch(*deleting, *at(9_500, share_partitions(initializing=(0, 1))))[len(watch(*deleting)) :]
    assert [entry.rule for entry in again] == ["OB40"]


def test_altered_offsets_initialize_partitions_that_stay_initialized() -> None:
    """AlterShareGroupOffsets leaves them assignable, so nothing is removed."""
    said = (*BEGUN, *at(9_000, share_partitions(0, 1, initializing=(0,))), *at(9_100, share_partitions(0, 1)))
    rules = [entry.rule for entry in watch(*said)[len(watch(*BEGUN)) :]]
    assert rules == ["OB40"]


def test_a_deleted_group_leaves_nothing() -> None:
    gone = at(9_000, *removed("a", SHARE), GroupEpoch(4, 0, SHARE))
    ended = (*BEGUN, *gone, *at(9_500, share_partitions(deleting=True)), *at(9_600, *group_removed(SHARE)))
    watched = Watched().take(ended)
    assert told(watched.history)[-2:] == [
        ("SharePartitionsDeleting", None, "OB44"),
        ("GroupDeleted", None, "OB12"),
    ]
    assert watched.groups == {}


def test_a_group_that_altered_offsets_made_has_no_known_creation() -> None:
    """It has no epoch before its first member, as a group whose older records compaction has removed."""
    made = at(500, share_partitions(initializing=(0,)))
    history = watch(*made, *at(1_000, *joins("a", 2)))
    assert told(history) == [("MemberAdded", "a", "OB21"), ("GroupEpochBumped", "a", "OB23")]
    assert history[0].seq == 2
    (group,) = Watched().take(made).groups.values()
    assert (group.state, view_of(group, NAMES).group_type) == ("Empty", "share")


def test_an_older_group_is_known_from_its_first_change_on() -> None:
    found = at(1_000, MemberSubscribed("a", subscription("a"), SHARE), GroupEpoch(40, 7, SHARE))
    found += at(1_500, share_partitions(0), *settles(40, a=(0,)))
    assert watch(*found) == []
    (group,) = Watched().take(found).groups.values()
    assert (group.state, group.generation, group.member_ids()) == ("Stable", 40, ["a"])
    first, *_ = watch(*found, *at(2_000, *joins("b", 41)))
    assert (first.seq, first.type) == (2, EntryType.MEMBER_ADDED)


def test_a_group_of_another_type_under_the_same_name_begins_anew() -> None:
    """The records that ended the one before are missing, so a number is left out."""
    as_consumer = (Said(500, G, MemberSubscribed("c", subscription("c"))), Said(500, G, GroupEpoch(2, 7)))
    history = watch(*as_consumer, *BEGUN)
    assert [entry.group_type for entry in history[:4]] == ["consumer"] * 3 + ["share"]
    assert history[3].seq == history[2].seq + 2


def test_the_view_has_the_state_of_the_partitions() -> None:
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


def test_a_real_broker_s_share_group_tells_what_happened() -> None:
    history = Watched().take(real_records(REAL_OF_OTHERS)).of("queue")
    clients = {entry.member_id: entry.client_id for entry in history if entry.client_id}
    seen = [
        (entry.type.value, clients.get(entry.member_id))
        for entry in history
        if entry.rule in ("OB20", "OB21", "OB22", "OB40", "OB41", "OB43", "OB44", "OB12")
    ]
    assert seen == [
        ("GroupCreated", None),
        ("MemberAdded", "s1"),
        ("SharePartitionsInitializing", None),
        ("SharePartitionsInitialized", None),
        ("GroupEpochBumped", None),
        ("MemberAdded", "s2"),
        ("MemberRemoved", "s1"),
        ("MemberRemoved", "s2"),
        ("SharePartitionsDeleting", None),
        ("GroupDeleted", None),
    ]
    held = [(clients[e.member_id], e.assigned) for e in history if e.type is EntryType.MEMBER_RECONCILED]
    assert held[-1] == ("s2", {"orders": [0, 1, 2, 3]})
