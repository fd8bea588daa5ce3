"""`why` about consumers that are processes, of which one is killed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli import main
from cli.demo.children import Children
from embedded.broker import EmbeddedBroker
from records.layout import TopicLayout
from tests.e2e.harness import settle, wait_until
from tests.harness.shared import PREFIX

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0


def test_why_names_a_consumer_that_was_killed_and_its_session_timeout(
    broker: EmbeddedBroker, layout: TopicLayout, topic: str, tmp_path: Path
) -> None:
    group_id = f"group-of-{topic}"
    where = ["--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX]
    arguments = ["consume", *where, "--group", group_id, "--topic", topic, "--session-timeout-ms", "6000"]
    with Children(tmp_path) as children:
        stays = children.start("stays", *arguments, "--client-id", "stays")
        stays.wait_for_line(lambda line: "got partitions" in line, PATIENCE_S)
        dies = children.start("dies", *arguments, "--client-id", "dies")
        dies.wait_for_line(lambda line: "got partitions" in line, PATIENCE_S)
        stays.wait_for_line(lambda line: "got partitions" in line and "0-3" not in line, PATIENCE_S)
        dies.kill()
        wait_until(
            lambda: stays.log_path.read_text().count("got partitions") == 3,
            "the third generation",
            PATIENCE_S,
        )
        settle(broker.client_config, layout)
        told = CliRunner().invoke(main, ["why", group_id, "-o", "json", *where])
        text = CliRunner().invoke(main, ["why", group_id, *where])
    assert told.exit_code == 0, told.output
    *_, last = json.loads(told.stdout)["rebalances"]
    assert last["cause"]["kind"] == "session timeout"
    assert [member_id[:5] for member_id in last["cause"]["member_ids"]] == ["dies-"]
    assert "no heartbeat within its session timeout of 6000 ms" in last["cause"]["reason"]
    assert last["duration_ms"] == last["preparing_ms"] + last["completing_ms"]
    assert "session timeout: dies" in text.stdout
