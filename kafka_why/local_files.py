"""Files of a folder of this machine, replaced as a whole."""

import os
from pathlib import Path
from uuid import uuid4

from kafka_why.folders import make_private_folder, sync


class FolderError(RuntimeError):
    """The folder cannot be used: locked by another process, made for another topic, or damaged."""


class FolderNotWritable(FolderError):
    """A file of the folder cannot be written, most often because the disk is full."""


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
