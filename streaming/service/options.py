"""The options of a coordinator."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from streaming.query.session import LOOPBACK
from streaming.service.clock.pace import REST_INTERVAL_MS
from streaming.service.clock.ticker import DEFAULT_INTERVAL_MS
from streaming.service.outages.outage import FIRST_REQUEST_WAIT_S
from streaming.service.topic_watch.watcher import DEFAULT_INTERVAL_MS as DEFAULT_TOPIC_INTERVAL_MS

REPLICA_BATCH_INTERVAL_MS = 1_000
"""The interval of batches with a replica. Only views wait for a batch then, and larger batches cost less."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a coordinator. `settings` are by Kafka's dotted names.

    With `replica` a second process answers before the query (`streaming.replica`). `batch_interval_ms` is the
    interval of the query's batches. None means REPLICA_BATCH_INTERVAL_MS with a replica, and no pause without
    one.

    `checkpoint` is the path or URI of the checkpoint, or None if it is in `folder`. `rest_interval_ms` is the
    interval of clock records while no group has a member (see `Pace`). `skip` are ids of records to
    dead-letter unread. `shards` is the number of shards of a partition (`streaming.query.admission`). If it
    is None, it is the state's number, or the default for a new state. With `take_over_topics` the coordinator
    may claim topics of another folder (`streaming.service.ownership`). With `standby` it waits until they are
    free. If gateways are separate processes, an outage ends at the first request, at the latest
    `first_request_wait_s` after the start of the query. `master`, `driver_host` and the settings `spark` are
    as in `Session`. `state_partitions` is the number of partitions in which Spark keeps the state. None has
    the same meaning as for `shards`.
    """

    client_config: ClientConfig
    folder: Path
    layout: TopicLayout = field(default_factory=TopicLayout.named)
    settings: Mapping[str, str] = field(default_factory=dict)
    checkpoint: str | None = None
    skip: tuple[str, ...] = ()
    ui_host: str = LOOPBACK
    ui_port: int | None = 0
    tick_interval_ms: int = DEFAULT_INTERVAL_MS
    rest_interval_ms: int = REST_INTERVAL_MS
    clock_lag_ms: int = 0
    topic_interval_ms: int = DEFAULT_TOPIC_INTERVAL_MS
    replica: bool = True
    batch_interval_ms: int | None = None
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    shards: int | None = None
    take_over_topics: bool = False
    standby: bool = False
    first_request_wait_s: float = FIRST_REQUEST_WAIT_S
    master: str | None = None
    driver_host: str | None = None
    state_partitions: int | None = None
    spark: Mapping[str, str] = field(default_factory=dict)

    @property
    def interval_ms(self) -> int:
        """The interval of the query's batches in ms."""
        if self.batch_interval_ms is not None:
            return self.batch_interval_ms
        return REPLICA_BATCH_INTERVAL_MS if self.replica else 0
