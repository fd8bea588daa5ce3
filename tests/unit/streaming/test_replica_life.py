"""The great property of the replica: whatever happens to owners, queries and replicas, a client that has an
early answer has the query's answer.

A life has everything at once (`tests.harness.replicated_life`): random logs of all protocols, batches that
are cut, killed and run again, replicas that die, sleep, lag and are seeded anew, takeovers by new
coordinators and by standbys, starts of the query alone, old owners that wake up, other configurations, forged
clock records.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.examples import examples
from tests.harness.life_checks import check
from tests.harness.life_faults import FAULTS, Fault
from tests.harness.replicated_life import play

# Each of these happens in some of so many lives.
LIVES = 40
HAPPENS = (
    "deposed query",
    "doubt",
    "early answers",
    "forged clock",
    "killed at its start",
    "promotion",
    "query again",
    "replica",
    "settings",
    "standby",
    "takeover",
)


@examples(30)
@given(st.integers(0, 2**32))
def test_a_client_that_has_an_early_answer_has_the_querys(seed: int) -> None:
    check(play(seed))


def test_lives_reach_what_they_are_for() -> None:
    happened: Counter[str] = Counter()
    for seed in range(LIVES):
        life = play(seed)
        check(life)
        happened.update(life.happened)
    assert set(HAPPENS) <= happened.keys()
    assert happened["early answers"] > 5 * LIVES


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_property_finds_a_planted_fault(fault: Fault) -> None:
    """In a life that is known to show it."""
    check(play(fault.seed))
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        with pytest.raises(AssertionError):
            check(play(fault.seed))
