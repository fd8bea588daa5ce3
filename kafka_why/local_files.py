"""Files in a folder of this machine, each replaced as a whole."""

import errno
import os
import stat
from pathlib import Path
from uuid import uuid4

import structlog

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


class FolderError(RuntimeError):
    """The error of an unusable folder: locked by another process, of another topic, or damaged."""


class FolderNotWritable(FolderError):
    """The error when a file of the folder cannot be written, usually because the disk is full."""


class LocalFiles:
    """The files of a folder on this machine's file system, which may be a network share."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def uri(self) -> str:
        return str(self._path)

    @property
    def local(self) -> Path:
        return self._path

    def read(self, name: str) -> bytes:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise FolderError(f"{self._path / name} cannot be read: {error.strerror}") from error

    def write(self, name: str, content: bytes) -> None:
        path = self._path / name
        temporary = path.with_name(f"{path.name}.new")
        try:
            make_private_folder(path.parent)
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # Hadoop's local file system reads a file without its checksum file unchecked.
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
            temporary.replace(path)
            sync(path.parent)
        except OSError as error:
            raise FolderNotWritable(f"{path} cannot be written: {error.strerror}") from error

    def create(self, name: str, content: bytes) -> bool:
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
        try:
            return [entry.name for entry in (self._path / folder).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, name: str) -> None:
        try:
            (self._path / name).unlink(missing_ok=True)
        except OSError as error:
            raise FolderNotWritable(f"{self._path / name} cannot be removed: {error.strerror}") from error
