"""The options of an observer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from streaming.query.session import LOOPBACK

DEFAULT_PREFIX = "group-observer"
DEFAULT_BATCH_INTERVAL_MS = 1_000
# Of an observer that writes files: each batch is up to four files.
FOLDER_BATCH_INTERVAL_MS = 60_000
DEFAULT_POLL_INTERVAL_MS = 1_000
POLL_INTERVAL_MAX_MS = 5_000
# Of each partition of `__consumer_offsets`, of which a cluster has 50. Each shard that has records costs a
# batch 1.4 ms, and the groups of a shard are read and written together.
DEFAULT_SHARDS = 4
# A backlog is read by two tasks side by side. Each costs a batch two passes of a Python worker.
DEFAULT_STATE_PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class ObserverOptions:
    """The options of an observer. `folder` is its data folder, with the checkpoint. It writes to the topics
    of `layout`, or if there is an `output_dir` to Parquet files there.

    `shards` is the number of shards of a partition (`records.sharding`), `state_partitions` the number of
    partitions in which Spark keeps the state. If one is None, the checkpoint's own number holds, or the
    default for a new one. A batch begins `batch_interval_ms` after the one before it. Brokers are asked for
    rebalancing groups every `poll_interval_ms`, or never if that is 0. `replication_factor`
    and `min_insync_replicas` are those of new topics. `spark` are further settings of Spark.
    """

    client_config: ClientConfig
    folder: Path
    layout: TopicLayout = field(default_factory=lambda: TopicLayout.observed(DEFAULT_PREFIX, 1))
    shards: int | None = None
    state_partitions: int | None = None
    batch_interval_ms: int = DEFAULT_BATCH_INTERVAL_MS
    poll_interval_ms: int = DEFAULT_POLL_INTERVAL_MS
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    ui_host: str = LOOPBACK
    ui_port: int | None = None
    output_dir: Path | None = None
    spark: Mapping[str, str] = field(default_factory=dict)
