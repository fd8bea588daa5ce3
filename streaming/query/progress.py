"""Spark's progress reports of batches, polled instead of listened to (docs/decisions/0005-metrics.md).

A poll costs one call into the JVM, and one more for each batch since the last poll. Polls miss no batch
unless more than 100 batches pass between two of them, because Spark keeps 100 reports.
"""

from collections.abc import Iterator

import msgspec
from pyspark.sql.streaming import StreamingQuery

from kafka_why.metrics.batch_progress import BatchProgress

_decode = msgspec.json.Decoder(BatchProgress).decode


class ProgressReader:
    """Yields the batches of one run of a query, each once and in order."""

    def __init__(self, query: StreamingQuery) -> None:
        # PySpark's own properties convert all of Spark's reports into Python objects at each call.
        self._query = query._jsq
        self._last_id = -1

    def new(self) -> list[BatchProgress]:
        """Return the batches since the last call. Raises Py4JError if the JVM has ended."""
        last = self._query.lastProgress()
        if last is None:
            return []
        newest = _decode(last.json())
        if newest.batch_id <= self._last_id or not newest.is_executed:
            return []
        is_next = newest.batch_id == self._last_id + 1
        batches = [newest] if is_next else list(self._backwards())[::-1]
        self._last_id = newest.batch_id
        return batches

    def _backwards(self) -> Iterator[BatchProgress]:
        """Yield the reports from the newest back to the first that was not returned before."""
        recent = self._query.recentProgress()
        for i in range(len(recent) - 1, -1, -1):
            progress = _decode(recent[i].json())
            if not progress.is_executed:
                continue
            if progress.batch_id <= self._last_id:
                return
            yield progress
