"""docs/rocketmq.md names a test for each of the behaviours S1 to S19, and each test exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROWS = dict(re.findall(r"^\| (S\d+) \|(.*)\|$", (ROOT / "docs/rocketmq.md").read_text(), re.MULTILINE))


def test_every_behaviour_has_a_row() -> None:
    assert list(ROWS) == [f"S{number}" for number in range(1, 20)]


def test_every_row_names_tests_of_its_own_that_exist() -> None:
    code = "".join(path.read_text() for path in (ROOT / "tests/unit").rglob("test_rocketmq_*.py"))
    for row, text in ROWS.items():
        named = re.findall(r"`(test_\w+)`", text)
        assert named, row
        assert all(f"def {name}(" in code for name in named), (row, named)
        assert all(f"_{row.lower()}_" in name for name in named), (row, named)
