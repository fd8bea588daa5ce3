"""What follows from the records of groups of the consumer protocol, by the rows of docs/observe.md."""

from state.kafka.history import EntryType
from state.kafka.observed.group import ObservedGroup
from state.kafka.observed.observation import At
from state.kafka.observed.records import (
    ClassicGroupRemoved,
    GroupEpoch,
    GroupEpochRemoved,
    MemberAssigned,
    MemberSubscribed,
    MemberTarget,
    RebalanceSeen,
    TargetEpoch,
)
from state.kafka.observed.step import observe
from state.kafka.observed.view import view_of
from tests.harness.observed_epochs import NAMES, Said, has, subscription, target
from tests.harness.observed_log import (
    G,
    Watched,
    classic_member,
    committed,
    generation,
    generations,
    told,
    watch,
)


def test_a_removed_group_with_members_changed_its_protocol() -> None:
    entries = watch(
        *generations(generation(3, classic_member("a", 0, 1))),
        Said(9_000, G, ClassicGroupRemoved()),
        Said(9_000, G, MemberSubscribed("a-1", subscription("a"))),
        Said(9_000, G, GroupEpoch(3, 7)),
        Said(9_000, G, target("a-1", 0, 1)),
        Said(9_000, G, TargetEpoch(3, 9_000)),
        Said(9_000, G, has("a-1", 3, 0, 1)),
        Said(9_100, G, MemberSubscribed("b", subscription("b"))),
        Said(9_100, G, GroupEpoch(4, 7)),
    )
    converted = [entry for entry in entries if entry.type is EntryType.GROUP_CONVERTED]
    assert [(entry.rule, entry.targets) for entry in converted] == [("OB13", {"a-1": {"orders": [0, 1]}})]
    assert [entry.member_id for entry in entries if entry.type is EntryType.MEMBER_ADDED] == ["a-1", "b"]
    assert entries[-1].reason == "member b joined"


def joins(name: str, epoch: int, at_ms: int) -> tuple[Said, ...]:
    return (
        Said(at_ms, G, MemberSubscribed(name, subscription(name))),
        Said(at_ms, G, GroupEpoch(epoch, 7)),
    )


def settles(epoch: int, at_ms: int, **partitions: tuple[int, ...]) -> tuple[Said, ...]:
    return (
        *(Said(at_ms, G, target(name, *numbers)) for name, numbers in partitions.items()),
        Said(at_ms, G, TargetEpoch(epoch, at_ms)),
        *(Said(at_ms, G, has(name, epoch, *numbers)) for name, numbers in partitions.items()),
    )


def leaves(name: str, epoch: int, at_ms: int) -> tuple[Said, ...]:
    return (
        Said(at_ms, G, MemberAssigned(name, None)),
        Said(at_ms, G, MemberTarget(name, None)),
        Said(at_ms, G, MemberSubscribed(name, None)),
        Said(at_ms, G, GroupEpoch(epoch, 7)),
    )


ALONE = (*joins("a", 2, 1_000), *settles(2, 1_000, a=(0, 1)))


def test_the_first_member_of_the_consumer_protocol_creates_the_group() -> None:
    assert told(watch(*ALONE)) == [
        ("GroupCreated", None, "OB20"),
        ("MemberAdded", "a", "OB21"),
        ("GroupEpochBumped", "a", "OB23"),
        ("TargetAssignmentComputed", None, "OB24"),
        ("MemberReconciled", "a", "OB25"),
        ("Stable", None, "OB26"),
    ]


def test_a_second_member_waits_for_what_the_first_gives_up() -> None:
    entries = watch(
        *ALONE,
        *joins("b", 3, 5_000),
        Said(5_000, G, target("a", 0)),
        Said(5_000, G, target("b", 1)),
        Said(5_000, G, TargetEpoch(3, 5_000)),
        Said(5_000, G, has("b", 3, state=2)),
        Said(5_200, G, has("a", 2, 0, state=1, revoking=(1,))),
        Said(6_000, G, has("a", 3, 0)),
        Said(6_500, G, has("b", 3, 1)),
    )
    steps = [entry for entry in entries if entry.type is EntryType.MEMBER_RECONCILED][1:]
    assert [(s.member_id, s.assigned, s.revoking, s.awaiting, s.took_ms) for s in steps] == [
        ("b", {}, None, {"orders": [1]}, None),
        ("a", {"orders": [0]}, {"orders": [1]}, None, None),
        ("a", {"orders": [0]}, None, None, 800),
        ("b", {"orders": [1]}, None, None, None),
    ]
    assert told(entries)[-1] == ("Stable", None, "OB26")


def test_of_topics_without_a_name_nothing_is_said_of_commits() -> None:
    group: ObservedGroup | None = None
    removed: list[str] = []
    said = [*ALONE, Said(3_000, G, committed(1, 5, 3_000)), *leaves("a", 3, 9_000)]
    for place, (at_ms, _, says) in enumerate(said):
        assert not isinstance(says, RebalanceSeen)
        seen = observe(group, G, says, At(at_ms, f"topic-0-{place}", "o"), {})
        group = seen.group
        removed += [entry.reason for entry in seen.history if entry.type is EntryType.MEMBER_REMOVED]
    assert removed == ["member a left or expired"]


def test_a_member_of_the_consumer_protocol_that_went_left_or_expired() -> None:
    entries = watch(
        *ALONE, Said(3_000, G, committed(1, 5, 3_000)), *joins("b", 3, 4_000), *leaves("a", 4, 9_000)
    )
    (gone,) = [entry for entry in entries if entry.type is EntryType.MEMBER_REMOVED]
    assert gone.reason == "member a left or expired: the last commit of its partitions was 6.0 s before"
    assert entries[-1].reason == gone.reason


def test_the_last_member_leaves_an_empty_group() -> None:
    entries = watch(*ALONE, *leaves("a", 3, 9_000), Said(9_000, G, TargetEpoch(3, None)))
    assert told(entries)[-3:] == [
        ("MemberRemoved", "a", "OB22"),
        ("GroupEpochBumped", "a", "OB23"),
        ("Empty", None, "OB26"),
    ]


def test_another_hash_alone_means_other_topics() -> None:
    assert watch(*ALONE, Said(5_000, G, GroupEpoch(3, 8)))[-1].rule == "OB27"


def test_an_epoch_that_is_left_out_is_a_gap() -> None:
    entries = watch(*ALONE, Said(5_000, G, GroupEpoch(5, 8)))
    assert entries[-1].seq - entries[-2].seq == 2


def test_a_static_member_that_comes_back_under_a_new_id_did_not_leave() -> None:
    static = subscription("a", instance="i")
    entries = watch(
        Said(1_000, G, MemberSubscribed("a", static)),
        Said(1_000, G, GroupEpoch(2, 7)),
        *settles(2, 1_000, a=(0, 1)),
        Said(5_000, G, has("a", -2, 0, 1)),
        *leaves("a", 2, 7_000)[:3],
        Said(7_000, G, MemberSubscribed("a2", static)),
        Said(7_000, G, target("a2", 0, 1)),
        Said(7_000, G, has("a2", 2, 0, 1)),
    )
    kinds = [entry.type for entry in entries]
    assert EntryType.MEMBER_LEFT_TEMPORARILY in kinds
    assert EntryType.MEMBER_REMOVED not in kinds
    (back,) = [entry for entry in entries if entry.type is EntryType.MEMBER_REPLACED]
    assert (back.member_id, back.replaced_member_id, back.rule) == ("a2", "a", "OB28")


def test_what_compaction_left_of_a_group_is_no_history() -> None:
    """Of a group at rest compaction leaves one record of each kind: nobody joined when they are read."""
    watched = Watched().take(
        (
            Said(1_000, G, MemberSubscribed("a", subscription("a"))),
            Said(2_000, G, MemberSubscribed("b", subscription("b"))),
            Said(2_000, G, GroupEpoch(9, 7)),
            *settles(9, 2_000, a=(0,), b=(1,)),
        )
    )
    assert watched.history == []
    view = view_of(watched.groups[G], NAMES)
    assert (view.state, view.generation, [m.member_id for m in view.members]) == ("Stable", 9, ["a", "b"])
    watched.take(joins("c", 10, 8_000))
    assert told(watched.history) == [("MemberAdded", "c", "OB21"), ("GroupEpochBumped", "c", "OB23")]
    assert watched.history[0].seq == 2


def test_a_deleted_group_of_the_consumer_protocol_ends() -> None:
    entries = watch(
        *ALONE,
        *leaves("a", 3, 9_000),
        Said(99_000, G, TargetEpoch(None, None)),
        Said(99_000, G, GroupEpochRemoved()),
    )
    assert (entries[-1].type, entries[-1].rule) == (EntryType.GROUP_DELETED, "OB12")


def test_the_last_consumer_leaves_a_classic_group() -> None:
    entries = watch(
        *ALONE,
        *joins("b", 3, 2_000),
        *settles(3, 2_000, a=(0,), b=(1,)),
        Said(9_000, G, MemberAssigned("a", None)),
        Said(9_000, G, MemberAssigned("b", None)),
        Said(9_000, G, TargetEpoch(None, None)),
        Said(9_000, G, MemberSubscribed("a", None)),
        Said(9_000, G, MemberSubscribed("b", None)),
        Said(9_000, G, GroupEpochRemoved()),
        Said(9_000, G, generation(3, classic_member("b", 1))),
    )
    converted = entries[-3:]
    assert converted[0].type is EntryType.GROUP_CONVERTED
    assert {entry.group_type for entry in converted} == {"classic"}
