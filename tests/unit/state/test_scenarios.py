"""Every scenario file, played in the pure core. `--rewrite` rewrites the outcomes."""

from pathlib import Path

import pytest

from tests.harness import scenario
from tests.harness.scenario_player import ScenarioPlayer

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_gives_its_expected_results(path: Path, request: pytest.FixtureRequest) -> None:
    scenario.check(path, ScenarioPlayer().run, rewrite=request.config.getoption("rewrite", default=False))
