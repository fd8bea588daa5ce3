"""Spark's reports of its batches: each batch is counted once, and none is missed."""

import json
from typing import Any, cast

import msgspec
from pyspark.sql.streaming import StreamingQuery

from kafka_why.metrics.batch_progress import BatchProgress
from streaming.service.query.batches import ProgressReader


def reported(batch_id: int, *, executed: bool = True, dropped: int = 0) -> dict[str, Any]:
    """Return a batch as Spark 4.2 reports it, without the fields that are not read."""
    stages = {"addBatch": 90, "walCommit": 12} if executed else {}
    return {
        "id": "2c4b1e63-0a7c-4e6a-9a43-3d8c1b4d9f10",
        "name": "group-coordinator",
        "timestamp": "2026-01-02T03:04:05.678Z",
        "batchId": batch_id,
        "numInputRows": 8,
        "durationMs": {**stages, "triggerExecution": 120},
        "eventTime": {"watermark": "2026-01-02T03:04:05.250Z", "max": "2026-01-02T03:04:05.400Z"},
        "stateOperators": [{"operatorName": "applyInPandasWithState", "numRowsDroppedByWatermark": dropped}],
        "sources": [{"startOffset": None, "endOffset": {"requests": {"0": 17, "1": 4}}, "numInputRows": 8}],
        "sink": {"numOutputRows": 3},
    }


class JvmProgress:
    """One progress report, as the JVM returns it."""

    def __init__(self, progress: dict[str, Any]) -> None:
        self._json = json.dumps(progress)

    def json(self) -> str:
        return self._json


class Query:
    """The JVM's side of a query; it counts how often all retained reports are requested."""

    def __init__(self) -> None:
        self._jsq = self
        self.batches: list[dict[str, Any]] = []
        self.looks_back = 0

    def lastProgress(self) -> JvmProgress | None:  # noqa: N802 - Spark's name
        return JvmProgress(self.batches[-1]) if self.batches else None

    def recentProgress(self) -> list[JvmProgress]:  # noqa: N802 - Spark's name
        self.looks_back += 1
        return [JvmProgress(batch) for batch in self.batches]

    def run(self, *batches: dict[str, Any]) -> None:
        self.batches += batches


def reading() -> tuple[Query, ProgressReader]:
    query = Query()
    return query, ProgressReader(cast(StreamingQuery, query))


def ids(batches: list[BatchProgress]) -> list[int]:
    return [batch.batch_id for batch in batches]


def test_each_batch_is_reported_once_and_in_order() -> None:
    query, reader = reading()
    assert reader.new() == []
    query.run(reported(0))
    assert ids(reader.new()) == [0]
    assert reader.new() == []
    query.run(reported(1), reported(2), reported(3))
    assert ids(reader.new()) == [1, 2, 3]
    query.run(reported(4))
    assert ids(reader.new()) == [4]
    assert query.looks_back == 1, "only where some went by unseen"


def test_idle_trigger_report_is_not_a_batch() -> None:
    query, reader = reading()
    query.run(reported(7), reported(8, executed=False))
    assert ids(reader.new()) == []
    query.run(reported(8), reported(9, executed=False), reported(9))
    assert ids(reader.new()) == [7, 8, 9]


def test_backlog_counts_unread_records() -> None:
    """A batch that reads all leaves none, and a partition that was cut off counts as none, too."""
    latest = {"requests": {"0": 20, "1": 3, "2": 5}}
    source = {"endOffset": {"requests": {"0": 17, "1": 4}}, "latestOffset": latest}
    batch = msgspec.convert({**reported(1), "sources": [source]}, BatchProgress)
    assert batch.backlog == 3 + 5
    assert msgspec.convert(reported(1), BatchProgress).backlog == 0
