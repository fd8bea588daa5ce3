"""The command `assign`: the sources of a group, added and removed members, and refused input."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.assign import assign

THREE = ["--topics", "orders:6,payments:3", "--members", "a,b,c"]


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(assign, arguments)
    assert result.exit_code == 0, result.output
    return result


def test_assign_shows_moves_when_one_member_leaves_and_another_joins() -> None:
    (outcome,) = json.loads(
        run(*THREE, "--without", "b", "--with", "d=orders", "--strategy", "range", "-o", "json").stdout
    )
    assert {share["member_id"]: share["assignment"] for share in outcome["shares"]} == {
        "a": {"orders": [0, 1], "payments": [0, 1]},
        "c": {"orders": [2, 3], "payments": [2]},
        "d": {"orders": [4, 5]},
    }
    assert outcome["moves"]["moved"] == 5


def test_assign_computes_the_current_assignment_by_a_strategy(tmp_path: Path) -> None:
    from_strategy = run(*THREE, "--current", "range", "--strategy", "sticky", "-o", "json").stdout
    now, sticky = json.loads(from_strategy)
    assert (now["strategy"], now["shares"]) == ("now", sticky["shares"])
    path = tmp_path / "now.json"
    path.write_text(json.dumps({share["member_id"]: share["assignment"] for share in now["shares"]}))
    assert run(*THREE, "--current", str(path), "--strategy", "sticky", "-o", "json").stdout == from_strategy


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["--members", "a"], 2, "takes --topics with --members, --input, or --from-group with"),
        ([*THREE, "--input", "group.json"], 2, "takes --topics with --members"),
        ([*THREE, "--from-group", "g"], 2, "takes --topics with --members"),
        (["--topics", "orders", "--members", "a"], 2, "'orders' is not TOPIC:PARTITIONS"),
        (
            ["--topics", "orders:1_0", "--members", "a"],
            2,
            "'orders:1_0' is not TOPIC:PARTITIONS: '1_0' is not a",
        ),
        ([*THREE, "--strategy", "rang"], 2, "unknown strategy 'rang'; known strategies: range, roundrobin"),
        (["--topics", "orders:9999999", "--members", "a"], 1, "needs at least one and at most 1000000"),
        (["--topics", "orders:1", "--members", "9" * 20], 1, "too many members: 99999999999999999999 is not"),
        ([*THREE, "--without", "d"], 1, "no member is called d; there are a, b, c"),
        ([*THREE, "--with", "a"], 1, "a is already a member"),
        (
            [*THREE, "--with", "d=prices"],
            1,
            "d subscribes to prices, which is none of the topics: orders, pay",
        ),
        ([*THREE, "--current", "nowhere.json"], 1, "nowhere.json: No such file"),
        ([*THREE, "--strategy", "MACHINE_ROOM"], 1, "needs the racks of members and partitions"),
        (
            ["--from-group", "g", "--bootstrap-servers", "here:there"],
            2,
            "'here:there' is not HOST:PORT; expect",
        ),
    ],
)
def test_assign_refuses_invalid_input(arguments: list[str], exit_code: int, message: str) -> None:
    result = CliRunner().invoke(assign, arguments)
    assert result.exit_code == exit_code
    assert message in result.stderr
