"""`group-coordinator state` as an operator uses it: the state is read and backed up while the coordinator
runs, and comes back after damage to the newest files, and from the backup. No request gets two different
answers.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from checkpoints.checkpoint import Checkpoint
from clients.coordinator_client import layout_on
from connections.client_config import ClientConfig
from embedded.broker import EmbeddedBroker
from records.layout import DEFAULT_PREFIX
from records.pack import unpack
from tests.e2e.harness import Member, create_topic, read_answers, settle, stable_member
from tests.harness.checkpoints import spark_of
from tests.harness.run_command import run
from tests.slow.test_state import (
    AT_ONCE,
    GROUPS,
    SESSION_MS,
    check_is_as_it_was,
    client_of,
    commit,
    state,
)

pytestmark = pytest.mark.e2e

DAMAGED = 5
"""So many of the newest changelogs are damaged."""


def requests_answered_differently(client_config: ClientConfig) -> list[str]:
    """The requests that have two different answers."""
    found: dict[str, set[bytes]] = defaultdict(set)
    for record in read_answers(client_config, layout_on(client_config, DEFAULT_PREFIX)):
        for answer in unpack(record.value):
            found[json.loads(answer)["request"]].add(answer)
    assert len(found) > len(GROUPS)
    return [request for request, answers in found.items() if len(answers) > 1]


def damage(data: Path) -> list[Path]:
    """Cut the newest plan, and flip a byte of the newest changelogs."""
    spark = spark_of(Checkpoint.at(data / "coordinator"))
    plan = max(spark.glob("offsets/[0-9]*"), key=lambda path: int(path.name))
    plan.write_bytes(plan.read_bytes()[:-7])
    changelogs = sorted(spark.glob("state/0/0/*.changelog"), key=lambda path: int(path.stem))[-DAMAGED:]
    for path in changelogs:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    return [plan, *changelogs]


def test_no_request_is_lost_or_answered_twice(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    with EmbeddedBroker(tmp_path / "broker") as broker:
        client_config = broker.client_config
        at = ("--json", "--bootstrap-servers", broker.bootstrap_servers, *AT_ONCE)
        members = {}
        with run(tmp_path, *at, "--data-dir", str(one)) as first:
            first.ready()
            create_topic(client_config, "orders", 1, {})
            with client_of(client_config, DEFAULT_PREFIX) as client:
                for group_id in GROUPS:
                    member = stable_member(client, group_id, SESSION_MS)
                    members[group_id] = member.member_id
                    commit(member, 41)
                # A replica answers before the query has committed.
                settle(client_config, layout_on(client_config, DEFAULT_PREFIX))
                read = state("read", "--data-dir", one, "--format", "jsonl")
                groups = {row["group"]["group_id"]: row for row in map(json.loads, read.splitlines())}
                assert {g: groups[g]["offsets"][0]["offset"] for g in GROUPS} == dict.fromkeys(GROUPS, 41)
                assert f"wrote {len(groups)} groups" in state(
                    "backup", tmp_path / "backup", "--data-dir", one
                )
                later = stable_member(client, "later", SESSION_MS)
                checkpoint = Checkpoint.at(one / "coordinator")
                last = checkpoint.last_batch("commits") + 2 * DAMAGED
                while checkpoint.last_batch("commits") < last:
                    for group_id, member_id in members.items():
                        commit(Member(client, group_id, member_id), 42)
            first.process.kill()
            first.end()
        members["later"] = later.member_id

        damaged = damage(one)
        assert "is back at batch" in state(
            "rollback", "--data-dir", one, "--bootstrap-servers", broker.bootstrap_servers
        )
        assert not any(path.exists() for path in damaged)
        for data in (one, two):
            if data is two:
                state("import", tmp_path / "backup", "--data-dir", two, "--old-data-dir", one)
            with run(tmp_path, *at, "--data-dir", str(data)) as again:
                again.ready()
                with client_of(client_config, DEFAULT_PREFIX) as client:
                    commit(Member(client, "later", members["later"]), 42)
                    check_is_as_it_was(client, members, 42)
                again.interrupt()
                assert again.end()[0] == 0, again.stderr
            assert requests_answered_differently(client_config) == []
