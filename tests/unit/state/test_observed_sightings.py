"""What follows where a classic group was seen rebalancing beside its log, by the rows of docs/observe.md."""

import pytest

from state.kafka.history import EntryType, HistoryEntry
from state.kafka.observed.records import ClassicGroupRemoved
from tests.harness.observed_epochs import Said
from tests.harness.observed_log import (
    CREATED,
    G,
    Watched,
    classic_member,
    generation,
    seen,
    told,
    watch,
)

A, B, C = (classic_member(name, number) for number, name in enumerate("abc"))
# Generation 1 has a and b since 5 s.
BEFORE = (CREATED, Said(5_000, G, generation(1, A, B, since_ms=4_900)))


def second(*members: str, formed_ms: int = 29_900, at_ms: int = 30_000) -> Said:
    """Generation 2 with these members."""
    return Said(at_ms, G, generation(2, *(classic_member(name, 0) for name in members), since_ms=formed_ms))


def after(*said: Said) -> list[HistoryEntry]:
    """What follows from these after generation 1."""
    return watch(*BEFORE, *said)[len(watch(*BEFORE)) :]


def opening(entries: list[HistoryEntry]) -> HistoryEntry:
    (found,) = [entry for entry in entries if entry.type is EntryType.PREPARING_REBALANCE]
    return found


def test_the_beginning_is_told_when_the_log_has_been_read_up_to_it() -> None:
    early = after(seen(20_000, "a", "b", "c"))
    assert early == [], "the log may have generations that were not read"
    entries = after(seen(20_000, "a", "b", "c"), seen(21_000, "a", "b", "c", first_ms=20_000, read_ms=20_100))
    assert told(entries) == [("MemberAdded", "c", "OB4"), ("PreparingRebalance", "c", "OB30")]
    assert (entries[-1].at_ms, entries[-1].within_ms) == (20_000, 1_000)
    assert entries[-1].to_state == "PreparingRebalance"


def test_the_generation_ends_what_was_told() -> None:
    looks = (seen(20_000, "a", "b", "c"), seen(21_000, "a", "b", "c", first_ms=20_000, read_ms=20_100))
    entries = after(*looks, second("a", "b", "c"))
    assert told(entries)[2:] == [("CompletingRebalance", None, "OB10"), ("Stable", None, "OB10")]
    assert entries[2].from_state == "PreparingRebalance"


def test_a_generation_that_comes_first_has_its_beginning_all_the_same() -> None:
    entries = after(seen(29_000, "a", "b", "c"), second("a", "b", "c"))
    assert (opening(entries).rule, opening(entries).at_ms, opening(entries).within_ms) == (
        "OB30",
        29_000,
        1_000,
    )
    assert [entry.type.value for entry in entries][-2:] == ["CompletingRebalance", "Stable"]


@pytest.mark.parametrize("is_told", [False, True])
def test_a_member_that_was_still_there_did_not_cause_the_rebalance(is_told: bool) -> None:
    read_ms = 20_100 if is_told else None
    entries = after(
        seen(20_000, "a", "b", "c"),
        seen(29_500, "a", "b", "c", first_ms=20_000, read_ms=read_ms),
        second("a", "c"),
    )
    assert told(entries) == [
        ("MemberAdded", "c", "OB4"),
        ("PreparingRebalance", "c", "OB30"),
        ("MemberRemoved", "b", "OB32"),
        ("CompletingRebalance", None, "OB10"),
        ("Stable", None, "OB10"),
    ]
    assert entries[2].reason.endswith("it was a member 0.4 s before the generation was formed")
    assert entries[3].waiting_for == ["b-1"]


def test_a_member_that_was_gone_when_the_group_was_seen_caused_it() -> None:
    entries = after(seen(29_000, "a"), second("a", "c"))
    assert told(entries)[:3] == [
        ("MemberRemoved", "b", "OB3"),
        ("PreparingRebalance", "b", "OB30"),
        ("MemberAdded", "c", "OB31"),
    ]


@pytest.mark.parametrize("is_told", [False, True])
def test_a_member_that_subscribes_to_other_topics_is_told_once(is_told: bool) -> None:
    """The history has the beginning before the generation. What the member subscribes to is not known yet."""
    looks = (
        seen(28_000, "a", "b"),
        seen(29_000, "a", "b", first_ms=28_000, read_ms=28_100 if is_told else None),
    )
    changed = classic_member("a", 0, topic="prices")
    entries = after(*looks, Said(30_000, G, generation(2, changed, B, since_ms=29_900)))
    rejoined = ("MemberRejoined", "a", "OB31" if is_told else "OB6")
    assert [one for one in told(entries) if one[0] == "MemberRejoined"] == [rejoined]
    assert opening(entries).member_id == (None if is_told else "a-1")


def test_nobody_was_waited_for_who_was_not_there_when_it_was_last_seen() -> None:
    looks = (seen(20_000, "a", "b", "c"), seen(29_500, "a", "c", first_ms=20_000))
    entries = after(*looks, second("a", "c"))
    (gone,) = [entry for entry in entries if entry.type is EntryType.MEMBER_REMOVED]
    assert "before the generation was formed" not in gone.reason
    assert all(entry.waiting_for is None for entry in entries)


def test_a_member_that_came_and_went_is_told_if_its_coming_was() -> None:
    looks = (seen(20_000, "a", "b", "c"), seen(21_000, "a", "b", "c", first_ms=20_000, read_ms=20_100))
    entries = after(*looks, second("a", "b"))
    assert ("MemberRemoved", "c", "OB32") in told(entries)
    assert all(entry.waiting_for is None for entry in entries), "a member that has just joined is not awaited"


def test_members_of_a_formed_generation_do_not_say_how_it_began() -> None:
    entries = after(seen(29_950, "a", "c", state="CompletingRebalance"), second("a", "c"))
    assert (opening(entries).at_ms, opening(entries).within_ms) == (29_900, 950)
    assert "in which order" in opening(entries).reason


def test_the_log_bounds_the_beginning_as_well() -> None:
    entries = after(seen(5_600, "a", "b", "c"), second("a", "b", "c", formed_ms=6_000, at_ms=6_100))
    assert (opening(entries).at_ms, opening(entries).within_ms) == (5_600, 600)


def test_what_is_older_than_the_state_is_left_out() -> None:
    late = seen(4_500, "a", "b")
    assert after(late, second("a", "b", "c"))[1].within_ms is None


def test_what_is_newer_than_the_state_by_less_than_clocks_differ_is_left_out() -> None:
    late = seen(5_400, "a", "b")
    assert opening(after(late, second("a", "b", "c", formed_ms=6_000, at_ms=6_100))).within_ms is None
    still = seen(6_400, "a", "b", "c", first_ms=5_400)
    found = opening(after(late, still, second("a", "b", "c", formed_ms=7_000, at_ms=7_100)))
    assert (found.at_ms, found.within_ms) == (6_400, 1_400)


def test_the_first_rebalance_of_a_new_group_cannot_be_an_older_one() -> None:
    said = (CREATED, seen(1_200, "a"), Said(4_100, G, generation(1, A, since_ms=4_000)))
    assert (opening(watch(*said)).at_ms, opening(watch(*said)).within_ms) == (1_200, 200)


def test_a_rebalance_that_follows_another_between_two_looks_is_another_one() -> None:
    first = (seen(20_000, "a", "b", "c"), second("a", "b", "c", formed_ms=20_400, at_ms=20_500))
    third = Said(30_000, G, generation(3, A, B, since_ms=29_900))
    entries = after(*first, seen(21_500, "a", "b", "c", first_ms=20_000), third)
    openings = [entry for entry in entries if entry.type is EntryType.PREPARING_REBALANCE]
    assert [(entry.at_ms, entry.within_ms) for entry in openings] == [(20_000, 1_000), (21_500, 1_000)]


def test_a_generation_long_after_the_last_look_is_not_known_to_be_of_it() -> None:
    entries = after(seen(10_000, "a", "b", "c"), second("a", "b", "c"))
    assert opening(entries).within_ms is None


def test_a_group_that_the_log_does_not_have_is_left_out() -> None:
    assert watch(seen(20_000, "a", read_ms=20_000)) == []


def test_a_rebalance_without_a_generation_ends_as_it_was_before() -> None:
    """Another broker coordinates the group now, and has read the last generation."""
    looks = (seen(20_000, "a", "c"), seen(21_000, "a", "c", first_ms=20_000, read_ms=20_100))
    over = seen(23_000, first_ms=20_000, read_ms=23_100, is_over=True)
    entries = after(*looks, over)
    assert told(entries)[3:] == [
        ("MemberAdded", "b", "OB33"),
        ("MemberRemoved", "c", "OB33"),
        ("Stable", None, "OB33"),
    ]
    assert entries[-1].at_ms == 21_000
    watched = Watched().take((*BEFORE, *looks, over))
    assert watched.groups[G].member_ids() == ["a-1", "b-1"]


def test_a_rebalance_is_not_over_before_the_log_was_read_up_to_that() -> None:
    looks = (seen(20_000, "a", "c"), seen(21_000, "a", "c", first_ms=20_000, read_ms=20_100))
    over = seen(23_000, first_ms=20_000, read_ms=22_900, is_over=True)
    assert told(after(*looks, over))[-1] == ("PreparingRebalance", None, "OB30")


def test_many_looks_at_different_rebalances_take_bounded_memory() -> None:
    watched = Watched().take((*BEFORE, *(seen(20_000 + n, "a", run=f"r{n}") for n in range(100))))
    assert len(watched.groups[G].sightings) == 8


def test_what_was_seen_of_a_group_ends_with_it() -> None:
    gone = (Said(6_000, G, generation(2)), seen(7_000, "a"), Said(8_000, G, ClassicGroupRemoved()))
    entries = after(*gone, Said(9_000, G, generation(0)), Said(9_500, G, generation(1, A)))
    assert entries
    assert all(entry.within_ms is None for entry in entries)


def test_skipped_generations_are_named_also_when_the_beginning_was_told_before() -> None:
    looks = (seen(20_000, "a", "b", "c"), seen(21_000, "a", "b", "c", first_ms=20_000, read_ms=20_100))
    third = Said(30_000, G, generation(3, A, B, C, since_ms=29_900))
    assert "generation 2 left no record" in after(*looks, third)[2].reason
