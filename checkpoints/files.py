"""A place for files that must outlive a coordinator's machine: a folder here, or one of a Hadoop file system.

Names are relative to the place, with "/" between folders. `streaming.query.hadoop_files` has the other one.
"""

import os
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from checkpoints.folders import make_private_folder, sync


class FolderError(RuntimeError):
    """The folder cannot be used: locked by another process, made for another topic, or damaged."""


class FolderNotWritable(FolderError):
    """A file of the folder cannot be written, most often because the disk is full."""


class Files(Protocol):
    """A place for files. An error of the storage is a FolderError."""

    @property
    def uri(self) -> str:
        """The place, as Spark takes it."""

    @property
    def local(self) -> Path | None:
        """The same as a path of this machine, None if it has none."""

    def read(self, name: str) -> bytes:
        """Read a file. Raises FileNotFoundError, FolderError."""

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file, so a crash leaves the old or the new one. After the return a power loss
        leaves the new one. Raises FolderNotWritable.
        """

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists, False if it does. Raises FolderNotWritable.

        Of several machines that do this at once, one succeeds. Object stores do not promise that.
        """

    def names(self, folder: str) -> list[str]:
        """The names in a folder, [] if there is none."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists. Raises FolderNotWritable."""


class LocalFiles:
    """A folder that this machine reaches by its path, perhaps one that it shares with others."""

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
