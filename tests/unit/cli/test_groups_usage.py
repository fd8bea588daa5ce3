"""Wrong usage of `groups` is reported before any request, with Kafka's exit code; `groups release`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli.adopt
from cli import main
from cli.assign import assign
from cli.groups import change, groups
from cli.groups.change import CoordinatorCluster
from clients.coordinator_client import Header
from kafka_why.cli.groups import USAGE_EXIT_CODE, common, read
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.requests import Heartbeat, JoinGroup, Protocol
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.gather import DescribedGroups
from operations.adopt.groups_at import AdoptError, CommittedPosition, FoundGroup
from state.kafka.group import DeadlineReached
from state.kafka.protocols import view_of
from tests.harness import batches
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
    monkeypatch.setattr(CoordinatorCluster, "describer", None)
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
    core = CoreClient(step=batches.failing_at(DeadlineReached))
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
    result = CliRunner().invoke(main, ["assign", *arguments])
    assert result.exit_code == exit_code
    assert message in result.stderr


HERE, THERE = "here:9092", "there:9092"
Offsets = Mapping[TopicPartition, CommittedPosition]


class GroupsInMemory:
    """Two coordinators, by their addresses. That of --to loses its connection at the commit for `b`."""

    groups: dict[str, dict[str, Offsets]]

    def __init__(self, client_config: ClientConfig, timeout_s: float) -> None:
        self._groups = self.groups[client_config.bootstrap_servers]

    def cluster_id(self) -> str:
        return "one"

    def ids(self) -> list[str]:
        return sorted(self._groups)

    def read(self, group_ids: Iterable[str]) -> dict[str, FoundGroup]:
        return {
            name: FoundGroup(name, "classic", "Empty", 0, self._groups[name])
            for name in group_ids
            if name in self._groups
        }

    def commit(self, group_id: str, offsets: Offsets) -> dict[TopicPartition, str]:
        if group_id == "b":
            raise AdoptError(f"{THERE}: the connection is lost")
        self._groups[group_id] = offsets
        return {}


def test_adopt_error_refuses_one_group_and_reports_the_moved_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    at: Offsets = {TopicPartition("orders", 0): CommittedPosition(5, None, "")}
    monkeypatch.setattr(GroupsInMemory, "groups", {HERE: dict.fromkeys("abc", at), THERE: {}}, raising=False)
    monkeypatch.setattr(cli.adopt, "GroupAdmin", GroupsInMemory)
    result = CliRunner().invoke(
        cli.adopt.adopt, ["--from", HERE, "--to", THERE, "--execute", "--output", "json"]
    )
    assert result.exit_code == 1
    assert [(row["group"], row["outcome"], row["reason"]) for row in json.loads(result.stdout)] == [
        ("a", "moved", ""),
        ("b", "refused", f"{THERE}: the connection is lost: check it, and start again"),
        ("c", "moved", ""),
    ]


def test_help_has_the_whole_sentence_of_each_command() -> None:
    output = " ".join(CliRunner().invoke(groups, ["--help"]).output.split())
    assert "Describe groups: their partitions, their members, or their state." in output
