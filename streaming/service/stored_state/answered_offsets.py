"""How far a coordinator has read the requests topic, by what it wrote to its output topics.

A batch whose plan is lost must run again with every request that it answered: otherwise that request would be
handled as one of the outage that follows, and get another answer. Early answers are of no batch.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from kafka import TopicPartition
from msgspec import Struct

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE
from kafka_why.contract.early_answers import is_by_query
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.pack import unpack
from kafka_why.topic_reader import Record, TopicReader
from streaming.service.outages.outage import last_append_ms

# Brokers stamp the records of the topics by their own clocks.
_CLOCKS_MS = 60_000
_TIMEOUT_MS = 60_000


class _Output(Struct):
    """A response, a history entry or a dead letter, as far as it names its request."""

    request: str = ""
    cause: str = ""


def ends_of_answered(
    client_config: ClientConfig, layout: TopicLayout, ends: Mapping[int, int], watermark_ms: int
) -> dict[int, int]:
    """The offsets, by partition, after the last request that has an output, not before `ends`.

    Requests up to the watermark are included, because a batch must have read them before it fires deadlines
    up to the watermark. Raises KafkaError.
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
    """The partition and the offset of each request that these records of output topics name."""
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
        if record.value is not None and is_by_query(record.headers):
            yield from unpack(record.value)
