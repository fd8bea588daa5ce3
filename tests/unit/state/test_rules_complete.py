"""The pages of rules and docs/observe.md, the code and the scenarios have the same rows."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.harness import scenario
from tests.harness.scenario_player import ScenarioPlayer

ROOT = Path(__file__).parents[3]
SCENARIOS = ROOT / "tests" / "scenarios"
CANNOT_OCCUR = "cannot occur: "


@cache
def documented() -> dict[str, str]:
    """Return each row's last column: the scenario that reaches it, the test that names it (`test_...`), or
    why it cannot occur.
    """
    pages = ("rules.md", "rules-consumer.md", "rules-share.md", "observe.md")
    text = "".join((ROOT / "docs" / name).read_text() for name in pages)
    rows = re.findall(r"^\| ([A-Z]+\d+[a-z]?) \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a row stands twice"
    return dict(rows)


def reachable() -> set[str]:
    return {row for row, where in documented().items() if not where.startswith(CANNOT_OCCUR)}


@cache
def in_code() -> set[str]:
    """Return the rows in the code: `context.rule("J1")`, a choice of two, or the argument of a function that
    does. `state.dispatch` has the row X3, which is in a list.
    """
    texts = {
        node.value
        for path in (ROOT / "state" / "kafka").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text for text in texts if re.fullmatch(r"[A-Z]+\d+[a-z]?", text)}


@cache
def reached_by(name: str) -> set[str]:
    """Return the rows that a scenario reaches, or that a test of this directory names."""
    if name.startswith("test_"):
        return set(re.findall(r'"([A-Z]+\d+[a-z]?)"', Path(__file__).with_name(f"{name}.py").read_text()))
    world = ScenarioPlayer()
    for block in scenario.parse((SCENARIOS / f"{name}.txt").read_text()):
        scenario.play(block, world.run)
    return world.rules


def test_the_code_names_exactly_the_reachable_rows() -> None:
    assert in_code() == reachable()


def test_the_scenario_or_test_of_a_row_reaches_it() -> None:
    wrong = [row for row in sorted(reachable()) if row not in reached_by(documented()[row])]
    assert not wrong


def test_rows_that_cannot_occur_say_why() -> None:
    reasons = {where.removeprefix(CANNOT_OCCUR) for where in documented().values() if CANNOT_OCCUR in where}
    assert reasons
    assert all(len(reason.split()) > 2 for reason in reasons)


def test_every_scenario_says_what_it_shows() -> None:
    for path in SCENARIOS.glob("*.txt"):
        assert path.read_text().startswith("# "), path.name
