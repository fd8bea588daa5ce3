"""The rows of one shard in the log's order, in bounded memory.

Spark passes a shard's rows in chunks and promises no order: its sort compares only keys, and spilled rows
come back in any order. So LogOrder collects the rows and sorts them by (partition, offset). Above a limit it
writes sorted runs to temporary files and merges them.
"""

import heapq
import pickle
import tempfile
from collections.abc import Iterator
from typing import IO, NamedTuple

RUN_MAX_BYTES = 64 * 1024 * 1024
# The memory of a row beside its value, in bytes: the tuple, its numbers, the bytes object, its list entries.
ROW_OVERHEAD_BYTES = 256


class LogRow(NamedTuple):
    """A record of the requests topic. Rows compare in the log's order. The broker appended it at `at_ms`.

    `key` is b"" for a record without a key.
    """

    partition: int
    offset: int
    at_ms: int
    key: bytes
    value: bytes


class LogOrder:
    """A sorter of rows. `add` collects them, and iterating once yields them in order."""

    def __init__(self, run_max_bytes: int = RUN_MAX_BYTES) -> None:
        self._run_max_bytes = run_max_bytes
        self._rows: list[LogRow] = []
        self._bytes = 0
        self._runs: list[IO[bytes]] = []

    def add(self, row: LogRow) -> None:
        self._rows.append(row)
        self._bytes += len(row.key) + len(row.value) + ROW_OVERHEAD_BYTES
        if self._bytes > self._run_max_bytes:
            self._spill()

    def __iter__(self) -> Iterator[LogRow]:
        self._rows.sort()
        if not self._runs:
            yield from self._rows
            return
        try:
            yield from heapq.merge(*(_read(run) for run in self._runs), self._rows)
        finally:
            for run in self._runs:
                run.close()

    def _spill(self) -> None:
        self._rows.sort()
        run = tempfile.TemporaryFile(prefix="group-coordinator-")  # noqa: SIM115 - closed after the merge
        for row in self._rows:
            pickle.dump(tuple(row), run, pickle.HIGHEST_PROTOCOL)
        run.seek(0)
        self._runs.append(run)
        self._rows, self._bytes = [], 0


def _read(run: IO[bytes]) -> Iterator[LogRow]:
    while True:
        try:
            yield LogRow(*pickle.load(run))  # noqa: S301 - this process wrote it
        except EOFError:
            return
