"""Wrong usage of `groups` is reported before any request is sent, with Kafka's exit code."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.groups import USAGE_EXIT_CODE, groups

NOBODY = ["--bootstrap-servers", "127.0.0.1:1"]
ONE = [*NOBODY, "--group", "g"]
RESET = ["reset-offsets", *ONE]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", *NOBODY], "takes groups (GROUP or --group), or --all-groups"),
        (["describe", *ONE, "--all-groups"], "takes groups (GROUP or --group), or --all-groups"),
        (["delete", *NOBODY, "g", "--all-groups"], "takes groups (GROUP or --group), or --all-groups"),
        (["describe", *ONE, "--members", "--state"], "takes at most one of these options"),
        (["describe", "--group", "g"], "Missing option '--bootstrap-servers'"),
        (["list", "--bootstrap-servers", "here:there"], "'here:there' is not HOST:PORT; expected is a list"),
        (["list", *NOBODY, "--state", "dying"], "Invalid state list 'dying'"),
        (["list", *NOBODY, "--type", "shared"], "Invalid types list 'shared'"),
        ([*RESET, "--topic", "t"], "requires exactly one of the following scenarios"),
        ([*RESET, "--to-offset", "0", "--to-latest"], "requires exactly one of the following"),
        ([*RESET, "--to-latest"], "One of the reset scopes should be defined"),
        (
            [*RESET, "--to-latest", "--topic", "t", "--all-topics"],
            "one of --topic and --all-t",
        ),
        ([*RESET, "--to-latest", "--topic", "t:x"], "Invalid partition 'x' specified"),
        (
            [*RESET, "--to-latest", "--all-topics", "--dry-run", "--execute"],
            "only accepts one",
        ),
        ([*RESET, "--by-duration", "1 day", "--all-topics"], "'1 day' is not a duration"),
        ([*RESET, "--to-datetime", "2026-01-31", "--all-topics"], "there is no 'T'"),
        (["delete-offsets", *ONE], "Missing option '--topic'"),
        (["remove-members", *ONE], "takes --member-id and --instance-id, or --all-members"),
        (["remove-members", *ONE, "--member-id", "m", "--all-members"], "takes --member-id and"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(groups, arguments)
    assert (result.exit_code, result.stdout) == (USAGE_EXIT_CODE, "")
    assert message in result.stderr


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.csv"
    path.write_text("t,0\n")
    result = CliRunner().invoke(groups, [*RESET, "--from-file", str(path)])
    assert result.exit_code == USAGE_EXIT_CODE
    assert "line 1 of the reset plan has 2 columns" in result.stderr
