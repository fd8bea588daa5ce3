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
        self._value_signatures = self._signatures()
        self._invalid_signatures: list[_Signature] | None = None
        self.value = read()

    def reload_if_changed(self) -> bool:
        """If the files have changed since `value` was read, read them and return True. Raises the errors of
        `read`.
        """
        return self._read_if_changed(self._signatures())

    def refresh(self) -> bool:
        """If the files have changed, read them and return True. Invalid files are logged once, and `value`
        stays. Any thread may call this.
        """
        signatures = self._signatures()
        try:
            is_new = self._read_if_changed(signatures)
        except Exception as error:  # noqa: BLE001 - whatever the new file is, the earlier one stays in use
            if signatures != self._invalid_signatures:
                self._invalid_signatures = signatures
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

    def _read_if_changed(self, signatures: list[_Signature]) -> bool:
        """Read the files if these signatures are not those of `value`. Return True if so."""
        if signatures == self._value_signatures:
            return False
        self.value = self._read()
        self._value_signatures = signatures
        return True

    def _signatures(self) -> list[_Signature]:
        return [_signature(path) for path in self._files]


def _signature(path: Path) -> _Signature:
    """Return a signature that changes with a file's content, or None if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    # The inode counts, because Kubernetes replaces files, and a copy may keep the original's time.
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
