"""Rows of one key in the log's order, in bounded memory.

Spark hands a key's rows over in chunks and promises no order: its sort compares keys alone, and what it
spilled comes back in any order. So the rows are gathered and sorted by (partition, offset); past a bound
sorted runs go to temporary files and are merged from there.
"""

import heapq
import pickle
import tempfile
from collections.abc import Iterator
from typing import IO, NamedTuple

RUN_MAX_BYTES = 64 * 1024 * 1024
# What a row takes beside its value: the tuple, its numbers, the bytes object, the places in lists.
ROW_OVERHEAD_BYTES = 256


class LogRow(NamedTuple):
    """A record of the requests topic; its order is the log's. `at_ms` is when the broker appended it."""

    partition: int
    offset: int
    at_ms: int
    value: bytes


class LogOrder:
    """Gathers rows with `add`, gives them back in order by iterating once."""

    def __init__(self, run_max_bytes: int = RUN_MAX_BYTES) -> None:
        self._run_max_bytes = run_max_bytes
        self._rows: list[LogRow] = []
        self._bytes = 0
        self._runs: list[IO[bytes]] = []

    def add(self, row: LogRow) -> None:
        self._rows.append(row)
        self._bytes += len(row.value) + ROW_OVERHEAD_BYTES
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
