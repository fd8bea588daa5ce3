"""A file that is read again when it has changed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from gateway.file_signature import signature

T = TypeVar("T")

CHECK_INTERVAL_S = 2.0

log = structlog.get_logger()


class WatchedFile(Generic[T]):
    """`read` reads the file and raises ValueError if it cannot be used. `use` gets what it returned."""

    def __init__(self, path: Path, read: Callable[[Path], T], use: Callable[[T], None]) -> None:
        self._path = path
        self._read = read
        self._use = use
        self._seen = signature(self._path)

    def check(self) -> None:
        """Read the file if it has changed. A file that cannot be used changes nothing, and is logged once."""
        mark = signature(self._path)
        if mark == self._seen:
            return
        self._seen = mark
        try:
            self._use(self._read(self._path))
        except ValueError as error:
            log.error("the file changed and cannot be used: its last content holds", error=str(error))
        else:
            log.info("the file was read again", path=str(self._path))

    async def watch(self) -> None:
        """Check now and then, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            self.check()
