"""What follows from the records of classic groups of the cluster's own coordinator (docs/observe.md)."""

from state.kafka.group import DEAD
from state.kafka.history import EntryType
from state.kafka.observed.records import (
    ClassicGroupRemoved,
    OffsetCommitted,
)
from state.kafka.observed.view import view_of
from tests.harness.observed_epochs import NAMES, Said
from tests.harness.observed_log import (
    CREATED,
    G,
    Watched,
    classic_member,
    committed,
    generation,
    generations,
    told,
    watch,
)


def test_a_generation_of_a_new_group_tells_who_joined() -> None:
    entries = watch(*generations(generation(1, classic_member("a", 0, 1), since_ms=1_900)))
    assert told(entries) == [
        ("GroupCreated", None, "OB1"),
        ("MemberAdded", "a", "OB4"),
        ("PreparingRebalance", "a", "OB4"),
        ("CompletingRebalance", None, "OB10"),
        ("Stable", None, "OB10"),
    ]
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]
    assert all(entry.observed for entry in entries)
    assert entries[-2].at_ms == 1_900, "the generation was formed then"
    assert entries[-1].at_ms == 2_000, "the leader's assignment was stored then"


def test_a_first_generation_without_a_record_of_the_creation_tells_who_joined() -> None:
    """Kafka 3.9 writes none, and neither does any version if the group had offsets before."""
    first = Said(2_000, G, generation(1, classic_member("a", 0, 1), since_ms=1_900))
    expected = [
        ("GroupCreated", None, "OB14"),
        ("MemberAdded", "a", "OB4"),
        ("PreparingRebalance", "a", "OB4"),
        ("CompletingRebalance", None, "OB10"),
        ("Stable", None, "OB10"),
    ]
    assert told(watch(first)) == expected
    entries = watch(Said(1_000, G, committed(0, 5, 1_000)), first)
    assert told(entries) == expected
    assert entries[0].at_ms == 1_900
    assert [entry.seq for entry in entries] == [1, 2, 3, 4, 5]


def test_who_came_in_a_first_generation_of_static_members_is_unknown() -> None:
    """The coordinator writes it anew when one of them has come back."""
    (found,) = watch(Said(5_000, G, generation(1, classic_member("a", 0, instance="i"))))
    assert (found.type, found.rule) == (EntryType.STABLE, "OB2")


def test_a_member_that_is_gone_left_or_expired_and_its_last_commit_is_told() -> None:
    both = generation(1, classic_member("a", 0), classic_member("b", 1), since_ms=1_900)
    one = generation(2, classic_member("a", 0, 1), since_ms=43_400)
    entries = watch(
        CREATED, Said(2_000, G, both), Said(2_400, G, committed(1, 5, 2_400)), Said(43_500, G, one)
    )
    (gone,) = [entry for entry in entries if entry.type is EntryType.MEMBER_REMOVED]
    assert gone.reason == "member b-1 left or expired: the last commit of its partitions was 41.0 s before"
    assert gone.rule == "OB3"


def test_a_commit_before_its_generation_is_not_a_members_own() -> None:
    both = generation(1, classic_member("a", 0), classic_member("b", 1), since_ms=1_900)
    one = generation(2, classic_member("a", 0, 1), since_ms=43_400)
    entries = watch(
        CREATED, Said(1_500, G, committed(1, 5, 1_500)), Said(2_000, G, both), Said(43_500, G, one)
    )
    (gone,) = [entry for entry in entries if entry.type is EntryType.MEMBER_REMOVED]
    assert gone.reason == "member b-1 left or expired: none of its partitions had a commit since it got them"


def test_who_came_first_is_unknown_where_members_came_and_went() -> None:
    entries = watch(
        *generations(generation(1, classic_member("a", 0)), generation(2, classic_member("b", 0)))
    )
    opening = entries[-3]
    assert (opening.type, opening.rule) == (EntryType.PREPARING_REBALANCE, "OB7")
    assert opening.reason.endswith("the log does not say in which order")


def test_the_same_members_again_have_no_known_cause() -> None:
    entries = watch(
        *generations(generation(1, classic_member("a", 0)), generation(2, classic_member("a", 0)))
    )
    opening = entries[-3]
    assert (opening.rule, opening.member_id) == ("OB8", None)


def test_a_member_with_other_topics_changed_its_subscription() -> None:
    changed = classic_member("a", 0, topic="prices")
    entries = watch(*generations(generation(1, classic_member("a", 0)), generation(2, changed)))
    assert ("MemberRejoined", "a", "OB6") in told(entries)


def test_a_static_member_under_a_new_id_came_back() -> None:
    was, now = classic_member("a", 0, instance="i"), classic_member("a2", 0, instance="i")
    in_place = watch(*generations(generation(1, was), generation(1, now)))[-1]
    assert (in_place.type, in_place.rule) == (EntryType.MEMBER_REPLACED, "OB9")
    assert in_place.replaced_member_id == was.member_id
    rebalanced = watch(*generations(generation(1, was), generation(2, now)))
    assert ("MemberReplaced", "a2", "OB5") in told(rebalanced)


def test_generations_without_a_record_are_named() -> None:
    entries = watch(
        *generations(generation(1, classic_member("a", 0)), generation(4, classic_member("a", 0)))
    )
    assert "generations 2 to 3 left no record" in entries[-3].reason


def test_an_empty_generation_ends_a_rebalance() -> None:
    entries = watch(*generations(generation(1, classic_member("a", 0)), generation(2)))
    assert told(entries)[-3:] == [
        ("MemberRemoved", "a", "OB3"),
        ("PreparingRebalance", "a", "OB3"),
        ("Empty", None, "OB11"),
    ]


def test_the_beginning_of_a_group_that_was_there_is_missing() -> None:
    """Its history begins with entry 2, so every reader sees that it does not know the beginning."""
    (found,) = watch(Said(5_000, G, generation(7, classic_member("a", 0))))
    assert (found.seq, found.type, found.rule) == (2, EntryType.STABLE, "OB2")
    assert found.from_state == "Stable" or found.assignments is not None


def test_a_generation_that_goes_back_is_of_another_group() -> None:
    entries = watch(
        *generations(generation(5, classic_member("a", 0)), generation(2, classic_member("b", 0)))
    )
    assert entries[-1].rule == "OB2"
    assert entries[-1].seq - entries[-2].seq == 2, "a number is left out for what is missing"


def test_another_group_that_is_empty_is_empty() -> None:
    watched = Watched().take(generations(generation(5, classic_member("a", 0)), generation(2)))
    assert watched.groups[G].state == "Empty"
    assert watched.history[-1].type is EntryType.EMPTY


def test_a_removed_group_without_members_was_deleted_or_expired() -> None:
    watched = Watched().take((*generations(generation(1)), Said(9_000, G, ClassicGroupRemoved())))
    last = watched.history[-1]
    assert (last.type, last.to_state, last.rule) == (EntryType.GROUP_DELETED, DEAD, "OB12")
    assert not watched.groups


def test_the_offsets_of_a_removed_group_stay_until_they_are_removed() -> None:
    watched = Watched().take(
        (
            *generations(generation(1)),
            Said(3_000, G, committed(0, 1, 3_000)),
            Said(9_000, G, ClassicGroupRemoved()),
        )
    )
    assert watched.groups[G].offsets
    assert watched.groups[G].incarnation != watched.history[0].incarnation
    watched.take([Said(9_500, G, OffsetCommitted("orders", 0, None))])
    assert not watched.groups


def test_offsets_alone_are_a_group_without_members() -> None:
    watched = Watched().take([Said(1_000, G, committed(0, 1, 1_000))])
    assert watched.history == []
    assert view_of(watched.groups[G], NAMES).state == "Empty"
