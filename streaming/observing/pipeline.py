"""The pipeline from records of `__consumer_offsets` to records of the observer's topics.

`observe_groups` is a function of a DataFrame, as `streaming.query.pipeline.coordinate` is. An observer has no
deadlines, so its query does nothing without records. Offsets of a transaction are read once it has committed
(`read_committed`).

A second source is the sightings topic. A sighting reports that a poll of the brokers showed a group
rebalancing (`streaming.observing.rebalance_poller`).
"""

import json
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by
from pyspark.sql.streaming import StreamingQuery

from checkpoints.codec import STATE_SCHEMA
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from kafka_why.observed.consumer_offsets.schemas import record_types
from streaming.observing.operator import SIGHTINGS, SOURCE, ObservingOperator
from streaming.observing.output_folder import (
    DEAD_LETTERS,
    EVENTS,
    GROUPS,
    MERGE_EACH_BATCHES,
    OFFSETS,
    OutputFolder,
    OutputTable,
)
from streaming.query.executors import WorkerFunction
from streaming.query.output import OUTPUT_SCHEMA
from streaming.query.pipeline import StatefulFunction, as_records, cluster_options, log_row, write_output

_DAY_MS = 24 * 60 * 60 * 1_000
# The fields of each table's records that become columns, so that SQL need not read JSON. A further column,
# `value`, is the whole record.
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
    """Start a query that writes the rows of `output` (topic, key, value, partition) to the tables of a
    folder.
    """
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
    """A sink that writes a batch's records as rows of Parquet files. A batch that runs again writes the same
    files.
    """

    folder: OutputFolder
    layout: TopicLayout

    def write(self, output: DataFrame, batch_id: int) -> None:
        """Write a batch. Spark has committed all batches before it, so their files can be merged."""
        self.folder.begin()
        if batch_id % MERGE_EACH_BATCHES == 0:
            self.folder.merge(batch_id)
        cached = output.persist()
        try:
            # All tasks process the batch here. Then one task writes each file.
            topics_in_batch = {row["topic"] for row in cached.select("topic").distinct().collect()}
            for table, topic, columns in self._tables():
                if topic in topics_in_batch:
                    self._write(table, cached.where(F.col("topic") == topic).select(*columns), batch_id)
        finally:
            cached.unpersist()

    def _tables(self) -> list[tuple[OutputTable, str, list[Column]]]:
        """Return each table with the topic of its records, and its columns: `entry` has the fields of the
        value, and the others are read from the key or are the value itself.
        """
        layout = self.layout
        key, text = F.col("key").cast("string"), F.col("value").cast("string")
        value = text.alias("value")
        key_parts = F.from_json(key, "array<string>")
        offset_key_columns = [
            key_parts[0].alias("group_id"),
            key_parts[1].alias("topic"),
            key_parts[2].cast("int").alias("partition"),
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
                [F.from_json(text, _OFFSET).alias("entry"), *offset_key_columns, value],
            ),
            (
                DEAD_LETTERS,
                layout.dead_letters_topic,
                [F.from_json(text, _DEAD_LETTER).alias("entry"), value],
            ),
        ]

    def _write(self, table: OutputTable, rows: DataFrame, batch_id: int) -> None:
        """Write a table's rows of the batch: to one file, or without keys to one file for each date."""
        other_columns = [name for name in rows.columns if name != "entry"]
        flat = rows.select(*other_columns, "entry.*", F.lit(batch_id).alias("batch")).coalesce(1)
        utc_date = F.date_from_unix_date(F.floor(F.col("at_ms") / _DAY_MS).cast("int"))
        writer = flat.write if table.keys else flat.withColumn("date", utc_date).write.partitionBy("date")
        writer.parquet(str(self.folder.staging / table.name))
        self.folder.move_batch(table, batch_id)


QUERY_NAME = "group-observer"
_FIND_OFFSETS_BY_CONSUMER = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
# The maximum number of records of a batch, so that a backlog shows progress. A batch may end at any record,
# because the output does not depend on batches.
MAX_RECORDS_A_BATCH = 200_000
# Each partition has a consumer that keeps what it has fetched, so 50 of them hold 100 MB. A fetch always
# returns its first record, whatever its size.
_MAX_PARTITION_FETCH_BYTES = 1024 * 1024
# After each poll the source asks the broker for the partition's ends. Kafka's default is 500 records.
_MAX_POLL_RECORDS = 2_000
# The producer may wait for more records, because no client waits for one and each task flushes at its end.
# Small batches are expensive for the brokers.
_LINGER_MS = 100
_PRODUCER_BATCH_BYTES = 256 * 1024
MAX_SIGHTINGS_A_BATCH = 10_000
COUNTS = "records"
"""The name of the counts of records that each batch reports: `read`, and `unknown` (of types that Kafka 4.4
does not have)."""


def observe_groups(
    records: DataFrame, operator: StatefulFunction, *, shards: int, sightings: DataFrame | None = None
) -> DataFrame:
    """Return the output records for rows of (key binary, value binary, partition int, offset long,
    timestamp).

    `records` are those of `__consumer_offsets`, `sightings` those of the sightings topic, or None if it is
    not read. Both must be streaming. The columns of the result are topic, key, value and partition, which is
    null if the sink shall choose it by the key. `shards` is the number of shards of a partition.
    """
    # The first two bytes of a key are the type of its record.
    known_types = [type_.to_bytes(2) for type_ in sorted(record_types())]
    is_known = F.substring(F.col("key"), F.lit(1), F.lit(2)).isin(known_types)
    counted = records.observe(
        COUNTS,
        F.count(F.lit(1)).alias("read"),
        F.count_if(~F.coalesce(is_known, F.lit(False))).alias("unknown"),
    )
    rows = (
        counted.coalesce(records.sparkSession.sparkContext.defaultParallelism)  # a task costs 5 ms
        .where(is_known)
        .select(_shard(shards).alias("shard"), log_row().alias("row"))
    )
    if sightings is not None:
        rows = rows.unionByName(_sighting_rows(sightings, shards))
    output = rows.groupBy("shard").applyInPandasWithState(
        operator,
        outputStructType=OUTPUT_SCHEMA,
        stateStructType=STATE_SCHEMA,
        outputMode="append",
        timeoutConf="NoTimeout",
    )
    return as_records(output)


def _shard(shards: int) -> Column:
    """Return the number of the shard of a record's group, as `streaming.query.admission.shard_of` does."""
    # A key begins with the type and the length of the group id, two bytes each. The operator refuses a key
    # that is too short for that.
    hex_length = F.hex(F.substring(F.col("key"), F.lit(3), F.lit(2)))
    length = F.conv(F.nullif(hex_length, F.lit("")), 16, 10).cast("int")
    group_id = F.substring(F.col("key"), F.lit(5), F.coalesce(length, F.lit(0)))
    return F.col("partition").cast("long") * shards + F.pmod(F.crc32(group_id), F.lit(shards))


def _sighting_rows(sightings: DataFrame, shards: int) -> DataFrame:
    """Return the sightings as rows, each in its group's shard, with SIGHTINGS as their partition."""
    key = F.col("key").cast("string")
    # A key is `<partition>/<group id>` (`kafka_why.contract.sightings`). Records with other keys are dropped.
    partition = F.substring_index(key, "/", 1).try_cast("long")
    group_id = F.substring(key, F.locate("/", key) + 1, F.length(key))
    shard = partition * shards + F.pmod(F.crc32(group_id.cast("binary")), F.lit(shards))
    return (
        sightings.where(partition.isNotNull())
        .withColumn("partition", F.lit(SIGHTINGS))
        .select(shard.alias("shard"), log_row().alias("row"))
    )


def read_sightings(spark: SparkSession, client_config: ClientConfig, topic: str) -> DataFrame:
    """Read the sightings topic, which has one partition.

    Sightings that were deleted before they were read are skipped without an error. The query assigns itself
    the partition, because subscribing would make it a group member.
    """
    return (
        spark.readStream.format("kafka")
        .options(**cluster_options(client_config))
        .option("assign", json.dumps({topic: [0]}))
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "false")
        .option("maxOffsetsPerTrigger", MAX_SIGHTINGS_A_BATCH)
        .option("groupIdPrefix", QUERY_NAME)
        .load()
    )


def read_source(spark: SparkSession, client_config: ClientConfig, partitions: int) -> DataFrame:
    """Read `__consumer_offsets`. A new checkpoint starts at its beginning, an old one where it stopped."""
    # With an admin client Spark does not find internal topics. With a consumer it reads the partitions that
    # it is assigned.
    spark.conf.set(_FIND_OFFSETS_BY_CONSUMER, "true")
    return (
        spark.readStream.format("kafka")
        .options(**cluster_options(client_config))
        .option("assign", json.dumps({SOURCE: list(range(partitions))}))
        .option("groupIdPrefix", QUERY_NAME)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .option("maxOffsetsPerTrigger", MAX_RECORDS_A_BATCH)
        .option("kafka.isolation.level", "read_committed")
        .option("kafka.max.partition.fetch.bytes", _MAX_PARTITION_FETCH_BYTES)
        .option("kafka.max.poll.records", _MAX_POLL_RECORDS)
        .load()
    )


def start(
    spark: SparkSession,
    client_config: ClientConfig,
    checkpoint_dir: str,
    operator: ObservingOperator,
    *,
    partitions: int,
    shards: int,
    batch_interval_ms: int,
    output_dir: Path | None = None,
) -> StreamingQuery:
    """Start the observer's query on a checkpoint. `partitions` is the number of partitions of the source.

    The query writes to the observer's topics, or to `output_dir` if it is given. With `output_dir` the query
    reads no sightings, because nothing writes the sightings topic.
    """
    records, layout = read_source(spark, client_config, partitions), operator.layout
    function = WorkerFunction(operator)
    if output_dir is not None:
        output = observe_groups(records, function, shards=shards)
        return write_to_folder(output, QUERY_NAME, layout, output_dir, checkpoint_dir, batch_interval_ms)
    sightings = read_sightings(spark, client_config, layout.sightings_topic)
    output = observe_groups(records, function, shards=shards, sightings=sightings)
    return write_output(
        output,
        QUERY_NAME,
        client_config,
        layout,
        checkpoint_dir,
        batch_interval_ms,
        linger_ms=_LINGER_MS,
        producer_batch_bytes=_PRODUCER_BATCH_BYTES,
    )
