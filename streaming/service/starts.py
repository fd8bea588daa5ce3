"""The start of a coordinator: the time of each stage, its announcement on the events topic, and its
configuration.
"""

import time
from collections.abc import Mapping, Sequence

import msgspec
import structlog

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Epoch, Identity
from checkpoints.upgrades import code_version
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import record_of
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import SettingValue
from kafka_why.metrics.batch_progress import BatchProgress
from state.config import CoordinatorConfig
from streaming.query.operator import ConfigEpoch
from streaming.service.outages.outage import Acted
from streaming.service.topics import as_topics_error

log = structlog.get_logger()


class StartTimes:
    """The stages of the start of one coordinator, each with the seconds until its end. Stages may overlap."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._is_done = False
        self.ends_s: dict[str, float] = {}

    def end_of(self, stage: str) -> None:
        """Record that the stage ends now. Nothing is recorded after the first batch."""
        if self._is_done:
            return
        self.ends_s[stage] = round(time.monotonic() - self._began_s, 2)

    def first_batch(self, batch: BatchProgress) -> None:
        """Record that a batch was committed. The first one ends the start, which is logged."""
        if self._is_done:
            return
        self.end_of("first_batch")
        self._is_done = True
        log.info("batches are being committed", **self.ends_s, first_batch_ms=batch.duration_ms)


def announce(client_config: ClientConfig, layout: TopicLayout, epoch: Epoch, owner_epoch: int | None) -> None:
    """Publish the claim and the configuration that is now in force on the events topic.

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
        producer = kafka_clients.producer(client_config)
        try:
            producer.send(topic, value=msgspec.json.encode(entry)).get(timeout=30)
        finally:
            producer.close(timeout=1)


def begin_epoch(
    checkpoint: Checkpoint,
    topic: str,
    settings: Mapping[str, SettingValue],
    skip: Sequence[str],
    acted: Acted,
) -> list[Epoch]:
    """Return all configurations, with a new one of this start. It is in force after the last time on which a
    coordinator acted.
    """
    skip = unhandled(checkpoint, topic, skip)
    return checkpoint.epochs(
        settings, skip, code_version(), after_ms=acted.until_ms, from_batch=acted.batch + 1
    )


def unhandled(checkpoint: Checkpoint, topic: str, skip: Sequence[str]) -> list[str]:
    """Return the records to skip, except those that a committed batch has handled. Its effects exist, so a
    replay of the log, which has no batches, must handle it, too.
    """
    if not skip:
        return []
    handled = checkpoint.planned_ends(checkpoint.last_batch("commits"), topic)
    known = {record for epoch in checkpoint.record().epochs for record in epoch.skip}
    unhandled = []
    for record in skip:
        _, partition, offset = record_of(record)
        if record in known or offset >= handled.get(partition, 0):
            unhandled.append(record)
        else:
            log.warning("a record to skip was handled before, and is not skipped", record=record)
    return unhandled


def config_epochs(epochs: Sequence[Epoch], identity: Identity) -> tuple[ConfigEpoch, ...]:
    """Return the configurations in the operator's form."""
    base = CoordinatorConfig(member_id_namespace=identity.member_id_namespace)
    return tuple(
        ConfigEpoch(e.from_batch, base.with_settings(e.settings), frozenset(e.skip), e.after_ms)
        for e in epochs
    )
