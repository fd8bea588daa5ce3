"""The start of a coordinator: its options, the time of each stage, its announcement on the events topic, its
configuration, and the pauses before restarts.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import msgspec
import structlog

from checkpoints.checkpoint import Checkpoint, code_version
from checkpoints.metadata import Epoch, Identity
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import record_of
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import SettingValue
from kafka_why.metrics.batch_progress import BatchProgress
from state.config import CoordinatorConfig
from streaming.query.operator import ConfigEpoch
from streaming.query.pipeline import BatchStart
from streaming.query.session import LOOPBACK
from streaming.service.clock.pace import BATCH_DELAY_MS, BATCH_RECORDS, REST_INTERVAL_MS
from streaming.service.clock.ticker import DEFAULT_INTERVAL_MS
from streaming.service.outages.outage import FIRST_REQUEST_WAIT_S, ActedUntil
from streaming.service.request_appender import append_records
from streaming.service.topic_watch.watcher import DEFAULT_INTERVAL_MS as DEFAULT_TOPIC_INTERVAL_MS
from streaming.service.topics import as_topics_error

log = structlog.get_logger()


class StartTimes:
    """The stages of the start of one coordinator, each with the seconds until its end. Stages may overlap."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._has_first_batch = False
        self.ends_s: dict[str, float] = {}  # by stage

    def end_of(self, stage: str) -> None:
        """Record that the stage ends now. Nothing is recorded after the first batch."""
        if self._has_first_batch:
            return
        self.ends_s[stage] = round(time.monotonic() - self._began_s, 2)

    def batch_committed(self, batch: BatchProgress) -> None:
        """Record that a batch was committed. The first one ends the start, which is logged."""
        if self._has_first_batch:
            return
        self.end_of("first_batch")
        self._has_first_batch = True
        log.info("batches are being committed", **self.ends_s, first_batch_ms=batch.duration_ms)


def announce(client_config: ClientConfig, layout: TopicLayout, epoch: Epoch, owner_epoch: int | None) -> None:
    """Publish on the events topic the owner's epoch and the configuration that is now in force.

    Raises TopicsError.
    """
    entry = {
        "version": 1,
        "type": "CoordinatorStarted",
        "at_ms": int(time.time() * 1000),
        "from_batch": epoch.from_batch,
        "settings": epoch.settings,
        "skip": epoch.skip,
        "code_version": epoch.code_version,
        "owner_epoch": owner_epoch,
    }
    topic = layout.events_topic
    with as_topics_error(f"the start could not be announced on {topic}"):
        append_records(client_config, topic, [{"value": msgspec.json.encode(entry)}])


def begin_epoch(
    checkpoint: Checkpoint,
    topic: str,
    settings: Mapping[str, SettingValue],
    skip: Sequence[str],
    acted: ActedUntil,
) -> list[Epoch]:
    """Store the configuration of this start in the checkpoint, and return all configurations.

    The new one is in force after the latest time up to which a coordinator has acted (`acted`). `skip` are
    ids of records of `topic`.
    """
    skip = unhandled_records(checkpoint, topic, skip)
    return checkpoint.store_epoch(
        settings, skip, code_version(), after_ms=acted.until_ms, from_batch=acted.batch + 1
    )


def unhandled_records(checkpoint: Checkpoint, topic: str, skip: Sequence[str]) -> list[str]:
    """Return the ids of the records to skip, except those that a committed batch has handled.

    A handled record has had effects, so a replay of the log, which has no batches, must handle it, too. A
    record that was already skipped has had none.
    """
    if not skip:
        return []
    handled_ends = checkpoint.planned_ends(checkpoint.last_batch("commits"), topic)
    already_skipped = {record_id for epoch in checkpoint.record().epochs for record_id in epoch.skip}
    unhandled = []
    for record_id in skip:
        _, partition, offset = record_of(record_id)
        if record_id in already_skipped or offset >= handled_ends.get(partition, 0):
            unhandled.append(record_id)
        else:
            log.warning("a record to skip was handled before, and is not skipped", record=record_id)
    return unhandled


def config_epochs(epochs: Sequence[Epoch], identity: Identity) -> tuple[ConfigEpoch, ...]:
    """Return the configurations in the operator's form."""
    base = CoordinatorConfig(member_id_namespace=identity.member_id_namespace)
    return tuple(
        ConfigEpoch(e.from_batch, base.with_settings(e.settings), frozenset(e.skip), e.after_ms)
        for e in epochs
    )


REPLICA_BATCH_INTERVAL_MS = 1_000
"""The interval of batches with a replica. Only views wait for a batch then, and larger batches cost less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    """The options of a coordinator without its cluster, folder and topics.

    With `replica` a second process answers before the query (`streaming.replica`). With `take_over_topics`
    the coordinator may claim topics of another folder (`streaming.service.ownership`). With `standby` it
    waits until the topics are free. `master` and `driver_host` are as in `Session`, and `spark` are further
    settings of Spark.
    """

    settings: Mapping[str, str] = field(default_factory=dict)  # by Kafka's dotted names
    checkpoint: str | None = None  # a path or URI; None: it is in the folder
    skip: tuple[str, ...] = ()  # ids of records to refuse without decoding them
    ui_host: str = LOOPBACK
    ui_port: int | None = 0  # 0: a free port; None: no UI
    tick_interval_ms: int = DEFAULT_INTERVAL_MS  # between rounds of clock records while a deadline may come
    clock_lag_ms: int = 0  # the maximum difference between the brokers' clocks
    topic_interval_ms: int = DEFAULT_TOPIC_INTERVAL_MS  # between polls of the topic watcher
    replica: bool = True
    # None: REPLICA_BATCH_INTERVAL_MS with a replica, and no pause without one.
    batch_interval_ms: int | None = None
    # Of new topics. None: the default of `streaming.service.topics.Replication`.
    replication_factor: int | None = None
    min_insync_replicas: int | None = None
    # The number of shards of a partition (`streaming.query.admission`). None: the checkpoint's number, or the
    # default for a new checkpoint. The same holds for `state_partitions`.
    shards: int | None = None
    take_over_topics: bool = False
    standby: bool = False
    master: str | None = None
    driver_host: str | None = None
    state_partitions: int | None = None  # the partitions in which Spark keeps the state
    spark: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Options(CoordinatorSettings):
    """The options of a coordinator."""

    client_config: ClientConfig
    folder: Path
    layout: TopicLayout = field(default_factory=TopicLayout.named)
    rest_interval_ms: int = REST_INTERVAL_MS  # of clock records while no group has a member (`MembersPace`)
    # If gateways are separate processes, an outage ends at the first request, at the latest this long after
    # the start of the query.
    first_request_wait_s: float = FIRST_REQUEST_WAIT_S

    @property
    def batch_start(self) -> BatchStart:
        """The conditions for the start of a batch. Without a replica, clients wait for batches, so no batch
        waits for more records.
        """
        if not self.replica:
            return BatchStart(self.batch_interval_ms or 0)
        records = self.batch_records * self.layout.request_partitions
        return BatchStart(self._replica_interval_ms, records, BATCH_DELAY_MS)

    @property
    def batch_records(self) -> int:
        """The number of new records per partition that starts a batch while a replica answers."""
        return min(max(1, ceil(BATCH_RECORDS * self._replica_interval_ms / 1000)), BATCH_RECORDS)

    @property
    def _replica_interval_ms(self) -> int:
        interval_ms = self.batch_interval_ms
        return REPLICA_BATCH_INTERVAL_MS if interval_ms is None else interval_ms


FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
# More doublings exceed the longest pause anyway, and 1,024 of them would exceed a float.
_DOUBLINGS_MAX = 10


def backoff_s(restarts: int, first_s: float = FIRST_PAUSE_S) -> float:
    """Return the pause in seconds before the next start.

    It is 0 if `restarts` is 0, `first_s` if it is 1, then twice the last pause, at most `LONGEST_PAUSE_S`.
    """
    if not restarts:
        return 0.0
    return min(first_s * 2.0 ** min(restarts - 1, _DOUBLINGS_MAX), LONGEST_PAUSE_S)
