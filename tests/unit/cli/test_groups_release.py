"""`groups release` ends a quarantine: the command over the coordinator's real core."""

import json
from collections.abc import Iterable

import pytest
from click.testing import CliRunner

from cli.groups import coordinator, groups
from clients.coordinator_client import Header
from kafka_why.cli.groups import common
from kafka_why.contract.kafka.requests import Heartbeat, JoinGroup, Protocol
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from state.config import CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.kafka.group import DeadlineReached
from state.kafka.protocols import view_of
from tests.harness.common import kafka_group
from tests.harness.core_client import CoreClient

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

    monkeypatch.setattr(coordinator, "CoordinatorClient", lambda *_, **__: core)
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
