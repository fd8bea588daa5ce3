"""The pipeline from records of `__consumer_offsets` to records of the observer's topics.

`observe_groups` is a function of a DataFrame, as `streaming.query.pipeline.coordinate` is. It has no
deadlines, so it does nothing without records. Offsets of a transaction are read once it has committed
(`read_committed`).
"""

import json
from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by
from pyspark.sql.streaming import StreamingQuery

from checkpoints.codec import STATE_SCHEMA
from kafka_why.connections.client_config import ClientConfig
from kafka_why.observed.consumer_offsets.schemas import record_types
from streaming.observing.operator import SIGHTINGS, SOURCE, ObservingOperator
from streaming.query.executors import WorkerFunction
from streaming.query.output import OUTPUT_SCHEMA
from streaming.query.pipeline import StatefulFunction, as_records, cluster_options, log_row, write_output

QUERY_NAME = "group-observer"
_BY_CONSUMER = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
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
"""The name of the counts that each batch reports: `read`, and `unknown` (of types that Kafka 4.4 does not
have)."""


def observe_groups(
    records: DataFrame, operator: StatefulFunction, *, shards: int, sightings: DataFrame | None = None
) -> DataFrame:
    """Return the output records for rows of (key binary, value binary, partition int, offset long,
    timestamp).

    `records` are those of `__consumer_offsets`, `sightings` those of the sightings topic. Streaming only.
    Columns of the result: topic, key, value, partition (null: by the key).
    """
    is_known = F.substring(F.col("key"), F.lit(1), F.lit(2)).isin(_encoded(record_types()))
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
        rows = rows.unionByName(_sightings(sightings, shards))
    output = rows.groupBy("shard").applyInPandasWithState(
        operator,
        outputStructType=OUTPUT_SCHEMA,
        stateStructType=STATE_SCHEMA,
        outputMode="append",
        timeoutConf="NoTimeout",
    )
    return as_records(output)


def _encoded(numbers: Iterable[int]) -> list[bytes]:
    """Return the types as the two bytes with which a record's key begins."""
    return [number.to_bytes(2) for number in sorted(numbers)]


def _shard(shards: int) -> Column:
    """Return the number of a record's shard: `streaming.query.admission.shard_of` of its group. A key begins
    with the type and the length of the group id, two bytes each. The operator refuses a key that is too short
    for that.
    """
    length = F.hex(F.substring(F.col("key"), F.lit(3), F.lit(2)))
    characters = F.conv(F.nullif(length, F.lit("")), 16, 10).cast("int")
    group = F.substring(F.col("key"), F.lit(5), F.coalesce(characters, F.lit(0)))
    return F.col("partition").cast("long") * shards + F.pmod(F.crc32(group), F.lit(shards))


def _sightings(sightings: DataFrame, shards: int) -> DataFrame:
    """Return the sightings as rows, each in its group's shard. `kafka_why.contract.sightings` defines their
    keys.
    """
    key = F.col("key").cast("string")
    number = F.substring_index(key, "/", 1).try_cast("long")
    group = F.substring(key, F.locate("/", key) + 1, F.length(key))
    shard = number * shards + F.pmod(F.crc32(group.cast("binary")), F.lit(shards))
    return (
        sightings.where(number.isNotNull())
        .withColumn("partition", F.lit(SIGHTINGS))
        .select(shard.alias("shard"), log_row().alias("row"))
    )


def read_sightings(spark: SparkSession, client_config: ClientConfig, topic: str) -> DataFrame:
    """Read the sightings topic, which has one partition. Sightings that were deleted before they were read
    are skipped without an error. The query assigns itself the partition, because subscribing would make it a
    group member.
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
    spark.conf.set(_BY_CONSUMER, "true")
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
) -> StreamingQuery:
    """Start the observer's query on a checkpoint. `partitions` is the number of partitions of the source."""
    records, layout = read_source(spark, client_config, partitions), operator.layout
    sightings = read_sightings(spark, client_config, layout.sightings_topic)
    output = observe_groups(records, WorkerFunction(operator), shards=shards, sightings=sightings)
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
