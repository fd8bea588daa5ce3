"""The pages of rules and docs/observe.md, the code and the scenarios have the same rows."""

import ast
import re
from functools import cache
from pathlib import Path

from tests.harness import scenario
from tests.harness.scenario import rules_of

ROOT = Path(__file__).parents[3]
TESTS = (
    "state/test_protocols",
    "state/test_streams_reconciliation",
    "kafka_why/test_observed",
    "kafka_why/test_observed_share",
    "kafka_why/test_observed_sightings",
    "kafka_why/test_observed_streams",
)
"""Tests of rows that no scenario reaches."""


@cache
def documented() -> set[str]:
    return set(rules_of("rules", "rules-consumer", "rules-share", "rules-streams", "observe"))


def in_code() -> set[str]:
    """Return the rows in the code: `context.cite("J1")`, a choice of two, or the argument of a function that
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


def reached() -> set[str]:
    """Return the rows in the outcomes of scenarios, and those that the tests name."""
    rows: set[str] = set()
    for path in (ROOT / "tests/scenarios").glob("*.txt"):
        for step in scenario.parse(path.read_text()):
            decided = [re.search(r"(?:^| )\[([A-Z][\w ]*)\]$", line) for line in step.outcome]
            rows.update(*(found[1].split() for found in decided if found))
    for test in TESTS:
        rows |= set(re.findall(r'"([A-Z]+\d+[a-z]?)"', (ROOT / f"tests/unit/{test}.py").read_text()))
    return rows


def test_code_cites_exactly_the_documented_rule_rows() -> None:
    assert in_code() == documented()


def test_scenarios_reach_every_rule_row() -> None:
    assert not documented() - reached()
