"""The data folder of a service on this machine: files that are replaced as a whole, and the folder's lock."""

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import msgspec
import structlog
from msgspec import Struct

from kafka_why.errors import MultilineError

# Folders for records, states and logs. Only the user who runs the coordinator may enter them.

DEFAULT_DATA_DIR = Path(".data")
"""The folder for the files of commands, relative to the working directory. Git ignores it."""

PRIVATE_UMASK = 0o077
"""The umask of a child process that writes records."""

log = structlog.get_logger()


def make_private_folder(path: Path) -> None:
    """Create a folder that only this user may enter, with missing parents, and sync it to disk.

    An existing folder keeps its mode. Raises OSError.
    """
    if path.is_dir():
        return
    if not path.parent.exists():
        make_private_folder(path.parent)
    path.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    sync(path.parent)


def warn_if_open(path: Path) -> None:
    """Log a warning if other users of this machine can enter the folder. Raises OSError."""
    if path.stat().st_mode & stat.S_IXOTH:
        log.warning("other users can enter a data folder", folder=str(path), private_by=f"chmod 700 {path}")


def sync(path: Path) -> None:
    """Sync a file's content, or the names in a folder, to disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)


class FolderError(MultilineError):
    """The error of an unusable folder: locked by another process, of another topic, or damaged."""


class FolderNotWritable(FolderError):
    """The error when a file of the folder cannot be written, usually because the disk is full."""


class LocalFiles:
    """The files of a folder on this machine's file system, which may be a network share.

    Names of files may have folders: `folder/name`. All methods that write raise FolderNotWritable.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def uri(self) -> str:
        return str(self._path)

    @property
    def local_path(self) -> Path:
        return self._path

    def read(self, name: str) -> bytes:
        """Return a file's content. Raises FileNotFoundError, or FolderError if it cannot be read."""
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise FolderError(f"{self._path / name} cannot be read: {error.strerror}") from error

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file as a whole, and sync it to disk."""
        path = self._path / name
        temporary = path.with_name(f"{path.name}.new")
        try:
            make_private_folder(path.parent)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # Hadoop's local file system would check the new content against the old checksum file. Without
            # that file, it reads the content unchecked.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            temporary.replace(path)
            sync(path.parent)
        except OSError as error:
            raise FolderNotWritable(f"{path} cannot be written: {error.strerror}") from error

    def create(self, name: str, content: bytes) -> bool:
        """Write a new file. Return False and write nothing if it exists."""
        temporary = f"{name}.{uuid4().hex}"
        self.write(temporary, content)
        try:
            os.link(self._path / temporary, self._path / name)
            sync((self._path / name).parent)
        except FileExistsError:
            return False
        except OSError as error:
            raise FolderNotWritable(f"{self._path / name} cannot be written: {error.strerror}") from error
        finally:
            self.remove(temporary)
        return True

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, or [] if it does not exist."""
        try:
            return [entry.name for entry in (self._path / folder).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            raise FolderNotWritable(f"{self._path / name} cannot be removed: {error.strerror}") from error


# The folder of a service on its own machine: its lock, its log, its status, and most often its checkpoint.

LINGERING_JVM_TIMEOUT_S = 60.0
"""A new process waits at most this long for the Spark JVM of a killed service."""


class FolderOwner(Struct, frozen=True):
    """The process that holds the folder's lock. The lock file contains this as JSON."""

    pid: int
    host: str
    since_ms: int

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, tz=UTC)
        return f"process id {self.pid} on host {self.host} since {since:%Y-%m-%d %H:%M:%S} UTC"


class ServiceFolder:
    """The folder of one service. Call `lock` before writing into it.

    The folder has two lock files. The service's Spark JVM inherits the descriptor of `lock`, but only the
    process itself locks `owner`. So a new process can distinguish a running service from a JVM that outlives
    its killed service. `service` is the service's name in errors.
    """

    def __init__(self, path: Path, service: str = "coordinator") -> None:
        self.path = path
        self._service = service
        self._locks: list[int] = []  # descriptors of the two lock files; [] if not locked

    def lock(self) -> int:
        """Lock the folder for this process.

        Return the file descriptor that has the lock. A second call has no effect. Pass the descriptor to the
        JVM: if this process is killed, the JVM may still finish a batch, and the next process waits for that.
        Raises FolderError that names the present owner.
        """
        if self._locks:
            return self._locks[0]
        try:
            make_private_folder(self.path)
            warn_if_open(self.path)
            for name in ("lock", "owner"):
                self._locks.append(os.open(self.path / name, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            self.unlock()
            raise FolderError(f"{self.path} cannot be used: {error}") from error
        lock, owner = self._locks
        try:
            self._acquire(lock, owner)
            _write_owner(lock, self.path)
        except BaseException:
            self.unlock()
            raise
        # This waits only for a moment: a process that tests this lock (`_acquire`) releases it at once.
        fcntl.flock(owner, fcntl.LOCK_EX)
        return lock

    def _acquire(self, lock: int, owner: int) -> None:
        """Lock the file `lock` (a descriptor), after waiting for a JVM that outlives its service.

        Raises FolderError.
        """
        give_up_s = time.monotonic() + LINGERING_JVM_TIMEOUT_S
        while not _try_lock(lock):
            holder = _read_owner(lock)
            if not _try_lock(owner):  # the service itself is running
                raise FolderError(f"{self.path} is in use by the {self._service} with {holder}")
            fcntl.flock(owner, fcntl.LOCK_UN)
            if time.monotonic() > give_up_s:
                raise FolderError(
                    f"{self.path} is still in use by the Spark JVM of the {self._service} that had {holder}: "
                    "end that JVM"
                )
            # The service's process has ended, and its JVM is ending. Poll, because flock has no timeout.
            time.sleep(0.05)

    def unlock(self) -> None:
        """Release the lock."""
        for fd in self._locks:
            os.close(fd)
        self._locks = []

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Lock the folder during the block (see `lock`)."""
        lock = self.lock()
        try:
            yield lock
        finally:
            self.unlock()


def _try_lock(fd: int) -> bool:
    """Lock a file if no other process has locked it. Return True if it is locked now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_owner(lock: int, folder: Path) -> None:
    """Write this process as the owner into the lock file. Raises FolderNotWritable."""
    content = msgspec.json.encode(FolderOwner(os.getpid(), socket.gethostname(), int(time.time() * 1000)))
    try:
        os.truncate(lock, 0)
        os.pwrite(lock, content, 0)
    except OSError as error:
        raise FolderNotWritable(f"{folder} cannot be written: {error.strerror}") from error


def _read_owner(lock: int) -> FolderOwner | str:
    """Return the owner in the lock file, or a text if it has none."""
    try:
        return msgspec.json.decode(os.pread(lock, 1024, 0), type=FolderOwner)
    except msgspec.DecodeError:
        # A process that is starting has not written it yet.
        return "an unknown process id"


# A batch writes less than this into the checkpoint, unless thousands of groups change in it.
SPACE_NEEDED_BYTES = 1024 * 1024
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PROBE = ".space"  # name of the file that is written


def describe_full_disk(folders: Iterable[Path]) -> str | None:
    """Return a sentence about the first folder that cannot be written, or None if all can be written.

    The usual reason is that SPACE_NEEDED_BYTES are not free. The check writes a file of this size, because
    only a write respects quotas and process limits. A missing folder is skipped: it has another problem.
    """
    for folder in folders:
        try:
            _write_and_remove(folder / _PROBE)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in _NO_SPACE:
                return f"the disk is full: {folder} cannot take {SPACE_NEEDED_BYTES} bytes: {error.strerror}"
            return f"{folder} cannot be written: {error.strerror}"
    return None


def _write_and_remove(path: Path) -> None:
    try:
        path.write_bytes(bytes(SPACE_NEEDED_BYTES))
    finally:
        path.unlink(missing_ok=True)
