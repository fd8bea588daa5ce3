"""Storage for files that must outlive a coordinator's machine: a local folder, or one of a Hadoop file system
(`streaming.query.storage`). Names are relative to the folder, with "/" between parts.
"""

from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """A folder for files. Its errors are FolderErrors."""

    @property
    def uri(self) -> str:
        """The folder's URI, in the form that Spark accepts."""

    @property
    def local(self) -> Path | None:
        """The folder as a path of this machine, None if it is remote."""

    def read(self, name: str) -> bytes:
        """Read a file. Raises FileNotFoundError, FolderError."""

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file. A crash leaves the old or the new one; after the return a power loss
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
