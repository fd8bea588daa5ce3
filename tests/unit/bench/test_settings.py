"""The variants of settings that are compared, and their table."""

import pytest

from bench.settings import BEFORE, LESS_ONE, SETS, VARIANTS
from bench.variants import Variant


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
