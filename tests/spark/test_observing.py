"""The observer's query in a real Spark: which records reach which shard, and what it counts."""

import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from kafka_why.topic_reader import NamesById
from streaming.events_table import events_table
from streaming.observing.operator import ObservingCall
from streaming.observing.output_folder import OutputFolder
from streaming.observing.pipeline import COUNTS, FolderSink, observe_groups
from streaming.query.admission import LogRow
from streaming.query.operator import in_log_order
from streaming.query.output import OutputRows
from streaming.query.pipeline import FILE_SCHEMA, READ_SCHEMA, StatefulFunction
from tests.harness.observed_log import REAL_OF_OTHERS, real_rows

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


@dataclass(frozen=True)
class Observing:
    """The operator without a cluster that knows names of topics."""

    def __call__(
        self, key: tuple[int], frames: Iterator[pd.DataFrame], state: SparkGroupState
    ) -> Iterator[pd.DataFrame]:
        call = ObservingCall(LAYOUT, "observer", NamesById(dict), f"shard {key[0]}", state)
        yield from call.apply(in_log_order(frames))
        yield from call.finish()


def run(
    spark: SparkSession,
    folder: Path,
    function: StatefulFunction,
    *batches: Sequence[LogRow],
    sink: Callable[[DataFrame, int], None] | None = None,
) -> tuple[list[Any], Counter[str]]:
    """Run the query over these batches. Return the rows that it wrote, and its counts. A sink gets the
    second batch twice, as after a crash.
    """
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
            if sink is not None:
                for _ in range(1 + batch_id):
                    sink(output, batch_id)

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


def test_output_folder_tables_have_each_record_once_and_are_readable_by_sql(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The queries are those of docs/observe.md."""
    out = tmp_path / "out"
    rows = [*real_rows(), *real_rows(REAL_OF_OTHERS), LogRow(0, 99, 1_000, b"\0\1", b"")]
    sink = FolderSink(OutputFolder(out), LAYOUT)
    written, _ = run(spark, tmp_path, Observing(), rows[:60], rows[60:], sink=sink.write)
    expected = [bytes(row.value).decode() for row in written if row.topic == LAYOUT.events_topic]
    events = spark.read.parquet(str(out / "events"))
    assert sorted(row.value for row in events.select("value").collect()) == sorted(expected)
    assert events_table(events).count() == len(expected)
    assert spark.read.parquet(str(out / "dead_letters")).select("reason").collect()[0][0] == "INVALID_RECORD"
    reasons, states, offsets = (spark.sql(query.format(out=out)).collect() for query in documented_queries())
    assert {row.group_id for row in reasons} == {"classic", "consumer", "queue", "counts"}
    assert {row.group_id: row.state for row in states} == dict.fromkeys(
        ("classic", "consumer", "counts"), "Empty"
    )
    assert {(row.group_id, row.topic, row.partition) for row in offsets} == {
        (group, "orders", n) for group in ("classic", "consumer") for n in range(4)
    }


def documented_queries() -> list[str]:
    """Return the queries of docs/observe.md on the folder `out`."""
    text = (Path(__file__).parents[2] / "docs" / "observe.md").read_text()
    blocks = [textwrap.dedent(block) for block in re.findall(r"((?: {4}.+\n)+)", text)]
    return [block.replace("`out/", "`{out}/") for block in blocks if block.startswith("SELECT")]
