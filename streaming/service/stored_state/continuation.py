"""The work that a coordinator planned after a batch, merged into one batch with the same outcome.

The outcome depends on the log, the configurations and the outages, but not on the division of the log into
batches (docs/decisions/0001-time.md). So one batch that ends where the last one ended, with its watermark,
can replace all of them. Their configurations and outages then apply from that one batch on. This changes no
outcome, because a configuration or outage affects only records that none of the batches before its first
batch has read.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec
import structlog
from kafka import TopicPartition
from msgspec import Struct
from msgspec.structs import replace

from checkpoints.checkpoint import SAME_RULES, Checkpoint
from checkpoints.metadata import CommittedBatch, Epoch, KnownOutage, OwnerRecord
from checkpoints.spark_logs import SPARK, PlannedBatch, SparkLogDamaged, read_next_watermark_ms, read_planned
from checkpoints.state_stores import is_intact
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE, unpack
from kafka_why.contract.early_answers import is_from_query
from kafka_why.contract.layout import TopicLayout
from kafka_why.errors import UserFacingError
from kafka_why.topic_reader import Record, TopicReader
from streaming.service.outages.outage import last_append_ms

# A margin for the differences of brokers' clocks, which stamp the records.
_CLOCKS_MARGIN_MS = 60_000
_TIMEOUT_MS = 60_000


class _Output(Struct):
    """The fields of a response, a history entry or a dead letter that name its request."""

    request: str = ""
    cause: str = ""


def ends_of_answered_requests(
    client_config: ClientConfig, layout: TopicLayout, ends: Mapping[int, int], watermark_ms: int
) -> dict[int, int]:
    """Return for each partition the offset after its last answered request, at least that in `ends`. Raises
    KafkaError.

    A request may have been answered if an output names it, or if it was appended up to the watermark: a batch
    reads such requests before it fires deadlines up to the watermark. A batch whose plan is lost must run
    again with all of them. Otherwise they would count as sent in the next outage, and get other answers.
    """
    since_ms = last_append_ms(client_config, layout.requests_topic, ends) - _CLOCKS_MARGIN_MS
    with TopicReader(client_config, timeout_ms=_TIMEOUT_MS) as reader:
        partitions = [TopicPartition(layout.requests_topic, partition) for partition in ends]
        log_ends = reader.ends(partitions)
        first_after_watermark = reader.offsets_at(partitions, watermark_ms + 1)
        answered_ends = dict(ends)
        for p in partitions:
            end = first_after_watermark.get(p)
            if end is None:  # all records were appended up to the watermark
                end = log_ends[p]
            answered_ends[p.partition] = max(answered_ends[p.partition], end)
        outputs = _outputs(reader, layout, since_ms)
        for partition, offset in answered_requests(outputs, layout.requests_topic):
            answered_ends[partition] = max(answered_ends.get(partition, 0), offset + 1)
    return answered_ends


def answered_requests(outputs: Iterable[bytes], requests_topic: str) -> Iterator[tuple[int, int]]:
    """Yield the partition and the offset of each request that these records of output topics name."""
    # The groups are the partition and the offset (`kafka_why.contract.codec.request_id`).
    request_id = re.compile(rf"{re.escape(requests_topic)}-(\d+)-(\d+)(?:#\d+)?")
    for value in outputs:
        try:
            output = msgspec.json.decode(value, type=_Output)
        except UNREADABLE:
            continue
        for name in (output.request, output.cause):
            if matched := request_id.fullmatch(name):
                yield int(matched[1]), int(matched[2])


def _outputs(reader: TopicReader, layout: TopicLayout, since_ms: int) -> Iterator[bytes]:
    """Yield the query's records of the output topics since this time, without those of replicas."""
    partitions = reader.partitions_of(layout.responses_topic, layout.events_topic, layout.dead_letters_topic)
    ends = reader.ends(partitions)
    begin = {p: ends[p] if at is None else at for p, at in reader.offsets_at(partitions, since_ms).items()}
    reader.start(at=begin)
    records: Iterable[Record] = reader.read_to(ends, timeout_ms=_TIMEOUT_MS)
    for record in records:
        if record.value is not None and is_from_query(record.headers):
            yield from unpack(record.value)


log = structlog.get_logger()
_REQUESTS = "-requests"


# A function that opens a context with the address of the coordinator's cluster, or None if it is unreachable.
Cluster: TypeAlias = Callable[[], AbstractContextManager[ClientConfig | None]]


@dataclass(frozen=True)
class Continuation:
    """The work after a committed batch, with the checkpoint's batch numbers."""

    batch: int  # the committed batch
    last: int  # the last planned batch
    # Batch `batch` + 1, which replaces all later batches up to `last`, or None if no later batch was planned.
    planned: PlannedBatch | None
    record: OwnerRecord  # the configurations and outages, renumbered for that replacement


def plan_continuation(
    checkpoint: Checkpoint, batch: int, committed: PlannedBatch, cluster: Cluster = nullcontext
) -> Continuation:
    """Return the work after the committed batch `batch`, whose plan is `committed`. The coordinator must not
    run.

    The cluster is queried only if the last plan is damaged. Raises UserFacingError, FolderError, KafkaError.
    """
    topic = checkpoint.identity().requests_topic
    record, last = checkpoint.record(), checkpoint.last_batch("offsets")
    check_versions(record.epochs, batch, last)
    plans = (intact_plan(checkpoint, number, topic) for number in range(last, batch, -1))
    newest = next(filter(None, plans), BatchPlan(batch, committed))
    if any(end < committed.ends.get(partition, 0) for partition, end in newest.planned.ends.items()):
        raise UserFacingError(
            f"{checkpoint} has planned less than batch {batch} had read. It is another state"
        )
    planned = newest.planned if newest.batch > batch else None
    if newest.batch < last:
        with cluster() as client_config:
            planned = _replacement_plan(checkpoint, newest, last, topic, client_config)
    return Continuation(
        batch,
        last,
        planned,
        OwnerRecord(
            renumbered_epochs(record.epochs, batch, last),
            renumbered_outages(record.outages, batch, last),
            CommittedBatch(batch, committed.ends),
        ),
    )


def check_versions(epochs: Sequence[Epoch], batch: int, last: int) -> None:
    """Raise UserFacingError if batches after `batch` up to `last` ran under code with other rules."""
    # The first of these batches used the last configuration that had begun.
    used_epochs = [e for e in epochs if e.from_batch <= batch + 1][-1:]
    used_epochs += [e for e in epochs if batch + 1 < e.from_batch <= last]
    for epoch in used_epochs:
        if last > batch and epoch.code_version not in SAME_RULES:
            raise UserFacingError(
                f"version {epoch.code_version} ran batches after batch {batch}. This version decides "
                "requests by other rules, so their answers could differ. Use that version for this command"
            )


def renumbered_epochs(epochs: Iterable[Epoch], batch: int, last: int) -> list[Epoch]:
    """Return the configurations, renumbered because batch `batch` + 1 replaces all batches up to `last`.

    A configuration that began after `last` applies from the first batch after the replacement.
    """
    has_replacement = last > batch
    next_batch = batch + 2 if has_replacement else batch + 1
    return [
        replace(e, from_batch=next_batch if e.from_batch > last else min(e.from_batch, batch + 1))
        for e in epochs
    ]


def renumbered_outages(outages: Iterable[KnownOutage], batch: int, last: int) -> list[KnownOutage]:
    """Return the outages, renumbered as in `renumbered_epochs`. An outage that began after `last` is omitted,
    because the next start records it again.
    """
    return [replace(o, from_batch=min(o.from_batch, batch + 1)) for o in outages if o.from_batch <= last]


class BatchPlan(NamedTuple):
    """The number of a batch, and its plan."""

    batch: int
    planned: PlannedBatch


def intact_plan(checkpoint: Checkpoint, batch: int, topic: str) -> BatchPlan | None:
    """Return a batch with its plan, or None if the plan is damaged or removed."""
    if checkpoint.files.local_path and not is_intact(
        checkpoint.files.local_path / SPARK / "offsets" / str(batch)
    ):
        return None
    try:
        return BatchPlan(batch, read_planned(checkpoint.files, batch, topic))
    except (SparkLogDamaged, FileNotFoundError):
        return None


def _replacement_plan(
    checkpoint: Checkpoint, intact: BatchPlan, last: int, topic: str, client_config: ClientConfig | None
) -> PlannedBatch:
    """Return a plan that replaces the damaged ones after `intact`. It reads at least the requests that were
    answered.
    """
    if client_config is None:
        raise UserFacingError(
            f"the plan of batch {last}, {checkpoint.spark_uri}/offsets/{last}, is damaged. The topics show "
            "which requests that batch answered: give the cluster (--bootstrap-servers)"
        )
    watermark_ms = intact.planned.watermark_ms
    try:
        watermark_ms = max(watermark_ms, read_next_watermark_ms(checkpoint.files, intact.batch))
    except (SparkLogDamaged, FileNotFoundError):
        log.debug("the watermark after the batch is not known", batch=intact.batch)
    layout = TopicLayout.named(topic.removesuffix(_REQUESTS))
    ends = ends_of_answered_requests(client_config, layout, intact.planned.ends, watermark_ms)
    return PlannedBatch(ends, watermark_ms, intact.planned.timestamp_ms)
