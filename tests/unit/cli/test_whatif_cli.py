"""The command `whatif`, on a recording."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main

RECORDING = Path(__file__).parents[2] / "data" / "demo_recording.zst"
COMMAND = ["whatif", "demo", "--from", str(RECORDING)]


def test_whatif_shows_experiments_as_json() -> None:
    options = ["-c", "session.timeout.ms=10000", "--assignor", "sticky", "--try", "group.max.size=2"]
    result = CliRunner().invoke(main, [*COMMAND, *options, "-o", "json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert [tried["name"] for tried in shown["tried"]] == [
        "session.timeout.ms=10000 partition.assignment.strategy=sticky",
        "group.max.size=2",
    ]
    assert shown["recorded"]["rebalances"] == len(shown["validation"]["pairs"]) == 6
    assert shown["tried"][1]["refused"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-c", "no.such=1"], "unknown setting 'no.such'"),
        (["--assignor", "best"], "unknown assignor 'best'"),
        (["--try", "session.timeout.ms"], "is not NAME=VALUE"),
        (["--from-state", str(RECORDING)], "whatif takes no --from-state"),
    ],
)
def test_whatif_reports_wrong_usage(options: list[str], message: str) -> None:
    result = CliRunner().invoke(main, [*COMMAND, *options])
    assert result.exit_code == 2
    assert message in result.stderr
