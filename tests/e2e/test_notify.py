"""`notify` beside a real broker and a real coordinator: each rebalance becomes one message, whatever ends."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import main
from cli.processes.child import Child, Children
from clients.coordinator_client import CoordinatorClient
from embedded.broker import EmbeddedBroker
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.layout import TopicLayout
from tests.e2e.harness import Member, settle, stable_member
from tests.harness.commands import invoke
from tests.harness.shared import PREFIX
from tests.harness.webhook import Reply, Webhook

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

READY_TIMEOUT_S = 120.0
PAGE = "https://page.example.org"
CLIENT_ID = "worker"


@pytest.fixture
def client(broker: EmbeddedBroker, layout: TopicLayout) -> Iterator[CoordinatorClient]:
    with CoordinatorClient(broker.client_config, layout, client_id=CLIENT_ID) as client:
        yield client


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def arguments(broker: EmbeddedBroker, webhook: Webhook, folder: Path, group: str) -> list[str]:
    return [
        *("notify", "--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX),
        *("--url", webhook.url(), "--data-dir", str(folder), "--group", group, "--page-url", PAGE),
    ]


def started(children: Children, name: str, told: list[str]) -> Child:
    child = children.start(name, *told)
    child.wait_for_line(lambda line: line.startswith("ready:"), READY_TIMEOUT_S)
    return child


def rejoin(member: Member, generation: int) -> None:
    """A leader that joins again begins a rebalance (row E9), and forms this generation."""
    assert member.join().result().generation_id == generation
    assert member.sync(generation, {member.member_id: b"all"}).result().error_code is ErrorCode.NONE


def ended_by_why(broker: EmbeddedBroker, group: str) -> list[tuple[int, int]]:
    """When the rebalances of the group began and ended, as `why` says."""
    told = invoke(
        main,
        ["why", group, "--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX, "-o", "json"],
    )
    return [(r["began_ms"], r["ended_ms"]) for r in json.loads(told.stdout)["rebalances"]]


def test_each_rebalance_is_sent_once_although_notify_is_killed_before(
    broker: EmbeddedBroker, layout: TopicLayout, client: CoordinatorClient, group: str, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    with Webhook() as webhook, Children(tmp_path) as children:
        told = arguments(broker, webhook, folder, group)
        notify = started(children, "first", told)
        refused = invoke(main, told)
        assert refused.exit_code == 1
        assert refused.stderr.startswith(f"Error: {folder} is in use by the notifier with process id ")
        member = stable_member(client, group)
        webhook.wait_for(lambda got: len(got.messages()) == 1, "the first rebalance")

        webhook.default = Reply(503)
        rejoin(member, 2)
        webhook.wait_for(lambda got: got.received[-1].status == 503, "an attempt to tell the second one")
        notify.kill()
        rejoin(member, 3)
        settle(broker.client_config, layout)
        webhook.default = Reply()
        started(children, "second", told)
        webhook.wait_for(lambda got: len(got.messages()) >= 3, "those that were not told")
        assert member.leave() is ErrorCode.NONE
        webhook.wait_for(lambda got: len(got.messages()) >= 4, "the one after the restart")

    messages = webhook.messages()
    assert [(one["kind"], one["status"], one["group"]) for one in messages] == 4 * [
        ("rebalance", "happened", group)
    ]
    assert [(one["began_ms"], one["ended_ms"]) for one in messages] == ended_by_why(broker, group)
    assert [one["sentence"] for one in messages] == [
        f"member joined: {CLIENT_ID}",
        f"leader joined again: {CLIENT_ID}",
        f"leader joined again: {CLIENT_ID}",
        f"member left: {CLIENT_ID}",
    ]
    assert messages[1]["page"] == f"{PAGE}/group?id={group}"
    assert any(label == "formed" and "generation 1 -> 2" in text for label, text in messages[1]["lines"])
