"""Wrong usage of `groups` is reported before any request is sent, with Kafka's exit code."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli import main
from cli.groups import groups
from cli.groups.coordinator import CoordinatorCluster
from kafka_why.cli.groups import USAGE_EXIT_CODE, read
from kafka_why.groups.gather import Described

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
        ([*RESET, "--to-latest", "--topic", "t", "--all-topics"], "one of --topic and --all-t"),
        ([*RESET, "--to-latest", "--topic", "t:x"], "Invalid partition 'x' specified"),
        ([*RESET, "--to-latest", "--all-topics", "--dry-run", "--execute"], "only accepts one"),
        ([*RESET, "--by-duration", "1 day", "--all-topics"], "'1 day' is not a duration"),
        ([*RESET, "--to-datetime", "2026-01-31", "--all-topics"], "there is no 'T'"),
        ([*RESET, "--to-offset", "1_0", "--all-topics"], "'1_0' is not a whole number; expected is a whole"),
        ([*RESET, "--shift-by", "9" * 20, "--all-topics"], "99999999999999999999 is not between"),
        (["describe", *NOBODY, "-dash"], "is given as --group -dash or -- -dash"),
        (["delete", *NOBODY, "g", "-5"], "is given as --group -5 or -- -5"),
        (["reset-offsets", *NOBODY, "--dash", "--to-latest"], "is given as --group --dash or -- --dash"),
        (["release", *NOBODY, "-ops"], "is given as --group -ops or -- -ops"),
        (["delete-offsets", *ONE], "Missing option '--topic'"),
        (["remove-members", *ONE], "takes --member-id and --instance-id, or --all-members"),
        (["remove-members", *ONE, "--member-id", "m", "--all-members"], "takes --member-id and"),
    ],
)
def test_groups_commands_report_wrong_usage(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(groups, arguments)
    assert (result.exit_code, result.stdout) == (USAGE_EXIT_CODE, "")
    assert message in result.stderr


def test_invalid_reset_plan_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.csv"
    path.write_text("t,0\n")
    result = CliRunner().invoke(groups, [*RESET, "--from-file", str(path)])
    assert result.exit_code == USAGE_EXIT_CODE
    assert "line 1 of the reset plan has 2 columns" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["describe", *NOBODY, "--", "-dash", "--all-groups"],
        ["describe", *NOBODY, "--group", "-dash", "--group=--all-groups"],
    ],
)
def test_group_name_may_begin_with_a_dash(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []

    def chosen(_: CoordinatorCluster, names: Sequence[str], *__: Any, **___: Any) -> dict[str, None]:
        named.extend(names)
        return {}

    monkeypatch.setattr(CoordinatorCluster, "chosen_groups", chosen)
    monkeypatch.setattr(CoordinatorCluster, "described_by", None)
    monkeypatch.setattr(CoordinatorCluster, "log", None)
    monkeypatch.setattr(read, "describe_groups", lambda *_, **__: Described())
    CliRunner().invoke(groups, arguments)
    assert named == ["-dash", "--all-groups"]


@pytest.mark.parametrize(
    "arguments",
    [["describe", "--grup", "-dash"], ["describe", "g", "-o", "jso"], ["describe", "--timeout", "-5", "g"]],
)
def test_mistyped_option_is_not_taken_as_a_group_name(arguments: list[str]) -> None:
    result = CliRunner().invoke(groups, arguments)
    assert result.exit_code == USAGE_EXIT_CODE
    assert "A name that begins" not in result.stderr


def test_every_groups_command_explains_names_that_begin_with_a_dash() -> None:
    for command in (["why"], ["whatif"], ["gateway-user"], ["state", "export"], ["groups", "describe"]):
        result = CliRunner().invoke(main, [*command, "-xash"])
        assert "A name that begins with '-' is given as" in result.stderr, command
        assert "-- -xash" in result.stderr
