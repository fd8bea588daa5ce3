"""The expectations of scenarios about answers, groups and members fail if they are not met."""

import pytest

from tests.harness.scenario_player import ScenarioPlayer


@pytest.fixture
def world() -> ScenarioPlayer:
    world = ScenarioPlayer()
    for command in ("topics foo=4 bar=1", "A e0 names[foo]", "at 2s", "B e0 names[foo]", "A e2"):
        world.run(command)
    return world


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("A e2 => e3 -", "expected e3 -, the answer is e2 -"),
        ("A e2 full owned[0-3] => e2 [0]", "expected e2 [foo 0], the answer is e2 [foo 0,1]"),
        ("B e9 => e9 -", "the answer is FENCED_MEMBER_EPOCH"),
        ("commit A offsets=foo-0=1 => STALE_MEMBER_EPOCH", "the answer is NONE"),
        ("expect A STABLE", "expected STABLE"),
        ("expect A UNREVOKED pending[2]", "expected pending[foo 2]"),
        ("expect A e2 session@1s", "expected session@1s"),
        ("expect B [2,3]", "expected [foo 2,3]"),
        ("expect B gone", "expected gone"),
        ("expect C e1", "found gone"),
        ("expect group Stable gE3", "expected Stable, found Reconciling"),
        ("expect group classic", "expected classic"),
        ("expect group gE3 group=other", "found gone"),
    ],
)
def test_scenario_with_an_unmet_expectation_fails(world: ScenarioPlayer, command: str, found: str) -> None:
    with pytest.raises(AssertionError) as raised:
        world.run(command)
    assert found in str(raised.value)
