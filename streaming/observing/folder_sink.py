"""The sink of an observer that writes to a folder: a batch's records become rows of Parquet files."""

from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by
from pyspark.sql.streaming import StreamingQuery

from kafka_why.contract.layout import TopicLayout
from streaming.observing.output_folder import (
    DEAD_LETTERS,
    EVENTS,
    GROUPS,
    MERGE_EACH_BATCHES,
    OFFSETS,
    OutputFolder,
    Table,
)

_DAY_MS = 24 * 60 * 60 * 1_000
# What each table has as columns of its own, so that SQL need not read JSON. `value` is the record itself.
_EVENT = """group_id string, incarnation string, seq long, at_ms long, type string, from_state string,
    to_state string, generation int, reason string, rule string, group_type string, member_id string,
    client_id string, client_host string"""
_VIEW = "incarnation string, seq long, at_ms long, state string, generation int, protocol_type string"
_OFFSET = "offset long, leader_epoch int, metadata string, committed_at_ms long"
_DEAD_LETTER = "at_ms long, reason string, message string, request string"


def write_to_folder(
    output: DataFrame,
    query_name: str,
    layout: TopicLayout,
    output_dir: Path,
    checkpoint_dir: str,
    batch_interval_ms: int,
) -> StreamingQuery:
    """Start a query that writes (topic, key, value, partition) to the tables of a folder."""
    return (
        output.writeStream.queryName(query_name)
        .foreachBatch(FolderSink(OutputFolder(output_dir), layout).write)
        .option("checkpointLocation", checkpoint_dir)
        .outputMode("append")
        .trigger(processingTime=f"{batch_interval_ms} milliseconds")
        .start()
    )


@dataclass(frozen=True, slots=True)
class FolderSink:
    """Writes batches. A batch that runs again writes the same files."""

    folder: OutputFolder
    layout: TopicLayout

    def write(self, output: DataFrame, batch_id: int) -> None:
        """Write a batch. The batches before it are committed."""
        self.folder.begin()
        if batch_id % MERGE_EACH_BATCHES == 0:
            self.folder.merge(batch_id)
        kept = output.persist()
        try:
            # Here all tasks work on the batch, and then one on each file.
            present = {row["topic"] for row in kept.select("topic").distinct().collect()}
            for table, topic, columns in self._tables():
                if topic in present:
                    self._write(table, kept.where(F.col("topic") == topic).select(*columns), batch_id)
        finally:
            kept.unpersist()

    def _tables(self) -> list[tuple[Table, str, list[Column]]]:
        value = F.col("value").cast("string").alias("value")
        key, text, layout = F.col("key").cast("string"), F.col("value").cast("string"), self.layout
        parts = F.from_json(key, "array<string>")
        committed = [
            parts[0].alias("group_id"),
            parts[1].alias("topic"),
            parts[2].cast("int").alias("partition"),
        ]
        return [
            (EVENTS, layout.events_topic, [F.from_json(text, _EVENT).alias("entry"), value]),
            (
                GROUPS,
                layout.groups_topic,
                [F.from_json(text, _VIEW).alias("entry"), key.alias("group_id"), value],
            ),
            (
                OFFSETS,
                layout.offsets_topic,
                [F.from_json(text, _OFFSET).alias("entry"), *committed, value],
            ),
            (
                DEAD_LETTERS,
                layout.dead_letters_topic,
                [F.from_json(text, _DEAD_LETTER).alias("entry"), value],
            ),
        ]

    def _write(self, table: Table, rows: DataFrame, batch_id: int) -> None:
        others = [name for name in rows.columns if name != "entry"]
        flat = rows.select(*others, "entry.*", F.lit(batch_id).alias("batch")).coalesce(1)
        date = F.date_from_unix_date(F.floor(F.col("at_ms") / _DAY_MS).cast("int"))  # of UTC
        writer = flat.write if table.keys else flat.withColumn("date", date).write.partitionBy("date")
        writer.parquet(str(self.folder.staging / table.name))
        self.folder.place(table, batch_id)
