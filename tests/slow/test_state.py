"""`group-coordinator state` as an operator uses it: the state is read and backed up while the coordinator
runs, comes back after damage to the newest files, and moves to new topics with three partitions of requests
and one shard for each. Members notice nothing, and no request gets two different answers.
"""

import json
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from checkpoints.checkpoint import Checkpoint
from cli import main
from clients.coordinator_client import CoordinatorClient, layout_on
from connections.client_config import ClientConfig
from records.layout import DEFAULT_PREFIX
from records.pack import unpack
from state.errors import ErrorCode
from state.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit, OffsetFetch
from tests.e2e.harness import (
    Member,
    create_topic,
    offset_records,
    read_answers,
    settle,
    snapshots_of,
    stable_member,
)
from tests.harness import form
from tests.harness.checkpoints import spark_of
from tests.harness.run_command import Run, run

pytestmark = pytest.mark.e2e

GROUPS = [f"group-{n}" for n in range(4)]
AT_ONCE = ("--json", "-c", "group.initial.rebalance.delay.ms=0", *form.arguments())
SESSION_MS = 120_000
NEW_PREFIX = "moved"
DAMAGED = 5
"""So many of the newest changelogs are damaged."""


@pytest.mark.timeout(900)
def test_state_is_read_backed_up_rolled_back_and_moved(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with run(tmp_path, *AT_ONCE, "--data-dir", str(old)) as first:
        client_config = ClientConfig(str(first.ready()["broker"]))
        create_topic(client_config, "orders", 1, {})  # offsets of a topic that does not exist are removed
        with client_of(client_config, DEFAULT_PREFIX) as client:
            members = {group_id: stable_member(client, group_id, SESSION_MS) for group_id in GROUPS}
            for member in members.values():
                commit(member, 41)
            # A replica answers before the query has committed.
            settle(client_config, layout_on(client_config, DEFAULT_PREFIX))
            check_read_and_backup(old, tmp_path / "backup")
            commit_for_batches(Checkpoint.at(old / "coordinator"), members)
        first.process.kill()
        first.end()

    damaged = damage(old)
    assert "is back at batch" in state("rollback", "--data-dir", old)
    assert not any(path.exists() for path in damaged)
    with run(tmp_path, *AT_ONCE, "--data-dir", str(old)) as again:
        client_config = ClientConfig(str(again.ready()["broker"]))
        with client_of(client_config, DEFAULT_PREFIX) as client:
            check_is_as_it_was(client, members)
            settle(client_config, layout_on(client_config, DEFAULT_PREFIX))
        assert requests_answered_differently(client_config) == []
        stop(again)

    exported = state("export", tmp_path / "exported", "--data-dir", old)
    assert exported.startswith(f"exported {len(GROUPS)} groups")
    assert "not handled yet: 0 in partition 0" in exported
    arguments = ("--prefix", NEW_PREFIX, "--request-partitions", "3")
    state("import", tmp_path / "exported", "--data-dir", new, *arguments, "--shards", "1")
    shutil.move(old / "broker", new / "broker")
    with run(tmp_path, *AT_ONCE, "--data-dir", str(new), *arguments) as moved:
        client_config = ClientConfig(str(moved.ready()["broker"]))
        with client_of(client_config, NEW_PREFIX) as client:
            check_is_as_it_was(client, members)
            check_views(client_config, members)
        stop(moved)


def state(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["state", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def stop(running: Run) -> None:
    running.interrupt()
    assert running.end()[0] == 0, running.stderr


def client_of(client_config: ClientConfig, prefix: str) -> CoordinatorClient:
    return CoordinatorClient(client_config, layout_on(client_config, prefix), client_id="test")


def commit(member: Member, offset: int) -> None:
    request = OffsetCommit(
        **member.client.header(member.group_id, 8),
        generation_id=1,
        member_id=member.member_id,
        topics=[CommittedTopic("orders", [CommittedPartition(0, offset)])],
    )
    assert member.client.send(request).result().error_code is ErrorCode.NONE


def check_read_and_backup(data: Path, backup: Path) -> None:
    read = state("read", "--data-dir", data, "--format", "jsonl")
    groups = {row["group"]["group_id"]: row for row in map(json.loads, read.splitlines())}
    assert {g: groups[g]["offsets"][0]["offset"] for g in GROUPS} == dict.fromkeys(GROUPS, 41)
    assert f"wrote {len(groups)} groups" in state("backup", backup, "--data-dir", data)


def commit_for_batches(checkpoint: Checkpoint, members: dict[str, Member]) -> None:
    """Commit offset 42 for more batches than are damaged."""
    last = checkpoint.last_batch("commits") + 2 * DAMAGED
    while checkpoint.last_batch("commits") < last:
        for member in members.values():
            commit(member, 42)


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


def check_is_as_it_was(client: CoordinatorClient, members: dict[str, Member]) -> None:
    """Members have their ids and generations, groups their offsets."""
    for group_id, member in members.items():
        assert Member(client, group_id, member.member_id).heartbeat(1) is ErrorCode.NONE
        fetch = OffsetFetch(**client.header(group_id, 7))
        (topic,) = client.send(fetch).result().topics
        assert [partition.committed_offset for partition in topic.partitions] == [42]


def requests_answered_differently(client_config: ClientConfig) -> list[str]:
    """The requests that have two different answers."""
    found: dict[str, set[bytes]] = defaultdict(set)
    for record in read_answers(client_config, layout_on(client_config, DEFAULT_PREFIX)):
        for answer in unpack(record.value):
            found[json.loads(answer)["request"]].add(answer)
    assert len(found) > len(GROUPS)
    return [request for request, answers in found.items() if len(answers) > 1]


def check_views(client_config: ClientConfig, members: dict[str, Member]) -> None:
    """The new topics have every group's view and offsets."""
    layout = layout_on(client_config, NEW_PREFIX)
    for group_id, member in members.items():
        *_, view = snapshots_of(client_config, layout, group_id)
        assert [one.member_id for one in view.members] == [member.member_id]
        assert [record.offset for record in offset_records(client_config, layout, group_id)] == [42]
