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
    """The parsed content of files. `value` is the content when they were last valid."""

    def __init__(self, files: Sequence[Path], read: Callable[[], T]) -> None:
        """Read the files. Raises the errors of `read`, which name the file but quote none of it."""
        self._files = files
        self._read = read
        self._used = self._signatures()
        self._refused: list[_Signature] | None = None
        self.value = read()

    def read_again(self) -> bool:
        """If the files have changed since `value` was read, read them and return True. Raises the errors of
        `read`.
        """
        return self._read_if_other(self._signatures())

    def refresh(self) -> bool:
        """If the files have changed, read them and return True. Invalid files are logged once, and `value`
        stays. Any thread may call this.
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
    """Return a signature that changes with a file's content, or None without the file."""
    try:
        found = path.stat()
    except OSError:
        return None
    # The inode counts, because Kubernetes replaces files, and a copy may keep the original's time.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
