"""Files that are read again when they change: certificates, users, keys, quotas, ACLs."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

T = TypeVar("T")

_Signature = tuple[int, ...] | None

log = structlog.get_logger()


class WatchedFiles(Generic[T]):
    """The parsed content of some files. `value` is that of the last files that could be used."""

    def __init__(self, files: Sequence[Path], read: Callable[[], T]) -> None:
        """Read the files. Raises what `read` raises, which names the file and has no part of its content."""
        self._files = files
        self._read = read
        self._used = self._signatures()
        self._refused: list[_Signature] | None = None
        self.value = read()

    def read_again(self) -> bool:
        """Read the files if they have changed since `value` was read, and return True then. Raises what
        `read` raises.
        """
        return self._read_if_other(self._signatures())

    def refresh(self) -> bool:
        """Read the files again if they have changed, and return True then. Files that cannot be used are
        logged once. Any thread may call this.
        """
        found = self._signatures()
        try:
            is_new = self._read_if_other(found)
        except Exception as error:  # noqa: BLE001 - whatever the new file is, the earlier one stays in use
            if found != self._refused:
                self._refused = found
                why = str(error) if isinstance(error, ValueError) else type(error).__name__
                log.error("a file has changed and cannot be used: the earlier one is kept", error=why)
            return False
        if is_new:
            log.info("changed files were read again", files=[str(path) for path in self._files])
        return is_new

    async def follow(self, use: Callable[[T], None], interval_s: float) -> None:
        """Refresh at this interval until cancelled, and call `use` with each new value."""
        while True:
            await asyncio.sleep(interval_s)
            if self.refresh():
                use(self.value)

    def _read_if_other(self, found: list[_Signature]) -> bool:
        if found == self._used:
            return False
        self.value = self._read()
        self._used = found
        return True

    def _signatures(self) -> list[_Signature]:
        return [_signature(path) for path in self._files]


def _signature(path: Path) -> _Signature:
    """Return a signature that changes with a file's content, or None if the file is missing.

    Kubernetes replaces a file by one with another inode. A copy may keep the time of its original.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
