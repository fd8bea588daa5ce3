"""The time in which nothing was coordinated: from the last request that a batch has read to now."""

from collections.abc import Mapping

from kafka import TopicPartition

from checkpoints.folder import Folder, KnownOutage
from records.layout import TopicLayout
from records.reader import TopicReader
from streaming.service.ticker import brokers_time_ms

_READ_TIMEOUT_MS = 30_000


def end_outage(bootstrap_servers: str, layout: TopicLayout, folder: Folder) -> list[KnownOutage]:
    """All outages of this folder's coordinator, with the one that ends now; a new folder has none.

    Raises KafkaError.
    """
    topic = layout.requests_topic
    ends = folder.planned_ends(folder.last_batch("offsets"), topic)
    if not ends:
        return []
    after_ms = _last_append_ms(bootstrap_servers, topic, ends)
    until_ms = brokers_time_ms(bootstrap_servers, topic, layout.request_partitions)
    return folder.outages(after_ms, until_ms)


def _last_append_ms(bootstrap_servers: str, topic: str, ends: Mapping[int, int]) -> int:
    """The latest append time before these offsets, 0 where retention has taken all of it."""
    wanted = {TopicPartition(topic, partition): end - 1 for partition, end in ends.items() if end > 0}
    with TopicReader(bootstrap_servers) as reader:
        first = reader.beginnings(wanted)
        wanted = {partition: offset for partition, offset in wanted.items() if first[partition] <= offset}
        reader.start(at=wanted)
        last = {partition: offset + 1 for partition, offset in wanted.items()}
        return max(
            (record.timestamp for record in reader.read_to(last, timeout_ms=_READ_TIMEOUT_MS)), default=0
        )
