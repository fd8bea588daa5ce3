"""The real query over a folder of files. Each file is a micro-batch, and the output is kept by batch.

A test can stop the query, kill it in the middle of a batch, and start it again on its checkpoint, any number
of times.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from kafka_why.contract.codec import unpack
from state.config import CoordinatorConfig
from streaming.query.admission import DEFAULT_SHARDS
from streaming.query.operator import ConfigEpoch, Operator
from streaming.query.pipeline import FILE_SCHEMA, READ_SCHEMA, coordinate
from streaming.query.spark_settings import DEFAULT_STATE_PARTITIONS, STATE_PARTITIONS
from tests.spark.log import LAYOUT, Log, Record

FIRST_FILE_TIME_S = 1_700_000_000

Write = Callable[[DataFrame, int], None]


class SinkFailure(Exception):
    """The sink fails, and the query with it. The batch is not committed and will run again."""


class Written(NamedTuple):
    """A record that the query wrote, or one answer of a pack."""

    batch: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None

    @property
    def content(self) -> dict[str, Any]:
        assert self.value is not None, "a tombstone says nothing"
        content: dict[str, Any] = json.loads(self.value)
        return content


def make_operator(**settings: int) -> Operator:
    """Return an operator without an initial delay. Settings are by the names of `CoordinatorConfig`."""
    config = replace(CoordinatorConfig(group_initial_rebalance_delay_ms=0), **settings)  # type: ignore[arg-type]
    return Operator(LAYOUT, (ConfigEpoch(0, config),))


@dataclass
class Bench:
    """One checkpoint, its input, and the output of all its runs.

    `failures` holds, by batch, the failures of the sink: each is the share of the batch, from 0 to 1, that is
    written before the failure. `write` is another sink.
    """

    spark: SparkSession
    folder: Path
    operator: Callable[..., Any] = field(default_factory=make_operator)
    owner_epoch: int | None = None
    shards: int = DEFAULT_SHARDS
    state_partitions: int = DEFAULT_STATE_PARTITIONS
    write: Write | None = None
    failures: dict[int, list[float]] = field(default_factory=dict)
    written: list[Written] = field(default_factory=list)
    query: StreamingQuery | None = None
    _files: int = 0

    def start(self) -> None:
        """Start the query, also after it was stopped or failed."""
        self._input.mkdir(parents=True, exist_ok=True)
        self.spark.conf.set(STATE_PARTITIONS, self.state_partitions)
        records = (
            self.spark.readStream.schema(READ_SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self._input))
        )
        output = coordinate(records, self.operator, self.owner_epoch, shards=self.shards)
        self.query = (
            output.writeStream.foreachBatch(self.write or self._keep)
            .option("checkpointLocation", str(self.folder / "spark"))
            .outputMode("append")
            .start()
        )

    def stop(self) -> None:
        """Stop the query between two batches."""
        if self.query is None:
            return
        self.query.stop()
        dropped = [
            operator["numRowsDroppedByWatermark"]
            for progress in self.query.recentProgress
            for operator in progress["stateOperators"]
        ]
        assert not any(dropped), "requests have no event time, so none can be late"
        self.query = None

    def run(self, *batches: Iterable[Record]) -> list[Written]:
        """Run these batches, starting the query if needed. Return the records written meanwhile."""
        before = len(self.written)
        for records in batches:
            self.add_file(records)
        if self.query is None:
            self.start()
        assert self.query is not None
        self.query.processAllAvailable()
        return self.written[before:]

    def run_at(self, log: Log, attested_ms: int, appended_ms: int | None = None) -> list[Written]:
        """Advance time to `attested_ms`: by a batch that attests it, and a batch that acts on it."""
        at_ms = attested_ms + 1 if appended_ms is None else appended_ms
        return self.run(log.clock(at_ms, attested_ms), log.clock(at_ms, attested_ms))

    def add_file(self, records: Iterable[Record]) -> None:
        """Put a file into the input. It is a batch or a part of one."""
        self.add_table(_table(list(records)))

    def add_table(self, records: pa.Table) -> None:
        """The same for many records. Spark takes files in the order of their modification times."""
        path = self._input / f"{self._files:05d}.parquet"
        self._input.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f"_{path.name}")
        pq.write_table(records, hidden)
        time_s = FIRST_FILE_TIME_S + self._files
        os.utime(hidden, (time_s, time_s))
        hidden.rename(path)
        self._files += 1

    @property
    def watermark(self) -> str:
        """Spark's watermark in the last batch."""
        assert self.query is not None
        progress = self.query.lastProgress
        assert progress is not None
        return str(progress["eventTime"]["watermark"])

    @property
    def partitions_of_state(self) -> int:
        """The number of partitions in which the checkpoint has the state."""
        return len([path for path in (self.folder / "spark/state/0").iterdir() if path.name.isdigit()])

    @property
    def groups_touched(self) -> list[int]:
        """The number of groups whose state each batch of this run wrote."""
        assert self.query is not None
        return [int(p["stateOperators"][0]["numRowsUpdated"]) for p in self.query.recentProgress]

    @property
    def _input(self) -> Path:
        return self.folder / "input"

    def _keep(self, output: DataFrame, batch: int) -> None:
        rows = [
            Written(batch, row.topic, row.partition, _bytes(row.key), value)
            for row in output.collect()
            for value in ([None] if row.value is None else unpack(bytes(row.value)))
        ]
        shares = self.failures.get(batch)
        if shares:
            self.written += rows[: round(len(rows) * shares.pop(0))]
            raise SinkFailure(f"batch {batch}")
        self.written += rows


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _table(records: Sequence[Record]) -> pa.Table:
    columns = {
        "key": [r.key for r in records],
        "value": [r.value for r in records],
        "partition": [r.partition for r in records],
        "offset": [r.offset for r in records],
        "timestamp": [r.at_ms * 1000 for r in records],
    }
    return pa.table(columns, schema=FILE_SCHEMA)


def of_topic(written: Iterable[Written], topic: str) -> list[dict[str, Any]]:
    """Return the records of one output topic, decoded."""
    return [record.content for record in written if record.topic == topic]


def answers(written: Iterable[Written]) -> dict[str, dict[str, Any]]:
    """Return the responses by the id of their request. Asserts that copies are equal."""
    found: dict[str, dict[str, Any]] = {}
    for response in of_topic(written, LAYOUT.responses_topic):
        assert found.setdefault(response["request"], response) == response
    return found


def events(written: Iterable[Written], group_id: str, event_type: str | None = None) -> list[dict[str, Any]]:
    """Return the history entries of a group, of one type or of all."""
    return [
        event
        for event in of_topic(written, LAYOUT.events_topic)
        if event["group_id"] == group_id and event_type in (None, event["type"])
    ]


def dead_letters(written: Iterable[Written]) -> dict[str, dict[str, Any]]:
    """Return the dead letters by the id of their record."""
    return {letter["request"]: letter for letter in of_topic(written, LAYOUT.dead_letters_topic)}
