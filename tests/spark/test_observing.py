"""The observer's query in a real Spark: which records reach which shard, and what it counts."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from kafka_why.contract.layout import TopicLayout
from kafka_why.observed.consumer_offsets.decode import decode
from streaming.observing.pipeline import COUNTS, observe_groups
from streaming.query.admission import LogRow
from streaming.query.operator import in_log_order
from streaming.query.output import OutputRows
from streaming.query.pipeline import FILE_SCHEMA, READ_SCHEMA, StatefulFunction
from tests.harness.observed_log import real_rows

LAYOUT = TopicLayout.observed("o", 1)
SHARDS = 4


@dataclass(frozen=True)
class Shards:
    """Writes the shard of each record instead of observing anything."""

    def __call__(
        self, key: tuple[int], frames: Iterator[pd.DataFrame], state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        output = OutputRows()
        for row in in_log_order(frames):
            output.add("shards", b"%d" % key[0], row.key)
        yield from output.frame()


def run(
    spark: SparkSession,
    folder: Path,
    function: StatefulFunction,
    *batches: Sequence[LogRow],
) -> tuple[list[Any], Counter[str]]:
    """Run the query over these batches. Return the rows that it wrote, and its counts."""
    written: list[Any] = []
    counts: Counter[str] = Counter()
    for n, rows in enumerate(batches):
        columns = {
            "key": [row.key for row in rows],
            "value": [row.value or None for row in rows],
            "partition": [row.partition for row in rows],
            "offset": [row.offset for row in rows],
            "timestamp": [row.at_ms * 1000 for row in rows],
        }
        (folder / "input").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns, schema=FILE_SCHEMA), folder / "input" / f"{n}.parquet")
        source = spark.readStream.schema(READ_SCHEMA).parquet(str(folder / "input"))

        def keep(output: DataFrame, batch_id: int) -> None:
            written.extend(output.collect())

        query = (
            observe_groups(source, function, shards=SHARDS)
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(folder / "spark"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        for progress in query.recentProgress:
            found = json.loads(progress.json)["observedMetrics"].get(COUNTS, {})
            counts.update({name: int(number) for name, number in found.items()})
    return written, counts


def test_a_record_reaches_the_shard_of_its_group(spark: SparkSession, tmp_path: Path) -> None:
    written, _ = run(spark, tmp_path, Shards(), real_rows())
    assert len(written) == len(real_rows())
    for row in written:
        group_id = decode(bytes(row.key), None).group_id
        partition = real_rows()[0].partition
        assert int(row.value) == partition * SHARDS + crc32(group_id.encode()) % SHARDS
