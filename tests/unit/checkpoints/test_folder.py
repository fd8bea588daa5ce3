"""The lock of a service's folder: one process at a time."""

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from kafka_why.local_files import (
    SPACE_NEEDED_BYTES,
    FolderError,
    FolderNotWritable,
    FolderOwner,
    LocalFiles,
    ServiceFolder,
    describe_full_disk,
    make_private_folder,
)
from tests.harness.disk_steps import record_disk_steps

# Takes the lock and prints so. With a child, passes the lock on to one that ends when its standard input
# does.
HOLDER = """
import subprocess, sys
from pathlib import Path
from kafka_why.local_files import ServiceFolder
fd = ServiceFolder(Path(sys.argv[1])).lock()
if sys.argv[2] == "child":
    subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], pass_fds=[fd])
print("locked", flush=True)
sys.stdin.read()
"""


def owner_of(folder: ServiceFolder) -> FolderOwner:
    return msgspec.json.decode((folder.path / "lock").read_bytes(), type=FolderOwner)


@pytest.fixture
def folder(tmp_path: Path) -> ServiceFolder:
    return ServiceFolder(tmp_path / "coordinator")


class Holder(AbstractContextManager["Holder"]):
    """Another process that holds the lock, or whose child holds it."""

    def __init__(self, folder: ServiceFolder, who: str = "itself") -> None:
        command = [sys.executable, "-c", HOLDER, str(folder.path), who]
        # The child shares the standard input. It ends when that is closed, whether or not its parent lives.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"locked\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def test_second_coordinator_cannot_lock_the_folder(folder: ServiceFolder) -> None:
    folder.lock()
    assert owner_of(folder).pid == os.getpid()
    other = ServiceFolder(folder.path)
    with pytest.raises(FolderError, match=f"is in use by the coordinator with process id {os.getpid()}"):
        other.lock()
    other.unlock()
    folder.unlock()
    folder.unlock()
    other.lock()
    other.unlock()


def test_a_live_coordinator_of_another_process_is_named_at_once(folder: ServiceFolder) -> None:
    """Even if it has not named itself yet. The lock of a killed one is free."""
    with Holder(folder) as holder:
        owner = f"process id {holder.pid} on host {socket.gethostname()} since "
        with pytest.raises(FolderError, match=owner):
            folder.lock()
        (folder.path / "lock").write_text("")
        with pytest.raises(FolderError, match=r"in use by the coordinator with an unknown process id$"):
            folder.lock()
        holder.kill()
        folder.lock()
        assert owner_of(folder).pid == os.getpid()
        folder.unlock()


def test_start_waits_for_the_lock_while_the_killed_coordinators_jvm_lives(folder: ServiceFolder) -> None:
    locked = threading.Event()

    def lock() -> None:
        folder.lock()
        locked.set()

    waiting = threading.Thread(target=lock)
    with Holder(folder, "child") as holder:
        holder.kill()
        waiting.start()
        assert not locked.wait(0.5), "the child may still be writing"
    assert locked.wait(30)
    waiting.join()
    folder.unlock()


def test_wait_for_a_hanging_jvm_is_bounded(folder: ServiceFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_why.local_files.LINGERING_JVM_TIMEOUT_S", 0.1)
    with Holder(folder, "child") as holder:
        holder.kill()
        with pytest.raises(FolderError, match=f"Spark JVM .* had process id {holder.pid} .*: end that JVM"):
            folder.lock()


def test_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="file/coordinator cannot be used: "):
        ServiceFolder(tmp_path / "file" / "coordinator").lock()


LOOK = """
import resource, sys
from pathlib import Path
from kafka_why.local_files import describe_full_disk
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
print(describe_full_disk([Path(sys.argv[2])]))
"""


def look(folder: Path, file_size_max: int) -> str:
    """Run LOOK in a process whose files are limited to this many bytes, and return its output. The limit
    needs no privileges.
    """
    command = [sys.executable, "-c", LOOK, str(file_size_max), str(folder)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    ).stdout.strip()


@pytest.mark.parametrize("space_bytes", [0, SPACE_NEEDED_BYTES - 1])
def test_a_folder_without_space_for_a_batch_is_named(tmp_path: Path, space_bytes: int) -> None:
    sentence = f"the disk is full: {tmp_path} cannot take {SPACE_NEEDED_BYTES} bytes: File too large"
    assert look(tmp_path, space_bytes) == sentence
    assert list(tmp_path.iterdir()) == [], "the disk is left as it was"
    assert look(tmp_path, SPACE_NEEDED_BYTES) == "None"


def test_write_error_of_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_why.local_files._PROBE", "full")
    (tmp_path / "full").symlink_to("/dev/full")
    assert str(describe_full_disk([tmp_path])).endswith("No space left on device")


def test_missing_folder_is_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    assert describe_full_disk([tmp_path / "gone", tmp_path]) is None


def test_unwritable_folder_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / ".space").mkdir()
    assert describe_full_disk([tmp_path]) == f"{tmp_path} cannot be written: Is a directory"


@pytest.fixture
def empty_folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def test_new_folders_are_synced_before_a_file_is_renamed_into_place(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = record_disk_steps(monkeypatch)
    LocalFiles(empty_folder).write("owners/x/1", b"1")
    made = ["make owners", "sync folder", "make x", "sync owners"]
    assert steps == [*made, "sync 1.new", "name 1", "sync x"]


def test_folder_that_cannot_be_synced_is_an_error(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", refusing(errno.EIO, empty_folder))
    with pytest.raises(FolderNotWritable, match=r"folder/a cannot be written: Input/output error"):
        LocalFiles(empty_folder).write("a", b"1")
    with pytest.raises(OSError, match="Input/output error"):
        make_private_folder(empty_folder / "new")


def refusing(number: int, folder: Path) -> Callable[[int], None]:
    """Return an `os.fsync` that refuses this folder with this error."""

    def fsync(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise OSError(number, os.strerror(number))

    return fsync


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_new_folder_and_its_new_parents_are_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    made = tmp_path / "data" / "coordinator"
    make_private_folder(made)
    make_private_folder(made)
    assert (mode(made), mode(made.parent), mode(tmp_path)) == (0o700, 0o700, 0o755)


def test_data_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "data")


def test_a_folder_that_others_can_enter_keeps_its_mode_and_is_reported(tmp_path: Path) -> None:
    made = ServiceFolder(tmp_path / "made")
    there = ServiceFolder(tmp_path / "there")
    there.path.mkdir(mode=0o755)
    with capture_logs() as lines, made.locked(), there.locked():
        assert (mode(made.path), mode(there.path)) == (0o700, 0o755)
        assert mode(there.path / "lock") == 0o600
    assert [(line["event"], line["folder"]) for line in lines] == [
        ("other users can enter a data folder", str(there.path))
    ]
