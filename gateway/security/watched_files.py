"""Files that are read again when they change."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from gateway.file_signature import signature

T = TypeVar("T")

log = structlog.get_logger()


class WatchedFiles(Generic[T]):
    """What some files say together. `value` is that of the last files that could be used."""

    def __init__(self, files: Sequence[Path], read: Callable[[], T]) -> None:
        """Read the files. Raises what `read` raises, which names the file and has no part of its content."""
        self._files = files
        self._read = read
        self._seen = self._signatures()
        self.value = read()

    def refresh(self) -> None:
        """Read the files again if one of them has changed. Any thread may call this. It raises nothing."""
        seen = self._signatures()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self.value = self._read()
        except Exception as error:  # noqa: BLE001 - whatever a new file is, the earlier one is kept
            why = str(error) if isinstance(error, ValueError) else type(error).__name__
            log.warning("a security file has changed and cannot be used: the earlier one is kept", error=why)
        else:
            log.info("security files were read again", files=[str(path) for path in self._files])

    def _signatures(self) -> list[tuple[int, ...] | None]:
        return [signature(path) for path in self._files]
