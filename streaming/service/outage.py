"""The time in which nothing was coordinated: from the last request that a batch has read to now."""

import time
from collections.abc import Mapping
from contextlib import closing

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError

from checkpoints.folder import Folder, KnownOutage
from records.layout import TopicLayout
from streaming.service.ticker import brokers_time_ms

_POLL_MS = 1_000
_READ_TIMEOUT_S = 30.0


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
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers, allow_auto_create_topics=False, metrics_enabled=False
    )
    with closing(consumer):
        first = consumer.beginning_offsets(list(wanted))
        wanted = {partition: offset for partition, offset in wanted.items() if first[partition] <= offset}
        consumer.assign(list(wanted))
        for partition, offset in wanted.items():
            consumer.seek(partition, offset)
        times_ms: dict[TopicPartition, int] = {}
        give_up_s = time.monotonic() + _READ_TIMEOUT_S
        while times_ms.keys() != wanted.keys():
            if time.monotonic() > give_up_s:
                raise KafkaTimeoutError(f"what the last batch read of {topic} could not be read again")
            for partition, records in consumer.poll(timeout_ms=_POLL_MS, max_records=len(wanted)).items():
                times_ms.setdefault(partition, records[0].timestamp)
                consumer.pause(partition)
    return max(times_ms.values(), default=0)
