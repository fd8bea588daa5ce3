"""What follows from the records of classic groups of the cluster's own coordinator (docs/observe.md)."""

from typing import Any

import pytest

from kafka_why.contract.kafka.history import DEAD
from kafka_why.observed.records import ClassicGroupRemoved, OffsetCommitted
from kafka_why.observed.view import view_of
from tests.harness.observed_epochs import NAMES, Said
from tests.harness.observed_log import (
    CREATED,
    G,
    Watched,
    check_told,
    classic_member,
    committed,
    generation,
    generations,
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
        # The coordinator writes it anew when one of them has come back.
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
    check_told(Watched().take(said).history, tail, fields)


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
