"""The horizon: the greatest time that a replica has acted on, by the early answers that count.

Clients may have such an answer. So no outage begins before the horizon, and requests up to it are handled at
their own times, under the configuration of then.
"""

from collections.abc import Mapping

from kafka import TopicPartition

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.early_answers import EarlyAnswers, ReplicaId, as_of, marker_headers
from kafka_why.contract.layout import TopicLayout
from kafka_why.topic_reader import TopicReader

# The key of a marker, because kafka-python sends no record without key and value.
MARKER_KEY = b"marker"
# Brokers stamp the records of the topics by their own clocks.
_CLOCKS_MS = 60_000
_TIMEOUT_S = 30.0


def end_replicas(client_config: ClientConfig, layout: TopicLayout, first: ReplicaId, since_ms: int) -> int:
    """Let early answers of replicas before `first` count for nobody from now on. Returns the horizon of those
    before now in ms, 0 if there is none.

    `since_ms` is the last append time that a planned batch has read. Earlier answers are the query's, too.
    Raises KafkaError.
    """
    markers = _mark(client_config, layout, first)
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        found = reader.offsets_at(markers, since_ms - _CLOCKS_MS)
        begin = {place: offset for place, end in markers.items() if (offset := found[place]) is not None}
        reader.start(at=begin)
        counting = EarlyAnswers()
        horizon_ms = 0
        ends = {place: markers[place] for place in begin}
        for record in reader.read_to(ends, timeout_ms=round(_TIMEOUT_S * 1000)):
            if counting.counts(record.partition, record.headers) and (early := as_of(record.headers)):
                horizon_ms = max(horizon_ms, early.as_of_ms)
    return horizon_ms


def _mark(client_config: ClientConfig, layout: TopicLayout, first: ReplicaId) -> Mapping[TopicPartition, int]:
    """Append a marker to each partition of the responses topic. Returns their offsets."""
    producer = kafka_clients.producer(client_config)
    try:
        sent = [
            producer.send(
                layout.responses_topic, key=MARKER_KEY, headers=marker_headers(first), partition=partition
            )
            for partition in range(layout.reply_partitions)
        ]
        appended = [future.get(timeout=_TIMEOUT_S) for future in sent]
    finally:
        producer.close(timeout=1)
    return {TopicPartition(record.topic, record.partition): record.offset for record in appended}
