"""A place for files that must outlive a coordinator's machine: a folder here, or one of a Hadoop file system.

Names are relative to the place, with "/" between folders. `streaming.query.storage` has the other one.
"""

from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """A place for files. An error of the storage is a FolderError."""

    @property
    def uri(self) -> str:
        """The place, as Spark takes it."""

    @property
    def local(self) -> Path | None:
        """The place as a path of this machine, None if it is elsewhere."""

    def read(self, name: str) -> bytes:
        """Read a file. Raises FileNotFoundError, FolderError."""

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file, so a crash leaves the old or the new one. After the return a power loss
        leaves the new one. Raises FolderNotWritable.
        """

    def create(self, name: str, content: bytes) -> bool:
        """Write a file and return True, or return False if it exists. Raises FolderNotWritable.

        If several machines do this at once, one succeeds. Object stores do not guarantee that.
        """

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, [] if there is none."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists. Raises FolderNotWritable."""
