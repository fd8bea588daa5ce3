"""The lock of a service's folder: one process at a time."""

import os
import socket
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from kafka_why.local_files import FolderError, FolderOwner, ServiceFolder

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


def test_the_lock_of_a_killed_coordinator_is_waited_for_while_its_jvm_lives(folder: ServiceFolder) -> None:
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


def test_the_wait_for_a_jvm_that_does_not_end_has_a_bound(
    folder: ServiceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_why.local_files.LINGERING_JVM_TIMEOUT_S", 0.1)
    with Holder(folder, "child") as holder:
        holder.kill()
        with pytest.raises(FolderError, match=f"Spark JVM .* had process id {holder.pid} .*: end that JVM"):
            folder.lock()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderError, match="file/coordinator cannot be used: "):
        ServiceFolder(tmp_path / "file" / "coordinator").lock()
