"""The pages of rules and docs/observe.md, the code and the scenarios have the same rows."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.harness import scenario
from tests.harness.scenario import CANNOT_OCCUR, rules_of
from tests.harness.scenario_player import ScenarioPlayer

ROOT = Path(__file__).parents[3]
SCENARIOS = ROOT / "tests" / "scenarios"


DOCUMENTED = rules_of("rules", "rules-consumer", "rules-share", "observe")
REACHABLE = {row for row, where in DOCUMENTED.items() if not where.startswith(CANNOT_OCCUR)}


@cache
def in_code() -> set[str]:
    """Return the rows in the code: `context.rule("J1")`, a choice of two, or the argument of a function that
    does. `state.dispatch` has the row X3, which is in a list.
    """
    texts = {
        node.value
        for folder in ("state/kafka", "kafka_why/observed")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text for text in texts if re.fullmatch(r"[A-Z]+\d+[a-z]?", text)}


@cache
def reached_by(name: str) -> set[str]:
    """Return the rows that a scenario reaches, or that a unit test of the core or the observer names."""
    if name.startswith("test_"):
        folders = (ROOT / "tests" / "unit" / folder for folder in ("state", "kafka_why"))
        path = next(path for folder in folders if (path := folder / f"{name}.py").exists())
        return set(re.findall(r'"([A-Z]+\d+[a-z]?)"', path.read_text()))
    world = ScenarioPlayer()
    for block in scenario.parse((SCENARIOS / f"{name}.txt").read_text()):
        scenario.play(block, world.run)
    return world.rules


def test_code_names_exactly_the_reachable_rule_rows() -> None:
    assert in_code() == REACHABLE


def test_the_scenario_or_test_of_a_row_reaches_it() -> None:
    wrong = [row for row in sorted(REACHABLE) if row not in reached_by(DOCUMENTED[row])]
    assert not wrong


def test_unreachable_rule_rows_have_a_reason() -> None:
    reasons = {where.removeprefix(CANNOT_OCCUR) for where in DOCUMENTED.values() if CANNOT_OCCUR in where}
    assert reasons
    assert all(len(reason.split()) > 2 for reason in reasons)
