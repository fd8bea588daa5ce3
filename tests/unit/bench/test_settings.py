"""The variants of settings that are compared, and their table."""

import pytest

from bench.settings import BEFORE, LESS_ONE, SETS, VARIANTS, Measured, idle_table, table
from bench.variants import Variant
from streaming.query.progress import BatchProgress, StateOperator


@pytest.mark.parametrize("name", [name for name in SETS["batch"] if name.startswith("only-")])
def test_a_setting_alone_differs_from_none_by_itself(name: str) -> None:
    none, alone = VARIANTS["none"], VARIANTS[name]
    missing = BEFORE.keys() - alone.spark.keys()
    assert missing or alone.is_frozen != none.is_frozen
    assert {key: BEFORE[key] for key in alone.spark} == alone.spark


@pytest.mark.parametrize("name", [name for name in LESS_ONE if name.startswith("less-")])
def test_all_but_one_takes_one_back(name: str) -> None:
    less = LESS_ONE[name]
    assert less.spark.items() <= BEFORE.items()
    assert bool(less.spark) != (less == Variant(is_frozen=False))


def test_table_compares_with_the_first_variant() -> None:
    states = [StateOperator(all_updates_time_ms=8, all_removals_time_ms=3, commit_time_ms=2)]
    batch = BatchProgress(
        1, duration_ms={"triggerExecution": 60, "queryPlanning": 5, "addBatch": 40}, state_operators=states
    )
    measured = {
        "first": Measured(took_s=[0.2], batches=[batch], cores=[0.5]),
        "second": Measured(took_s=[0.1], late_s=[0.25], batches=[batch], cores=[0.25]),
    }
    lines = [line.split() for line in table(measured).splitlines()]
    assert lines[1] == ["first", "200/200", "1.00", "60", "8", "3", "2", "5", "0.50"]
    assert lines[2] == ["second", "100/100", "0.50", "60", "8", "3", "2", "5", "0.25/0.25", "0.25"]
    assert lines[-1] == ["second", "0.0", "5.0", "0.0", "40.0", "0.0"]


def test_table_of_idle_coordinators() -> None:
    assert idle_table({"as-it-is": (0.2, 0.04)}).splitlines()[1].split() == ["as-it-is", "0.20", "0.04"]
