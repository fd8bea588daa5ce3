"""The whole state of a checkpoint: read, or written as the first batch of a new checkpoint.

Spark has no API that writes a query's state. So one batch of the coordinator's own query
(`pipeline.coordinate`), with `StateWriter` as its operator, writes the state. Its state store, schema and
pinned settings are therefore those of the query that continues. The source of the batch is a folder of files,
which `checkpoints.spark_logs` replaces with the requests topic afterwards.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from kafka_why.contract.codec import PACK_PREFIX
from streaming.query.operator import in_log_order
from streaming.query.pipeline import coordinate
from streaming.query.spark_settings import DEFAULT_STATE_PARTITIONS, STATE_PARTITIONS

READ_SCHEMA = "key binary, value binary, partition int, offset long, timestamp timestamp"
FILE_SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
)
_ROWS_PER_WRITE = 1_000
State: TypeAlias = Mapping[int, Mapping[str, codec.StoredGroup]]
"""The groups of each shard, by the shard's number."""
# The earliest timeout that Spark accepts.
_EARLIEST_MS = 1


def read_state(spark: SparkSession, checkpoint_uri: str, batch: int) -> Iterator[codec.ShardRow]:
    """Read the state after a committed batch. Raises PySparkException."""
    # The state data source needs the coordinator of state stores, which Spark starts with `streams`.
    _ = spark.streams.active
    state = spark.read.format("statestore").option("batchId", batch).load(checkpoint_uri)
    rows = state.where(F.col("value.groupState").isNotNull()).select(
        F.to_json("key").alias("key"), "value.groupState.version", "value.groupState.payload"
    )
    try:
        for row in rows.toLocalIterator():
            yield codec.ShardRow(row.key, row.version, bytes(row.payload))
    except Py4JJavaError as error:  # an error of a task, which pyspark does not convert here
        raise PySparkException(error.java_exception.toString()) from None


@dataclass(frozen=True, slots=True)
class StateWriter:
    """A function for applyInPandasWithState that writes a shard's groups as its state."""

    def __call__(
        self, key: tuple[int], frames: Iterable[pd.DataFrame], state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        for row in in_log_order(frames):
            payload = row.value[len(PACK_PREFIX) :]
            entries = codec.read_row(f"shard {key[0]}", codec.STATE_VERSION, payload)
            if not entries:
                continue
            state.update((codec.STATE_VERSION, payload))
            deadline_ms = codec.earliest_deadline_ms(entries)
            if deadline_ms is not None:
                state.setTimeoutTimestamp(max(deadline_ms, _EARLIEST_MS))
        yield from ()


def write_state(
    spark: SparkSession,
    checkpoint: Path,
    rows: Path,
    shards: int,
    state: State,
    state_partitions: int = DEFAULT_STATE_PARTITIONS,
) -> None:
    """Write a new checkpoint whose state after batch 0 is this one. `state` has the groups by shard number.

    Spark keeps the state in `state_partitions` partitions. `rows` is the path of a temporary folder, which
    must not exist. Raises StreamingQueryException.
    """
    rows.mkdir()
    _write_rows(rows / "rows.parquet", shards, state)
    records = spark.readStream.schema(READ_SCHEMA).parquet(str(rows))
    before = spark.conf.get(STATE_PARTITIONS)
    spark.conf.set(STATE_PARTITIONS, state_partitions)
    try:
        query = (
            coordinate(records, StateWriter(), shards=shards)
            .writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .outputMode("append")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    finally:
        spark.conf.set(STATE_PARTITIONS, str(before))


def _write_rows(path: Path, shards: int, state: State) -> None:
    """Write a record for each shard, in the form of a pack: the key of a pack is the number of a shard, to
    which `coordinate` passes it.
    """
    # Spark plans no batch without rows, so a state without groups needs a row, too.
    numbered = iter(sorted(state.items()) or [(0, {})])
    with pq.ParquetWriter(path, FILE_SCHEMA) as writer:
        while part := list(islice(numbered, _ROWS_PER_WRITE)):
            columns = {
                "key": [b"%d" % (shard % shards) for shard, _ in part],
                "value": [PACK_PREFIX + codec.write_row(entries)[1] for _, entries in part],
                "partition": [shard // shards for shard, _ in part],
                "offset": [0 for _ in part],
                "timestamp": [0 for _ in part],
            }
            writer.write_table(pa.table(columns, schema=FILE_SCHEMA))
