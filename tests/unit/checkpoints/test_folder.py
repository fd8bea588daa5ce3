"""The coordinator's folder: one coordinator at a time, one topic, and its earlier configurations."""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from checkpoints.folder import (
    OUTAGES_KEPT,
    Epoch,
    Folder,
    FolderError,
    FolderNotWritable,
    Identity,
    KnownOutage,
    Owner,
    new_namespace,
)
from state.inputs import Outage

IDENTITY = Identity("cluster-1", "eu-requests", "topic-1", 4, "00000000-0000-0000-0000-000000000001", 64)
OLD, NEW = {"group.max.size": 5}, {"group.max.size": 7}

# Takes the lock and prints so. With a child, passes the lock on to one that ends when its standard input
# does.
HOLDER = """
import subprocess, sys
from pathlib import Path
from checkpoints.folder import Folder
fd = Folder(Path(sys.argv[1])).lock()
if sys.argv[2] == "child":
    subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=[fd])
print("locked", flush=True)
sys.stdin.read()
"""


def owner_of(folder: Folder) -> Owner:
    return msgspec.json.decode((folder.path / "lock").read_bytes(), type=Owner)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "coordinator")


class Holder:
    """Another process that holds the lock, or whose child holds it."""

    def __init__(self, folder: Folder, who: str = "itself") -> None:
        command = [sys.executable, "-c", HOLDER, str(folder.path), who]
        # The child shares the standard input. It ends when that is closed, whether or not its parent lives.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"locked\n"

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def test_the_lock_is_the_one_coordinators(folder: Folder) -> None:
    folder.lock()
    assert owner_of(folder).pid == os.getpid()
    other = Folder(folder.path)
    with pytest.raises(FolderError, match=f"is in use by the coordinator with process id {os.getpid()}"):
        other.lock()
    other.unlock()
    folder.unlock()
    folder.unlock()
    other.lock()
    other.unlock()


def test_a_live_coordinator_of_another_process_is_named_at_once(folder: Folder) -> None:
    holder = Holder(folder)
    try:
        owner = f"process id {holder.pid} on host {socket.gethostname()} since "
        with pytest.raises(FolderError, match=owner):
            folder.lock()
    finally:
        holder.close()
    folder.lock()
    folder.unlock()


def test_the_lock_of_a_killed_coordinator_is_free(folder: Folder) -> None:
    holder = Holder(folder)
    holder.kill()
    folder.lock()
    assert owner_of(folder).pid == os.getpid()
    folder.unlock()
    holder.close()


def test_the_lock_of_a_killed_coordinator_is_waited_for_while_its_jvm_lives(folder: Folder) -> None:
    holder = Holder(folder, "child")
    holder.kill()
    locked = threading.Event()

    def lock() -> None:
        folder.lock()
        locked.set()

    waiting = threading.Thread(target=lock)
    waiting.start()
    assert not locked.wait(0.5), "the child may still be writing"
    holder.close()
    assert locked.wait(30)
    waiting.join()
    folder.unlock()


def test_the_wait_for_a_jvm_that_does_not_end_has_a_bound(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkpoints.folder.LINGERING_JVM_TIMEOUT_S", 0.1)
    holder = Holder(folder, "child")
    holder.kill()
    try:
        with pytest.raises(FolderError, match=f"Spark JVM .* had process id {holder.pid} .*: end that JVM"):
            folder.lock()
    finally:
        holder.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="file/coordinator cannot be used: "):
        Folder(tmp_path / "file" / "coordinator").lock()


def test_the_first_identity_is_pinned(folder: Folder) -> None:
    folder.path.mkdir()
    assert folder.pin(IDENTITY) == IDENTITY
    assert Folder(folder.path).pin(IDENTITY) == IDENTITY


def test_the_namespace_of_the_first_run_holds(folder: Folder) -> None:
    folder.path.mkdir()
    folder.pin(IDENTITY)
    found = msgspec.structs.replace(IDENTITY, member_id_namespace=new_namespace())
    assert found != IDENTITY
    assert folder.pin(found) == IDENTITY


def test_the_number_of_shards_is_pinned(folder: Folder) -> None:
    folder.path.mkdir()
    assert folder.pin(IDENTITY, 8).shards == 8
    assert folder.pin(IDENTITY).shards == 8, "no wish: the pinned number"
    assert folder.pin(IDENTITY, 8).shards == 8
    with pytest.raises(FolderError, match=r"has 8 shards of a partition, not 64\. .*state export"):
        folder.pin(IDENTITY, 64)


def test_a_state_without_shards_is_refused_with_the_way_on(folder: Folder) -> None:
    folder.path.mkdir()
    folder.pin(msgspec.structs.replace(IDENTITY, shards=None))
    with pytest.raises(FolderError, match=r"a version without shards\. .*state export.*state import"):
        folder.pin(IDENTITY)


@pytest.mark.parametrize(
    ("field", "now"),
    [
        ("cluster_id", "cluster-2"),
        ("requests_topic", "us-requests"),
        ("requests_topic_id", "topic-2"),
        ("request_partitions", 8),
    ],
)
def test_another_topic_is_refused_by_name(folder: Folder, field: str, now: object) -> None:
    folder.path.mkdir()
    folder.pin(IDENTITY)
    with pytest.raises(FolderError) as raised:
        folder.pin(msgspec.structs.replace(IDENTITY, **{field: now}))
    expected = f"belongs to another requests topic: .*{getattr(IDENTITY, field)!r} and is {now!r}"
    assert re.search(expected, str(raised.value))
    assert IDENTITY.member_id_namespace not in str(raised.value), "it is a secret"
    assert folder.pin(IDENTITY) == IDENTITY


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"cluster_id": 1}'])
@pytest.mark.parametrize("name", ["identity.json", "epochs.json"])
def test_a_damaged_file_is_named(folder: Folder, name: str, content: bytes) -> None:
    folder.path.mkdir()
    (folder.path / name).write_bytes(content if (name, content) != ("epochs.json", b"[]") else b"[1]")
    with pytest.raises(FolderError, match=f"{name} is damaged"):
        folder.pin(IDENTITY) if name == "identity.json" else folder.epochs(OLD, [], "1")


def test_a_file_that_was_half_written_does_not_count(folder: Folder) -> None:
    """A crash leaves the old file and, beside it, the unfinished new file."""
    folder.path.mkdir()
    (folder.path / "identity.new").write_bytes(b"{")
    assert folder.pin(IDENTITY) == IDENTITY
    assert sorted(path.name for path in folder.path.iterdir()) == ["identity.json"]


def plan(folder: Folder, planned: int, committed: int) -> None:
    """Make the files that Spark leaves: batches up to these in its two logs, and other files."""
    for log, last in (("offsets", planned), ("commits", committed)):
        path = folder.spark / log
        path.mkdir(parents=True, exist_ok=True)
        (path / ".tmp").touch()
        for batch in range(last + 1):
            (path / str(batch)).touch()
            (path / f".{batch}.crc").touch()


def test_the_first_configuration_starts_at_the_first_batch(folder: Folder) -> None:
    folder.path.mkdir()
    assert folder.epochs(OLD, [], "1") == [Epoch(0, OLD, [], "1")]
    assert Folder(folder.path).epochs(OLD, [], "1") == [Epoch(0, OLD, [], "1")]


def test_the_last_batch_counts_numbers_and_not_text(folder: Folder) -> None:
    assert folder.last_batch("offsets") == -1
    plan(folder, 10, 9)
    assert (folder.last_batch("offsets"), folder.last_batch("commits")) == (10, 9)


def test_an_outage_is_known_to_batches_that_are_not_planned_yet(folder: Folder) -> None:
    plan(folder, 6, 5)
    assert folder.outages(100, 900) == [KnownOutage(7, Outage(100, 900))]
    assert folder.outages(100, 1_200) == [KnownOutage(7, Outage(100, 1_200))], (
        "no batch knew of the one before"
    )
    plan(folder, 8, 8)
    outages = [KnownOutage(7, Outage(100, 1_200)), KnownOutage(9, Outage(2_000, 2_001))]
    assert folder.outages(2_000, 2_001) == outages
    plan(folder, 9, 9)
    assert folder.outages(3_000, 3_000) == outages, "no time passed, or the clock was set back"
    assert Folder(folder.path).outages(3_000, 2_999) == outages


def test_only_the_latest_outages_are_kept(folder: Folder) -> None:
    known: list[KnownOutage] = []
    for batch in range(OUTAGES_KEPT + 5):
        plan(folder, batch, batch)
        known = folder.outages(10 * batch, 10 * batch + 1)
    assert [outage.from_batch for outage in known] == list(range(6, OUTAGES_KEPT + 6))


def test_what_a_batch_was_planned_to_read_is_in_sparks_offset_log(folder: Folder) -> None:
    assert folder.planned_ends(-1, "requests") == {}
    plan(folder, 3, 2)
    line = b'{"requests":{"0":17,"1":0}}'
    (folder.spark / "offsets" / "3").write_bytes(b'v1\n{"batchWatermarkMs":5}\n' + line)
    assert folder.planned_ends(3, "requests") == {0: 17, 1: 0}
    assert folder.planned_ends(3, "other") == {}
    assert folder.planned_ends(4, "requests") == {}


def test_a_new_configuration_starts_at_the_first_batch_that_is_not_planned(folder: Folder) -> None:
    folder.path.mkdir()
    folder.epochs(OLD, [], "1")
    plan(folder, 6, 5)
    assert folder.epochs(NEW, [], "1") == [Epoch(0, OLD, [], "1"), Epoch(7, NEW, [], "1")]
    assert folder.epochs(NEW, [], "2")[1:] == [Epoch(7, NEW, [], "2")], "the one before never ran"
    plan(folder, 8, 8)
    epochs = [Epoch(0, OLD, [], "1"), Epoch(7, NEW, [], "2"), Epoch(9, OLD, [], "2")]
    assert folder.epochs(OLD, [], "2") == epochs
    assert Folder(folder.path).epochs(OLD, [], "2") == epochs


def test_a_folder_without_batches_forgets_what_never_ran(folder: Folder) -> None:
    folder.path.mkdir()
    folder.epochs(OLD, [], "1")
    assert folder.epochs(NEW, [], "1") == [Epoch(0, NEW, [], "1")]


def test_a_record_to_skip_is_left_out_of_the_batch_it_stopped(folder: Folder) -> None:
    """That batch runs again under its settings. The new settings start after it."""
    folder.path.mkdir()
    folder.epochs(OLD, [], "1")
    plan(folder, 6, 5)
    skipping = [Epoch(0, OLD, [], "1"), Epoch(6, OLD, ["eu-requests-0-1"], "1")]
    assert folder.epochs(OLD, ["eu-requests-0-1"], "1") == skipping
    assert folder.epochs(NEW, ["eu-requests-0-1"], "1") == [
        *skipping,
        Epoch(7, NEW, ["eu-requests-0-1"], "1"),
    ]


def test_a_skipped_record_stays_skipped(folder: Folder) -> None:
    """Later starts that do not name it skip it too, because any of them may run the batch again."""
    folder.path.mkdir()
    folder.epochs(OLD, [], "1")
    plan(folder, 6, 5)
    first = folder.epochs(OLD, ["a-0-1"], "1")
    assert folder.epochs(OLD, [], "1") == first
    assert folder.epochs(OLD, ["a-0-1", "a-0-1"], "1") == first
    both = folder.epochs(OLD, ["a-0-2"], "1")
    assert both == [Epoch(0, OLD, [], "1"), Epoch(6, OLD, ["a-0-1", "a-0-2"], "1")]
    plan(folder, 6, 6)
    assert folder.epochs(OLD, [], "1") == both


def test_a_record_to_skip_where_every_batch_is_committed_starts_at_the_next(folder: Folder) -> None:
    folder.path.mkdir()
    folder.epochs(OLD, [], "1")
    plan(folder, 6, 6)
    assert folder.epochs(OLD, ["a-0-9"], "1") == [Epoch(0, OLD, [], "1"), Epoch(7, OLD, ["a-0-9"], "1")]


def test_every_batch_has_a_configuration_even_if_the_file_is_lost(folder: Folder) -> None:
    folder.path.mkdir()
    plan(folder, 6, 5)
    assert folder.epochs(NEW, [], "1") == [Epoch(0, NEW, [], "1")]


def test_a_checkpoint_that_lost_a_committed_batch_is_refused(folder: Folder) -> None:
    """Otherwise Spark would silently handle its requests again."""
    plan(folder, 7, 6)
    for batch, end in ((5, 30), (7, 42)):
        (folder.spark / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"requests":{{"0":{end},"1":9}}}}')
    folder.check_committed("requests")
    folder.pin_committed(7, "requests")
    folder.check_committed("requests")
    for batch in (6, 7):
        (folder.spark / "offsets" / str(batch)).unlink()
    with pytest.raises(FolderError, match=r"batch 7 was committed.* is 5\. 12 records of requests that"):
        Folder(folder.path).check_committed("requests")
    shutil.rmtree(folder.spark)
    with pytest.raises(FolderError, match=r"batch 7 was committed.* is none\. 51 records of requests that"):
        folder.check_committed("requests")
    (folder.path / "committed.json").unlink()
    folder.check_committed("requests")


def test_a_batch_that_is_planned_and_lost_its_commit_runs_again(folder: Folder) -> None:
    """It reads the same and writes the same again, as after a crash between its output and its commit."""
    plan(folder, 7, 6)
    (folder.spark / "offsets" / "7").write_text('v1\n{}\n{"requests":{"0":42}}')
    folder.pin_committed(7, "requests")
    folder.check_committed("requests")


def test_a_damaged_offset_file_is_named(folder: Folder) -> None:
    plan(folder, 7, 6)
    with pytest.raises(FolderError, match=f"{re.escape(str(folder.spark / 'offsets' / '7'))} is damaged"):
        folder.planned_ends(7, "requests")


@pytest.mark.parametrize("name", ["identity", "epochs", "outages", "committed"])
def test_a_file_that_finds_no_space_is_named(folder: Folder, name: str) -> None:
    folder.path.mkdir()
    (folder.path / f"{name}.new").symlink_to("/dev/full")
    write: dict[str, Callable[[], object]] = {
        "identity": lambda: folder.pin(IDENTITY),
        "epochs": lambda: folder.epochs(OLD, [], "1"),
        "outages": lambda: folder.outages(100, 900),
        "committed": lambda: folder.pin_committed(1, "requests"),
    }
    with pytest.raises(FolderNotWritable, match=rf"{name}\.json cannot be written: No space left on device"):
        write[name]()


def test_the_owner_of_a_lock_by_an_earlier_version_is_named(folder: Folder) -> None:
    holder = Holder(folder)
    (folder.path / "lock").write_text("4711")
    try:
        with pytest.raises(FolderError, match=r"in use by the coordinator with process id 4711$"):
            folder.lock()
    finally:
        holder.close()


def test_a_locked_folder_is_locked_again_by_its_owner(folder: Folder) -> None:
    assert folder.lock() == folder.lock()
    folder.unlock()
    Folder(folder.path).lock()
