"""One recorded log with its clock records, cut into batches in every way that Kafka could cut it."""

from collections.abc import Sequence
from itertools import groupby
from random import Random

import msgspec

from kafka_why.contract.codec import (
    clock_record,
    encode,
    is_packed,
    offset_key,
    pack,
    pack_key,
    record_of,
    slot_of,
    transaction_key,
)
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup
from state.timeline import Row, Timeline
from tests.harness import random_log
from tests.spark.log import LAYOUT, Record

# Groups that Kafka's partitioner puts into the random log's partitions. The two of a partition share a slot.
NAMES = dict(zip(random_log.GROUPS, ("a", "d", "b236"), strict=True))
# Clock records never reach the operator, so their offsets do not matter.
CLOCK_OFFSETS = 1_000_000
TICK_MS = 7_000
CLOCK_SKEW_MS = 50


def record(seed: int, length: int, config: CoordinatorConfig, *, packs: bool = True) -> list[Row]:
    """Return a random log of three groups in two partitions. With `packs` some records are packs."""
    rows = random_log.realise(random_log.script(seed, length), config, packs=packs)
    return [
        Row(
            row.at_ms,
            row.request_id,
            msgspec.structs.replace(row.request, group_id=NAMES[row.request.group_id]),
        )
        for row in rows
    ]


def with_clock(rows: Sequence[Row], seed: int) -> tuple[list[list[Record]], int]:
    """Return the log by partition with a ticker's clock records, and the last attested time.

    Each round is appended to all partitions at about the same time. The next round attests what that proves:
    the earliest of the round's append times, less 1 ms.
    """
    random = Random(seed)
    partitions = [records_of(rows, p) for p in range(LAYOUT.request_partitions)]
    end_ms = rows[-1].at_ms + 400_000
    attested_ms, at_ms, tick = 0, rows[0].at_ms, 0
    while at_ms < end_ms:
        at_ms += random.randrange(1, 2 * TICK_MS)
        if random.random() < 0.2:
            at_ms += 10 * TICK_MS  # the ticker is down for a while
        appended = [at_ms + random.randrange(CLOCK_SKEW_MS) for _ in partitions]
        for p, (records, append_ms) in enumerate(zip(partitions, appended, strict=True)):
            records.append(Record(p, CLOCK_OFFSETS + tick, append_ms, None, clock_record(attested_ms)))
        attested_ms = max(attested_ms, min(appended) - 1)
        tick += 1
    final = [Record(p, CLOCK_OFFSETS + tick, end_ms * 2, None, clock_record(attested_ms)) for p in (0, 1)]
    for records, last in zip(partitions, final, strict=True):
        records.sort(key=lambda r: (r.at_ms, r.offset))
        records.append(last)
    return partitions, attested_ms


def cut(partitions: Sequence[Sequence[Record]], batches: int, seed: int) -> list[list[Record]]:
    """Cut a log into batches, independently for each partition, with one restriction: a batch has everything
    that the clock records of earlier batches attest. One more, empty batch acts on the last clock records.
    """
    random = Random(seed)
    at = [0 for _ in partitions]
    attested_ms = 0
    content: list[list[Record]] = []
    for n in range(batches):
        batch: list[Record] = []
        for p, records in enumerate(partitions):
            owed = next(
                (i for i in range(at[p], len(records)) if records[i].at_ms > attested_ms), len(records)
            )
            share = 1.0 if n == batches - 1 else random.choice((0.0, 0.1, 0.3)) * random.random()
            end = max(owed, at[p] + round((len(records) - at[p]) * share))
            batch += records[at[p] : end]
            at[p] = end
        attested_ms = max([attested_ms, *(claim_of(record) for record in batch)])
        content.append(batch)
    return [*content, []]


def expected(
    rows: Sequence[Row], until_ms: int, config: CoordinatorConfig
) -> dict[str, dict[str, list[bytes]]]:
    """Return the core's output for the whole log in one piece: the records in order, by topic and group."""
    said: dict[str, dict[str, list[bytes]]] = {LAYOUT.responses_topic: {}, LAYOUT.events_topic: {}}
    for group_id in dict.fromkeys(row.request.group_id for row in rows):
        timeline = Timeline(group_id, None, config)
        for row in rows:
            if row.request.group_id == group_id:
                timeline.apply(row)
        timeline.fire_until(until_ms)
        steps = timeline.drain_effects()
        said[LAYOUT.responses_topic][group_id] = [encode(r.response) for step in steps for r in step.replies]
        said[LAYOUT.events_topic][group_id] = [encode(event) for step in steps for event in step.history]
    return said


def expected_compacted(
    rows: Sequence[Row], until_ms: int, config: CoordinatorConfig
) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """Return the offsets committed at the end, by their key on the offsets topic, and the number of
    partitions of each entry that is pending at the end, by its key on the transactions topic.
    """
    offsets, transactions = {}, {}
    for group_id in dict.fromkeys(row.request.group_id for row in rows):
        timeline = Timeline(group_id, None, config)
        for row in rows:
            if row.request.group_id == group_id:
                timeline.apply(row)
        timeline.fire_until(until_ms)
        if isinstance(timeline.group, ClassicGroup):
            for topic, partitions in timeline.group.offsets.items():
                for partition, offset in partitions.items():
                    offsets[offset_key(group_id, topic, partition)] = offset.offset
            for entry in timeline.group.pending:
                key = transaction_key(group_id, entry.producer_id, entry.request)
                transactions[key] = sum(map(len, entry.offsets.values()))
    return offsets, transactions


def records_of(rows: Sequence[Row], partition: int) -> list[Record]:
    """Return the records of a partition, packs and single requests."""
    records = []
    here = [row for row in rows if record_of(row.request_id)[1] == partition]
    for (_, _, offset), together in groupby(here, lambda row: record_of(row.request_id)):
        sent = list(together)
        (at_ms,) = {row.at_ms for row in sent}
        key, value = sent[0].request.group_id.encode(), encode(sent[0].request)
        if is_packed(sent[0].request_id):
            (slot,) = {slot_of(row.request.group_id) for row in sent}
            key, value = pack_key(slot), pack(encode(row.request) for row in sent)
        records.append(Record(partition, offset, at_ms, key, value))
    return records


def claim_of(record: Record) -> int:
    if record.key is not None or record.value is None:
        return 0
    return int(msgspec.json.decode(record.value)["time_ms"])
