"""The work of a coordinator after a batch, as one planned batch with the same outcome. The outcome is a
function of the log, the configurations and the outages, not of the division into batches
(docs/decisions/0001-time.md). So later batches can run again as one, with the ends and the watermark of the
last batch. All of their configurations and outages apply from that one batch on. This changes nothing: the
batches before a configuration or an outage read no record of its time, and handled no record that the
configuration skips.
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
from kafka_why.topic_reader import Record, TopicReader
from streaming.service.outages.outage import last_append_ms

# A coordinator's position in the requests topic, found from its output topics.
#
# A batch whose plan is lost must run again with every request that it answered. Otherwise such a request
# would count as sent in the outage that follows, and get another answer. Early answers belong to no batch.


# A margin for the differences of brokers' clocks, which stamp the records.
_CLOCKS_MS = 60_000
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

    A request was answered if an output names it, or if it was appended up to the watermark: a batch reads
    such requests before it fires deadlines up to the watermark.
    """
    since_ms = last_append_ms(client_config, layout.requests_topic, ends) - _CLOCKS_MS
    with TopicReader(client_config, timeout_ms=_TIMEOUT_MS) as reader:
        partitions = [TopicPartition(layout.requests_topic, partition) for partition in ends]
        log_ends = reader.ends(partitions)
        after = reader.offsets_at(partitions, watermark_ms + 1)
        found = dict(ends)
        for p in partitions:
            first = after.get(p)
            found[p.partition] = max(found[p.partition], log_ends[p] if first is None else first)
        outputs = _outputs(reader, layout, since_ms)
        for partition, offset in answered_requests(outputs, layout.requests_topic):
            found[partition] = max(found.get(partition, 0), offset + 1)
    return found


def answered_requests(outputs: Iterable[bytes], requests_topic: str) -> Iterator[tuple[int, int]]:
    """Yield the partition and the offset of each request that these records of output topics name."""
    request_id = re.compile(rf"{re.escape(requests_topic)}-(\d+)-(\d+)(?:#\d+)?")
    for value in outputs:
        try:
            output = msgspec.json.decode(value, type=_Output)
        except UNREADABLE:
            continue
        for name in (output.request, output.cause):
            if it := request_id.fullmatch(name):
                yield int(it[1]), int(it[2])


def _outputs(reader: TopicReader, layout: TopicLayout, since_ms: int) -> Iterator[bytes]:
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


def no_cluster() -> AbstractContextManager[ClientConfig | None]:
    """Return a context with None, for a cluster that is not known."""
    return nullcontext()


class NotContinued(RuntimeError):
    """The later batches cannot become one batch. The message says what to do."""


@dataclass(frozen=True)
class Continuation:
    """The work after the committed batch `batch`, with the checkpoint's batch numbers.

    `planned` is batch `batch` + 1, which replaces all later batches up to `last`, the last one planned. It is
    None if there are none. `record` has the configurations and outages, renumbered for that replacement.
    """

    batch: int
    last: int
    planned: PlannedBatch | None
    record: OwnerRecord


def continuation(
    checkpoint: Checkpoint, batch: int, committed: PlannedBatch, cluster: Cluster = no_cluster
) -> Continuation:
    """Return the work after a committed batch, which has read `committed`. The coordinator must not run.

    The cluster is queried only if the last plan is damaged. Raises NotContinued, FolderError, KafkaError.
    """
    topic = checkpoint.identity().requests_topic
    record, last = checkpoint.record(), checkpoint.last_batch("offsets")
    check_versions(record.epochs, batch, last)
    known = next(
        (plan for n in range(last, batch, -1) if (plan := intact_plan(checkpoint, n, topic)) is not None),
        KnownPlan(batch, committed),
    )
    if any(end < committed.ends.get(partition, 0) for partition, end in known.planned.ends.items()):
        raise NotContinued(f"{checkpoint} has planned less than batch {batch} had read. It is another state")
    planned = known.planned if known.batch > batch else None
    if known.batch < last:
        with cluster() as client_config:
            planned = _replacement_plan(checkpoint, known, last, topic, client_config)
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
    """Raise NotContinued if batches after `batch` up to `last` ran under code with other rules."""
    begun = [e for e in epochs if e.from_batch <= batch + 1][-1:] if last > batch else []
    begun += [e for e in epochs if batch + 1 < e.from_batch <= last]
    for epoch in begun:
        if epoch.code_version not in SAME_RULES:
            raise NotContinued(
                f"version {epoch.code_version} ran batches after batch {batch}. This version decides "
                "requests by other rules, so their answers could differ. Use that version for this command"
            )


def renumbered_epochs(epochs: Iterable[Epoch], batch: int, last: int) -> list[Epoch]:
    """Return the configurations, renumbered because batch `batch` + 1 replaces all batches up to `last`.

    A configuration that began after `last` applies from the first batch after the replacement.
    """
    first = batch + 1
    unplanned = first + (last > batch)
    return [
        replace(e, from_batch=unplanned if e.from_batch > last else min(e.from_batch, first)) for e in epochs
    ]


def renumbered_outages(outages: Iterable[KnownOutage], batch: int, last: int) -> list[KnownOutage]:
    """Return the outages, renumbered as in `renumbered_epochs`. An outage that began after `last` is omitted,
    because the next start records it again.
    """
    return [replace(o, from_batch=min(o.from_batch, batch + 1)) for o in outages if o.from_batch <= last]


class KnownPlan(NamedTuple):
    """A batch and its plan: the offsets that it reads."""

    batch: int
    planned: PlannedBatch


def intact_plan(checkpoint: Checkpoint, batch: int, topic: str) -> KnownPlan | None:
    """Return a batch with its plan, or None if the plan is damaged or removed."""
    if checkpoint.files.local and not is_intact(checkpoint.files.local / SPARK / "offsets" / str(batch)):
        return None
    try:
        return KnownPlan(batch, read_planned(checkpoint.files, batch, topic))
    except (SparkLogDamaged, FileNotFoundError):
        return None


def _replacement_plan(
    checkpoint: Checkpoint, known: KnownPlan, last: int, topic: str, client_config: ClientConfig | None
) -> PlannedBatch:
    """Return a replacement for damaged plans, which reads at least the requests that were answered."""
    if client_config is None:
        raise NotContinued(
            f"the plan of batch {last}, {checkpoint.spark_uri}/offsets/{last}, is damaged. The topics show "
            "which requests that batch answered: give the cluster (--bootstrap-servers)"
        )
    watermark_ms = known.planned.watermark_ms
    try:
        watermark_ms = max(watermark_ms, read_next_watermark_ms(checkpoint.files, known.batch))
    except (SparkLogDamaged, FileNotFoundError):
        log.debug("the watermark after the batch is not known", batch=known.batch)
    layout = TopicLayout.named(topic.removesuffix(_REQUESTS))
    ends = ends_of_answered_requests(client_config, layout, known.planned.ends, watermark_ms)
    return PlannedBatch(ends, watermark_ms, known.planned.timestamp_ms)
