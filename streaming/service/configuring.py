"""What a start adds to the configurations: its own, and records to skip."""

from collections.abc import Mapping, Sequence

import structlog

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Epoch, Identity
from checkpoints.upgrades import code_version
from kafka_why.contract.codec import record_of
from kafka_why.contract.settings import SettingValue
from state.config import CoordinatorConfig
from streaming.query.operator import ConfigEpoch
from streaming.service.outages.outage import Acted

log = structlog.get_logger()


def begin_epoch(
    checkpoint: Checkpoint,
    topic: str,
    settings: Mapping[str, SettingValue],
    skip: Sequence[str],
    acted: Acted,
) -> list[Epoch]:
    """Return all configurations with that of this start, which is in force after the time until which
    coordinators have acted.
    """
    skip = unhandled(checkpoint, topic, skip)
    return checkpoint.epochs(
        settings, skip, code_version(), after_ms=acted.until_ms, from_batch=acted.batch + 1
    )


def unhandled(checkpoint: Checkpoint, topic: str, skip: Sequence[str]) -> list[str]:
    """The records to skip without those that a committed batch has handled. What such a record has done is
    done: a replay of the log, which has no batches, must handle it, too.
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
    """The configurations as the operator takes them."""
    base = CoordinatorConfig(member_id_namespace=identity.member_id_namespace)
    return tuple(
        ConfigEpoch(e.from_batch, base.with_settings(e.settings), frozenset(e.skip), e.after_ms)
        for e in epochs
    )
