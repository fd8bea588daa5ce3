"""The last release is killed in the middle of a batch, and this version goes on.

The release runs from its commit in this repository's history. `tests/spark/test_upgrade.py` has its recorded
folder, which needs no history.
"""

import os
import signal
import subprocess
import sys
import tarfile
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from io import BytesIO
from pathlib import Path

import msgspec
import pytest

from bench.memory import WORKERS, parts_of
from checkpoints.checkpoint import Checkpoint
from checkpoints.upgrades import SAME_RULES
from cli.demo.children import Child, ChildFailed, Children
from cli.demo.strike import wait_until_gone
from clients.coordinator_client import CoordinatorClient, layout_on
from embedded.broker import EmbeddedBroker
from records.client_config import ClientConfig
from records.layout import TopicLayout
from records.pack import unpack
from state.errors import ErrorCode
from state.kafka.responses import HeartbeatResponse
from tests.e2e.harness import (
    START_TIMEOUT_S,
    Member,
    read_answers,
    stable_member,
    wait_until,
    waits_for_a_request,
)

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
RELEASE, COMMIT = "0.1.0", "ab08570"
PREFIX = "upgrade-test"
GROUPS = [f"group-{n}" for n in range(5)]
SESSION_MS = 300_000
STANDSTILL_S = 3.0


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The code of the last release."""
    archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"this clone has no commit {COMMIT}")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(tmp_path / "release", filter="data")
    return tmp_path / "release"


def start(
    children: Children,
    broker: EmbeddedBroker,
    data: Path,
    name: str,
    meanwhile: Callable[[], None] = lambda: None,
) -> Child:
    child = children.start(
        name, "-c", "from cli import main; main()", "run", "--json", "--no-gateway",
        "--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX, "--data-dir", str(data),
        "-c", "group.initial.rebalance.delay.ms=0", program=Path(sys.executable),
    )  # fmt: skip
    meanwhile()
    child.wait_for_line(lambda line: "requests_topic" in line, START_TIMEOUT_S)
    return child


def kill_in_a_batch(
    running: Child, checkpoint: Checkpoint, client: CoordinatorClient, members: list[Member]
) -> list[Future[HeartbeatResponse]]:
    """Let the Python workers stand still, so that no batch ends, and kill everything when a batch is planned.

    Return the requests that were sent meanwhile. The first of them are in that batch.
    """
    for pid in parts_of(running.pid)[WORKERS]:
        os.kill(pid, signal.SIGSTOP)
    futures = [client.heartbeat(m.group_id, generation_id=1, member_id=m.member_id) for m in members]
    time.sleep(STANDSTILL_S)
    assert checkpoint.last_batch("offsets") > checkpoint.last_batch("commits")
    running.kill()
    return futures


def check_other_rules_are_refused(children: Children, broker: EmbeddedBroker, data: Path) -> None:
    """As if a version with other rules had planned the batch. Nothing is written into its folder."""
    epochs = data / "coordinator" / "epochs.json"
    written = epochs.read_text()
    epochs.write_text(written.replace(f'"{RELEASE}"', '"0.0.1"'))
    with pytest.raises(ChildFailed, match=r"was planned by version 0\.0\.1 and is not committed"):
        start(children, broker, data, "refused")
    assert not (data / "coordinator" / "owners").exists()
    wait_until_gone(data / "coordinator")
    epochs.write_text(written)


def answers_of(servers: str, layout: TopicLayout) -> dict[str, set[bytes]]:
    """All answers by the id of their request."""
    found: dict[str, set[bytes]] = defaultdict(set)
    for record in read_answers(ClientConfig(servers), layout):
        for answer in unpack(record.value):
            found[msgspec.json.decode(answer)["request"]].add(bytes(answer))
    return found


@pytest.mark.timeout(600)
def test_members_stay_and_each_request_has_one_answer(
    broker: EmbeddedBroker, release: Path, tmp_path: Path
) -> None:
    assert RELEASE in SAME_RULES
    data = tmp_path / "data"
    folder, servers = data / "coordinator", broker.client_config
    checkpoint = Checkpoint.at(folder)
    with Children(tmp_path) as children, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONSAFEPATH", "1")  # else the present folder comes first, with this version
        patch.setenv("PYTHONPATH", str(release))
        old = start(children, broker, data, "old")
        layout = layout_on(servers, PREFIX)
        with CoordinatorClient(servers, layout, client_id="c", request_timeout_ms=240_000) as client:
            members = [stable_member(client, group, SESSION_MS) for group in GROUPS]
            planned = kill_in_a_batch(old, checkpoint, client, members)
            wait_until_gone(folder)
            assert (folder / "epochs.json").exists()
            patch.setenv("PYTHONPATH", str(ROOT))
            check_other_rules_are_refused(children, broker, data)

            def ask() -> None:
                wait_until(lambda: waits_for_a_request(folder), "its wait for a request", START_TIMEOUT_S)
                member = members[0]
                planned.append(client.heartbeat(member.group_id, generation_id=1, member_id=member.member_id))

            new = start(children, broker, data, "new", meanwhile=ask)
            assert [future.result().error_code for future in planned] == [ErrorCode.NONE] * len(planned)
            assert {member.heartbeat(1) for member in members} == {ErrorCode.NONE}
            assert not (folder / "epochs.json").exists()
            before, after = checkpoint.record().epochs
            assert before.from_batch == 0
            assert before.settings.items() < after.settings.items(), "settings that the release did not have"
            new.stop()
    answers = answers_of(str(servers), layout)
    assert {len(different) for different in answers.values()} == {1}
