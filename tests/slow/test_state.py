"""`group-coordinator state` as a user runs it: the state moves, and its members notice nothing.

It moves to new topics with three partitions of requests, and one shard for each. `test_state_tools` moves one
on the same topics.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from checkpoints.checkpoint import Checkpoint
from cli import main
from clients.coordinator_client import CoordinatorClient, layout_on
from connections.client_config import ClientConfig
from records.layout import DEFAULT_PREFIX
from state.errors import ErrorCode
from state.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit, OffsetFetch
from tests.e2e.harness import Member, create_topic, offset_records, snapshots_of, stable_member, wait_until
from tests.harness import form
from tests.harness.run_command import Run, run

pytestmark = pytest.mark.e2e

GROUPS = [f"group-{n}" for n in range(4)]
AT_ONCE = ("-c", "group.initial.rebalance.delay.ms=0", *form.arguments())
SESSION_MS = 120_000
NEW_PREFIX = "moved"


def state(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["state", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


@contextmanager
def coordinating(tmp_path: Path, data: Path, *arguments: str) -> Iterator[ClientConfig]:
    """A coordinator with an embedded broker, stopped in order at the end. How to reach the broker."""
    with run(tmp_path, "--json", "--data-dir", str(data), *AT_ONCE, *arguments) as running:
        yield ClientConfig(str(running.ready()["broker"]))
        stop(running)


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


def wait_until_committed(data: Path) -> None:
    """Wait until the batch is committed whose answers came last, because a batch that is not is run again."""
    checkpoint = Checkpoint.at(data / "coordinator")
    planned = checkpoint.last_batch("offsets")
    wait_until(lambda: checkpoint.last_batch("commits") >= planned, "the commit of the last answers' batch")


def check_is_as_it_was(client: CoordinatorClient, members: dict[str, str], offset: int) -> None:
    """Members have their ids and generations, groups their offsets."""
    for group_id, member_id in members.items():
        assert Member(client, group_id, member_id).heartbeat(1) is ErrorCode.NONE
        fetch = OffsetFetch(**client.header(group_id, 7))
        (topic,) = client.send(fetch).result().topics
        assert [partition.committed_offset for partition in topic.partitions] == [offset]


def test_a_state_moves_to_other_shards_and_to_new_topics(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    members = {}
    with coordinating(tmp_path, old) as broker, client_of(broker, DEFAULT_PREFIX) as client:
        create_topic(broker, "orders", 1, {})  # offsets of a topic that does not exist are removed
        for group_id in GROUPS:
            member = stable_member(client, group_id, SESSION_MS)
            members[group_id] = member.member_id
            commit(member, 42)
        wait_until_committed(old)

    exported = state("export", tmp_path / "exported", "--data-dir", old)
    assert exported.startswith(f"exported {len(GROUPS)} groups")
    assert "not handled yet: 0 in partition 0" in exported
    arguments = ("--prefix", NEW_PREFIX, "--request-partitions", "3")
    state("import", tmp_path / "exported", "--data-dir", new, *arguments, "--shards", "1")
    shutil.move(old / "broker", new / "broker")
    with coordinating(tmp_path, new, *arguments) as broker, client_of(broker, NEW_PREFIX) as client:
        check_is_as_it_was(client, members, 42)
        layout = layout_on(broker, NEW_PREFIX)
        for group_id, member_id in members.items():
            *_, view = snapshots_of(broker, layout, group_id)
            assert [member.member_id for member in view.members] == [member_id]
            assert [record.offset for record in offset_records(broker, layout, group_id)] == [42]
