"""The pipeline from records of the requests topic to records of the output topics.

`coordinate` is a function of a DataFrame, so tests can give it files, unsorted rows and their own times.
`start` reads from and writes to Kafka. Requests have a null event time, so they are never late and never
advance time (docs/decisions/0001-time.md). Only clock records advance the watermark. The coordinator's ticker
appends them to every partition, each with the time up to which the requests are complete.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone knows it by
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from checkpoints.codec import STATE_SCHEMA
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import CLOCK_PATTERN, PACK_PREFIX
from kafka_why.contract.layout import TopicLayout
from streaming.query.admission import DEFAULT_SHARDS
from streaming.query.executors import WorkerFunction, WorkerRequirements, with_mark
from streaming.query.operator import Operator, in_log_order
from streaming.query.output import BY_KEY, OUTPUT_SCHEMA
from streaming.query.owner_guard import OwnerGuard
from streaming.query.spark_settings import DEFAULT_STATE_PARTITIONS, STATE_PARTITIONS

QUERY_NAME = "group-coordinator"
# The error text of a query that has read a clock record of a later owner. The owner's epoch follows it.
LATER_OWNER = "the requests topic has clock records of a later owner, epoch "
_LATER_OWNER_AND_EPOCH = re.compile(rf"{re.escape(LATER_OWNER)}\d")
# The groups of CLOCK_PATTERN: the attested time in ms, and the owner's epoch ("" if the sender made no
# claim).
_TIME_GROUP, _EPOCH_GROUP = 1, 2

# The broker delays the response to a fetch without new records by up to this long. The default, 500 ms, would
# delay every batch.
FETCH_MAX_WAIT_MS = 10

# The source queries the partitions' ends by Kafka's admin client. If a leader has left the cluster, the
# client waits for it until the call times out, even if there is a new leader. Kafka's 60 s would stop all
# groups for that long. All attempts, a second apart, take 3 minutes, as 3 attempts of 60 s do.
ENDS_TIMEOUT_MS = 5_000
ENDS_TRIES = 30
# Kafka's default.
PRODUCER_BATCH_BYTES = 16_384

StatefulFunction: TypeAlias = Callable[[Any, Iterator[pd.DataFrame], SparkGroupState], Iterator[pd.DataFrame]]


def has_later_owner(error: str) -> bool:
    """Return True if a query failed by this error because it has read a clock record of a later owner.

    Another error may contain the query's plan, and in it the same words, but there no epoch follows them.
    """
    return _LATER_OWNER_AND_EPOCH.search(error) is not None


def coordinate(
    records: DataFrame,
    operator: StatefulFunction,
    owner_epoch: int | None = None,
    *,
    shards: int = DEFAULT_SHARDS,
) -> DataFrame:
    """Return the output records for rows of (key binary, value binary, partition int, offset long,
    timestamp).

    `records` must be streaming. The columns of the result are topic, key, value and partition, which is null
    if the sink shall choose it by the key. A batch with a clock record of an epoch above `owner_epoch` fails
    with LATER_OWNER, unless `owner_epoch` is None. `shards` is the number of shards of a partition
    (`streaming.query.admission`).
    """
    timed = records.select(
        _shard(shards).alias("shard"),
        log_row().alias("row"),
        _event_time(owner_epoch).alias("event_time"),
    ).withWatermark("event_time", "0 milliseconds")
    # The predicate has to name the event-time column. The optimizer pushes any other predicate on clock
    # records below the watermark operator, which then sees no clock record, so time stands still.
    requests = timed.where(F.col("event_time").isNull())
    if int(records.sparkSession.conf.get(STATE_PARTITIONS) or 0) == 1:
        # One partition of state needs no shuffle, which saves each batch a stage. With several partitions, a
        # batch that fails on a clock record writes nothing either, because its first stage reads all records.
        requests = requests.coalesce(1)
    output = requests.groupBy("shard").applyInPandasWithState(
        operator,
        outputStructType=OUTPUT_SCHEMA,
        stateStructType=STATE_SCHEMA,
        outputMode="append",
        timeoutConf="EventTimeTimeout",
    )
    return as_records(output)


def as_records(output: DataFrame) -> DataFrame:
    """Return the rows of an operator's output (`OUTPUT_SCHEMA`) as records for the sink."""
    partition = F.when(F.col("partition") != BY_KEY, F.col("partition"))
    return output.where(F.col("topic").isNotNull()).select(
        "topic", F.when(F.length("key") > 0, F.col("key")).alias("key"), "value", partition.alias("partition")
    )


def _event_time(owner_epoch: int | None) -> Column:
    """Return the time that a clock record attests, at most its own append time, and null for other records.

    A clock record of an owner with a higher epoch than `owner_epoch` makes the batch fail. If `owner_epoch`
    is None, none does.
    """
    text = F.col("value").cast("string")
    is_clock = F.col("key").isNull() & text.rlike(CLOCK_PATTERN)
    attested_ms = F.regexp_extract(text, CLOCK_PATTERN, _TIME_GROUP).cast("long")
    time = F.least(F.timestamp_millis(attested_ms), F.col("timestamp"))
    if owner_epoch is None:
        return F.when(is_clock, time)
    epoch = F.regexp_extract(text, CLOCK_PATTERN, _EPOCH_GROUP)
    is_of_later_owner = is_clock & (epoch.try_cast("long") > owner_epoch)
    raised_error = F.raise_error(F.concat(F.lit(LATER_OWNER), epoch)).cast("timestamp")
    return F.when(is_of_later_owner, raised_error).when(is_clock, time)


def _shard(shards: int) -> Column:
    """Return the number of a record's shard, counted over all partitions of requests.

    The key of a record with one request is the group id, and its CRC-32 gives the shard, as in
    `streaming.query.admission.shard_of`. The key of a pack is a slot, a number that is equal to the CRC-32 of
    its groups' ids modulo `shards`.
    """
    is_pack = F.coalesce(F.startswith(F.col("value"), F.lit(PACK_PREFIX)), F.lit(False))
    # A pack whose key is not a number is in the shard of slot 0. The operator refuses its requests.
    slot = F.coalesce(F.col("key").cast("string").try_cast("long"), F.lit(0))
    key_hash = F.when(is_pack, slot).otherwise(F.crc32(_key()))
    return F.col("partition").cast("long") * shards + F.pmod(key_hash, F.lit(shards))


def _key() -> Column:
    return F.coalesce(F.col("key"), F.lit(b""))


def log_row() -> Column:
    """Return all fields of a record that the operator needs, in one column because each column costs time per
    shard.
    """
    header = F.concat_ws(
        " ", F.col("partition"), F.col("offset"), F.unix_millis(F.col("timestamp")), F.length(_key())
    )
    value = F.coalesce(F.col("value"), F.lit(b""))
    return F.concat(header.cast("binary"), F.lit(b"\n"), _key(), value)


def cluster_options(client_config: ClientConfig) -> dict[str, str]:
    """Return the options of Spark's Kafka source and sink for their connections to the cluster.

    Spark's plans show them, but `streaming.query.spark_settings` hides those that may be secret.
    """
    return {f"kafka.{name}": value for name, value in client_config.java_settings().items()}


class BatchStart(NamedTuple):
    """The conditions for the start of a batch. At least `interval_ms` pass between the starts of two batches.
    Then a batch waits until there are `records` new records, but not longer than `max_delay_ms`.
    """

    interval_ms: int = 0
    records: int = 1  # of all partitions of the requests topic together
    max_delay_ms: int = 0  # since the last batch


AT_ONCE = BatchStart()
"""A batch begins when the last one has ended and there is a new record."""


def read_requests(
    spark: SparkSession,
    client_config: ClientConfig,
    layout: TopicLayout,
    new_from: str = "earliest",
    batches: BatchStart = AT_ONCE,
) -> DataFrame:
    """Read the requests topic. A new checkpoint starts at `new_from` (Spark's option `startingOffsets`), an
    old one where it stopped.
    """
    return (
        spark.readStream.format("kafka")
        .options(**cluster_options(client_config))
        .option("subscribe", layout.requests_topic)
        .option("startingOffsets", new_from)
        .option("failOnDataLoss", "true")
        .option("kafka.fetch.max.wait.ms", FETCH_MAX_WAIT_MS)
        .option("kafka.max.partition.fetch.bytes", layout.request_record_max_bytes)
        .option("kafka.default.api.timeout.ms", ENDS_TIMEOUT_MS)
        .option("kafka.request.timeout.ms", ENDS_TIMEOUT_MS)
        .option("fetchOffset.numRetries", ENDS_TRIES)
        .option("minOffsetsPerTrigger", batches.records)
        .option("maxTriggerDelay", f"{batches.max_delay_ms}ms")
        .load()
    )


def start(
    spark: SparkSession,
    client_config: ClientConfig,
    checkpoint_dir: str,
    operator: Operator,
    owner_epoch: int | None = None,
    requirements: WorkerRequirements | None = None,
    guard: OwnerGuard | None = None,
    batches: BatchStart = AT_ONCE,
) -> StreamingQuery:
    """Start the coordinator's query on a checkpoint.

    `owner_epoch` is the epoch of the coordinator's claim, or None if clock records of later owners shall not
    stop the query. `requirements` are the requirements on executors, or None for a local Spark. If other
    machines can reach the checkpoint, `guard` checks in each task that no later owner has claimed the topics.
    """
    layout = operator.layout
    requests = read_requests(spark, client_config, layout, batches=batches)
    checks: list[Callable[[], None]] = []
    if requirements is not None:
        checks.append(with_mark(requirements, checkpoint_dir, spark.sparkContext.applicationId).check)
    if guard is not None:
        checks.append(guard.check)
    function = WorkerFunction(operator, tuple(checks))
    output = coordinate(requests, function, owner_epoch, shards=operator.shards)
    return write_output(output, QUERY_NAME, client_config, layout, checkpoint_dir, batches.interval_ms)


def write_output(
    output: DataFrame,
    query_name: str,
    client_config: ClientConfig,
    layout: TopicLayout,
    checkpoint_dir: str,
    batch_interval_ms: int = 0,
    *,
    linger_ms: int = 0,
    producer_batch_bytes: int = PRODUCER_BATCH_BYTES,
) -> StreamingQuery:
    """Start a query that writes the rows of `output` (topic, key, value, partition) to Kafka.

    With a `batch_interval_ms` of 0, batches follow without a pause. `linger_ms` and `producer_batch_bytes`
    are `linger.ms` and `batch.size` of the producer.
    """
    return (
        output.writeStream.queryName(query_name)
        .format("kafka")
        .options(**cluster_options(client_config))
        .option("kafka.acks", "all")
        .option("kafka.enable.idempotence", "true")
        .option("kafka.linger.ms", linger_ms)
        .option("kafka.batch.size", producer_batch_bytes)
        .option("kafka.max.request.size", layout.response_record_max_bytes)
        .option("checkpointLocation", checkpoint_dir)
        .outputMode("append")
        .trigger(processingTime=f"{batch_interval_ms} milliseconds")
        .start()
    )


# The whole state of a checkpoint: read, or written as the first batch of a new checkpoint.
#
# Spark has no API that writes a query's state. So one batch of the coordinator's own query
# (`coordinate`), with `StateWriter` as its operator, writes the state. Its state store, schema and pinned
# settings are therefore those of the query that continues. The source of the batch is a folder of files. In
# the plan of the batch, `streaming.service.stored_state.moving` replaces it with the requests topic
# afterwards.


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
# The earliest timeout that Spark accepts in the first batch: one after the watermark, which is 0.
_EARLIEST_TIMEOUT_MS = 1


def read_state(spark: SparkSession, checkpoint_uri: str, batch: int) -> Iterator[codec.ShardRow]:
    """Yield the rows of the state after a committed batch. Raises PySparkException."""
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
            payload = row.value[len(PACK_PREFIX) :]  # `_write_rows` puts the prefix in front
            entries = codec.read_row(f"shard {key[0]}", codec.STATE_VERSION, payload)
            if not entries:
                continue
            state.update((codec.STATE_VERSION, payload))
            deadline_ms = codec.earliest_deadline_ms(entries)
            if deadline_ms is not None:
                state.setTimeoutTimestamp(max(deadline_ms, _EARLIEST_TIMEOUT_MS))
        yield from ()


def write_state(
    spark: SparkSession,
    checkpoint: Path,
    rows: Path,
    shards: int,
    state: State,
    state_partitions: int = DEFAULT_STATE_PARTITIONS,
) -> None:
    """Write a new checkpoint whose state after batch 0 is `state`, which has the groups by shard number.

    Spark keeps the state in `state_partitions` partitions. `rows` is the path of a temporary folder, which
    must not exist. Raises StreamingQueryException.
    """
    rows.mkdir()
    _write_rows(rows / "rows.parquet", shards, state)
    records = spark.readStream.schema(READ_SCHEMA).parquet(str(rows))
    old_state_partitions = spark.conf.get(STATE_PARTITIONS)
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
        spark.conf.set(STATE_PARTITIONS, str(old_state_partitions))


def _write_rows(path: Path, shards: int, state: State) -> None:
    """Write a record for each shard, with its groups as a state row. The record has the form of a pack,
    because `coordinate` takes the shard of a pack from the number that is its key.
    """
    # Spark plans no batch without rows, so a state without groups needs a row, too.
    shards_and_groups = iter(sorted(state.items()) or [(0, {})])
    with pq.ParquetWriter(path, FILE_SCHEMA) as writer:
        while part := list(islice(shards_and_groups, _ROWS_PER_WRITE)):
            columns = {
                "key": [b"%d" % (shard % shards) for shard, _ in part],
                "value": [PACK_PREFIX + codec.write_row(entries)[1] for _, entries in part],
                "partition": [shard // shards for shard, _ in part],
                "offset": [0 for _ in part],
                "timestamp": [0 for _ in part],
            }
            writer.write_table(pa.table(columns, schema=FILE_SCHEMA))
