"""Records for output topics, collected in frames for Spark."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

# One batch has one sink. `topic` is the record's topic, null if the row is not a record. `partition` -1: the
# sink chooses it by the key.
OUTPUT_SCHEMA = "topic string, partition int, key binary, value binary"
BY_KEY = -1

# The responses to a large backlog leave frame by frame while the operator works.
FRAME_MAX_RECORDS = 8_192
FRAME_MAX_BYTES = 16 * 1024 * 1024

# PySpark joins frames and states until they have spark.sql.execution.arrow.maxRecordsPerBatch (10,000) rows,
# whatever their bytes, and fails above 2 GiB. So a frame of large records, or one beside a large state, is
# padded with empty rows until its row count matches its bytes. 80 MiB are then enough.
BYTES_PER_ROW = 8 * 1024

_COLUMNS = [column.split()[0] for column in OUTPUT_SCHEMA.split(", ")]


class OutputRows:
    """The records of one call in the order of their creation. `frame` empties it."""

    def __init__(self) -> None:
        # One list of rows, because a frame of one array of objects is made in a fifth of the time of a frame
        # of four lists.
        self._rows: list[tuple[str | None, int, bytes | None, bytes | None]] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the collected records are large enough for a frame."""
        return len(self._rows) >= FRAME_MAX_RECORDS or self._bytes >= FRAME_MAX_BYTES

    def add(self, topic: str, value: bytes | None, key: bytes, partition: int = BY_KEY) -> None:
        """Add a record, a tombstone if its value is None."""
        self._rows.append((topic, partition, key, value))
        self._bytes += len(value or b"")

    def frame(self, state_bytes: int = 0) -> Iterator[pd.DataFrame]:
        """Yield the records collected since the last call as one frame, none if there are no records.

        `state_bytes` is the size of the state that leaves Python beside the frame.
        """
        empty_rows = (self._bytes + state_bytes) // BYTES_PER_ROW - len(self._rows)
        if empty_rows > 0:
            self._rows += [(None, BY_KEY, None, None)] * empty_rows
        if not self._rows:
            return
        cells: np.ndarray[Any, Any] = np.empty((len(self._rows), len(_COLUMNS)), dtype=object)
        cells[:] = self._rows
        yield pd.DataFrame(cells, columns=_COLUMNS, copy=False)
        self._rows = []
        self._bytes = 0
