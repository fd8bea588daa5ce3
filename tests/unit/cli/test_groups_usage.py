"""Wrong usage of `groups` is reported before any request, with Kafka's exit code; `groups release`."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli import main
from cli.groups import change, groups
from cli.groups.change import CoordinatorCluster
from clients.coordinator_client import Header
from kafka_why.cli.groups import USAGE_EXIT_CODE, common, read
from kafka_why.contract.kafka.requests import Heartbeat, JoinGroup, Protocol
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.groups.gather import DescribedGroups
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.kafka.group import DeadlineReached
from state.kafka.protocols import view_of
from tests.harness.common import kafka_group
from tests.harness.core_client import CoreClient

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
    monkeypatch.setattr(read, "describe_groups", lambda *_, **__: DescribedGroups())
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


NOW_MS = 60_000


def failing_step(
    group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
) -> AnyEffects:
    """Return the step, which raises at a deadline of the group `orders`."""
    if isinstance(event, DeadlineReached) and group_id == "orders":
        raise ArithmeticError("a fault of the coordinator")
    return step(group, group_id, event, now_ms, config)


def join(header: Header) -> JoinGroup:
    """Return a new member's first JoinGroup, which starts a rebalance and so the deadline that raises."""
    return JoinGroup(
        **header,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[Protocol("range", b"")],
    )


def heartbeat_error(core: CoreClient, group_id: str) -> str:
    beat = Heartbeat(**core.header(group_id), member_id="stranger", generation_id=1)
    return str(core.apply(beat, NOW_MS).error_code.name)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> CoreClient:
    """Return a core with the quarantined group `orders` and the healthy group `billing`."""
    core = CoreClient(step=failing_step)
    for name in ("orders", "billing"):
        core.apply(join(core.header(name)))
        core.timelines[name].fire_until(NOW_MS)

    def list_groups(*_: object) -> Iterable[GroupSnapshot]:
        known = [kafka_group(timeline.group) for timeline in core.timelines.values()]
        return [view_of(group) for group in known if group is not None]

    monkeypatch.setattr(change, "CoordinatorClient", lambda *_, **__: core)
    monkeypatch.setattr(common, "layout_on", lambda *_: TopicLayout.named())
    monkeypatch.setattr(common, "list_groups", list_groups)
    assert heartbeat_error(core, "orders") == "COORDINATOR_NOT_AVAILABLE"
    assert heartbeat_error(core, "billing") == "UNKNOWN_MEMBER_ID"
    return core


def release(*arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(groups, ["release", "--bootstrap-servers", "127.0.0.1:1", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_release_ends_the_quarantine_of_the_named_group(client: CoreClient) -> None:
    assert release("--group", "orders") == ("Group 'orders' is not quarantined now.\n", "")
    assert heartbeat_error(client, "orders") == "UNKNOWN_MEMBER_ID"


def test_release_of_all_groups_selects_quarantined_groups(client: CoreClient) -> None:
    out, _ = release("--all-groups", "-o", "json")
    assert json.loads(out) == [{"group": "orders", "error": None}]
    assert heartbeat_error(client, "orders") == "UNKNOWN_MEMBER_ID"
    assert release("--all-groups") == ("", "No group is quarantined.\n")
