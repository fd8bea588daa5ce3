"""`why` about consumers that are processes, of which one is killed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main
from cli.processes.child import Child, Children
from embedded.broker import EmbeddedBroker
from records.layout import TopicLayout
from tests.e2e.harness import settle, wait_until
from tests.harness.shared import PREFIX

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
SESSION_MS = 10_000
ALL = "0-3"


def test_why_names_a_consumer_that_was_killed_and_its_session_timeout(
    broker: EmbeddedBroker, layout: TopicLayout, topic: str, tmp_path: Path
) -> None:
    group_id = f"group-of-{topic}"
    where = ["--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX]
    arguments = ["consume", *where, "--group", group_id, "--topic", topic]
    arguments += ["--session-timeout-ms", str(SESSION_MS), "--heartbeat-interval-ms", "1000"]
    with Children(tmp_path) as children:
        stays = children.start("stays", *arguments, "--client-id", "stays")
        wait_until(lambda: got_last(stays) == ALL, "all partitions", PATIENCE_S)
        dies = children.start("dies", *arguments, "--client-id", "dies")
        wait_until(lambda: {got_last(stays), got_last(dies)} == {"0-1", "2-3"}, "a half each", PATIENCE_S)
        dies.kill()
        wait_until(lambda: got_last(stays) == ALL, "all partitions again", PATIENCE_S)
        settle(broker.client_config, layout)
        told = CliRunner().invoke(main, ["why", group_id, "-o", "json", *where])
        text = CliRunner().invoke(main, ["why", group_id, *where])
    assert told.exit_code == 0, told.output
    *_, last = json.loads(told.stdout)["rebalances"]
    assert last["cause"]["kind"] == "session timeout"
    assert [member_id[:5] for member_id in last["cause"]["member_ids"]] == ["dies-"]
    assert f"no heartbeat within its session timeout of {SESSION_MS} ms" in last["cause"]["reason"]
    assert last["duration_ms"] == last["preparing_ms"] + last["completing_ms"]
    assert "session timeout: dies" in text.stdout


def got_last(consumer: Child) -> str:
    """The numbers of the partitions that a consumer got last, as its log has them, "" if it got none yet."""
    lines = consumer.log_path.read_text().splitlines(keepends=True)
    return next(
        (line.split()[-1] for line in reversed(lines) if "got partitions" in line and line[-1] == "\n"), ""
    )
