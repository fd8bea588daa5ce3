"""History of classic groups that polls have seen rebalancing, by the rows of docs/observe.md."""

from collections.abc import Mapping
from typing import Any

import pytest

from kafka_why.observed.records import ClassicGroupRemoved
from tests.harness.observed_epochs import Said
from tests.harness.observed_log import (
    CREATED,
    G,
    Watched,
    check_history_ends,
    classic_member,
    generation,
    seen,
    watch,
)

A, B, C = (classic_member(name, number) for number, name in enumerate("abc"))
# Generation 1 has a and b since 5 s.
BEFORE = (CREATED, Said(5_000, G, generation(1, A, B, since_ms=4_900)))


def second(*members: str, formed_ms: int = 29_900, at_ms: int = 30_000) -> Said:
    """Generation 2 with these members."""
    return Said(at_ms, G, generation(2, *(classic_member(name, 0) for name in members), since_ms=formed_ms))


LOOK = seen(20_000, "a", "b", "c")
TOLD = (*BEFORE, LOOK, seen(21_000, "a", "b", "c", first_ms=20_000, read_ms=20_100))
FORMED = [("CompletingRebalance", None, "OB10"), ("Stable", None, "OB10")]
BEGUN = [("MemberAdded", "c", "OB4"), ("PreparingRebalance", "c", "OB30")]
EARLY = second("a", "b", "c", formed_ms=6_000, at_ms=6_100)
LEFT = (*BEFORE, seen(20_000, "a", "c"), seen(21_000, "a", "c", first_ms=20_000, read_ms=20_100))


def began(at_ms: int, within_ms: int | None, **others: Any) -> dict[str, Any]:
    return {"at_ms": at_ms, "within_ms": within_ms, **others}


@pytest.mark.parametrize(
    ("said", "tail", "fields"),
    [
        # The log may have generations that were not read.
        pytest.param((*BEFORE, LOOK), [("Stable", None, "OB10")], {}, id="the log was not read up to it"),
        pytest.param(
            TOLD, BEGUN, {-1: began(20_000, 1_000, to_state="PreparingRebalance")}, id="it was read"
        ),
        pytest.param(
            (*TOLD, second("a", "b", "c")),
            [*BEGUN, *FORMED],
            {-2: {"from_state": "PreparingRebalance"}},
            id="the generation ends what was told",
        ),
        pytest.param(
            (*BEFORE, seen(29_000, "a", "b", "c"), second("a", "b", "c")),
            [*BEGUN, *FORMED],
            {-3: began(29_000, 1_000)},
            id="a generation that comes first",
        ),
        *(
            pytest.param(
                (
                    *BEFORE,
                    LOOK,
                    seen(29_500, "a", "b", "c", first_ms=20_000, read_ms=read_ms),
                    second("a", "c"),
                ),
                [*BEGUN, ("MemberRemoved", "b", "OB32"), *FORMED],
                {
                    -3: {"reason": "it was a member 0.4 s before the generation was formed"},
                    -2: {"waiting_for": ["b-1"]},
                },
                id=f"a member that was still there, read at {read_ms}",
            )
            for read_ms in (None, 20_100)
        ),
        pytest.param(
            (*BEFORE, seen(29_000, "a"), second("a", "c")),
            [
                ("MemberRemoved", "b", "OB3"),
                ("PreparingRebalance", "b", "OB30"),
                ("MemberAdded", "c", "OB31"),
                *FORMED,
            ],
            {},
            id="a member that was gone when the group was seen",
        ),
        # What a member subscribes to is not known before the generation.
        *(
            pytest.param(
                (
                    *BEFORE,
                    seen(28_000, "a", "b"),
                    seen(29_000, "a", "b", first_ms=28_000, read_ms=read_ms),
                    Said(
                        30_000, G, generation(2, classic_member("a", 0, topic="prices"), B, since_ms=29_900)
                    ),
                ),
                [*tail, *FORMED],
                {},
                id=f"a member that subscribes to other topics, read at {read_ms}",
            )
            for read_ms, tail in (
                (None, [("MemberRejoined", "a", "OB6"), ("PreparingRebalance", "a", "OB30")]),
                (28_100, [("PreparingRebalance", None, "OB30"), ("MemberRejoined", "a", "OB31")]),
            )
        ),
        pytest.param(
            (*BEFORE, LOOK, seen(29_500, "a", "c", first_ms=20_000), second("a", "c")),
            [*BEGUN, ("MemberRemoved", "b", "OB32"), *FORMED],
            {-2: {"waiting_for": None}},
            id="nobody was waited for who was not there at the last look",
        ),
        pytest.param(
            (*TOLD, second("a", "b")),
            [*BEGUN, ("MemberRemoved", "c", "OB32"), *FORMED],
            {-2: {"waiting_for": None}},
            id="a member that came and went",
        ),
        pytest.param(
            (*BEFORE, seen(29_950, "a", "c", state="CompletingRebalance"), second("a", "c")),
            [("PreparingRebalance", None, "OB30"), *FORMED],
            {-3: began(29_900, 950, reason="in which order")},
            id="members of a formed generation",
        ),
        pytest.param(
            (*BEFORE, seen(5_600, "a", "b", "c"), EARLY),
            [*BEGUN, *FORMED],
            {-3: began(5_600, 600)},
            id="the log bounds the beginning as well",
        ),
        pytest.param(
            (*BEFORE, seen(4_500, "a", "b"), second("a", "b", "c")),
            [("PreparingRebalance", "c", "OB4"), *FORMED],
            {-3: {"within_ms": None}},
            id="older than the state",
        ),
        # It is newer by less than clocks differ.
        pytest.param(
            (*BEFORE, seen(5_400, "a", "b"), EARLY),
            [("PreparingRebalance", "c", "OB4"), *FORMED],
            {-3: {"within_ms": None}},
            id="hardly newer than the state",
        ),
        pytest.param(
            (
                *BEFORE,
                seen(5_400, "a", "b"),
                seen(6_400, "a", "b", "c", first_ms=5_400),
                second("a", "b", "c", formed_ms=7_000, at_ms=7_100),
            ),
            [*BEGUN, *FORMED],
            {-3: began(6_400, 1_400)},
            id="seen again",
        ),
        pytest.param(
            (CREATED, seen(1_200, "a"), Said(4_100, G, generation(1, A, since_ms=4_000))),
            [("PreparingRebalance", "a", "OB30"), *FORMED],
            {-3: began(1_200, 200)},
            id="the first rebalance of a new group",
        ),
        pytest.param(
            (
                *BEFORE,
                LOOK,
                second("a", "b", "c", formed_ms=20_400, at_ms=20_500),
                seen(21_500, "a", "b", "c", first_ms=20_000),
                Said(30_000, G, generation(3, A, B, since_ms=29_900)),
            ),
            FORMED,
            {-4: began(21_500, 1_000), -7: began(20_000, 1_000)},
            id="another one between two looks",
        ),
        pytest.param(
            (*BEFORE, seen(10_000, "a", "b", "c"), second("a", "b", "c")),
            [("PreparingRebalance", "c", "OB4"), *FORMED],
            {-3: {"within_ms": None}},
            id="a generation long after the last look",
        ),
        pytest.param((seen(20_000, "a", read_ms=20_000),), [], {}, id="a group that the log does not have"),
        # Another broker coordinates the group now, and has read the last generation.
        pytest.param(
            (*LEFT, seen(23_000, first_ms=20_000, read_ms=23_100, is_over=True)),
            [("MemberAdded", "b", "OB33"), ("MemberRemoved", "c", "OB33"), ("Stable", None, "OB33")],
            {-1: {"at_ms": 21_000}},
            id="a rebalance without a generation",
        ),
        pytest.param(
            (*LEFT, seen(23_000, first_ms=20_000, read_ms=22_900, is_over=True)),
            [("PreparingRebalance", None, "OB30")],
            {},
            id="it is not over before the log was read up to that",
        ),
        pytest.param(
            (*TOLD, Said(30_000, G, generation(3, A, B, C, since_ms=29_900))),
            FORMED,
            {-2: {"reason": "generation 2 left no record"}},
            id="skipped generations",
        ),
    ],
)
def test_start_of_a_polled_rebalance_is_bounded_by_two_polls(
    said: tuple[Said, ...], tail: list[tuple[str, str | None, str]], fields: Mapping[int, Mapping[str, Any]]
) -> None:
    check_history_ends(watch(*said), tail, fields)


def test_polls_of_many_rebalances_take_bounded_memory() -> None:
    watched = Watched().take((*BEFORE, *(seen(20_000 + n, "a", run=f"r{n}") for n in range(100))))
    assert len(watched.groups[G].sightings) == 8


def test_polls_of_a_removed_group_do_not_date_its_successors_rebalances() -> None:
    gone = (Said(6_000, G, generation(2)), seen(7_000, "a"), Said(8_000, G, ClassicGroupRemoved()))
    entries = watch(*BEFORE, *gone, Said(9_000, G, generation(0)), Said(9_500, G, generation(1, A)))
    assert {entry.within_ms for entry in entries} == {None}
