"""Reads gateways' counts of a share group's deliveries from the telemetry topic."""

from kafka import TopicPartition

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.deliveries import decode_deliveries, is_of_deliveries
from kafka_why.contract.layout import TopicLayout
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import TopicReader
from kafka_why.why.deliveries.model import DeliveryReport
from kafka_why.why.deliveries.report import Sums

RECORDS_MAX = 100_000
"""The maximum number of records to read: the last ones of the group's partition, including other groups'."""
DEFAULT_MS = 24 * 3_600_000
"""The time to read if the caller sets no start."""


def read_deliveries(
    client_config: ClientConfig, layout: TopicLayout, group_id: str, since_ms: int | None, to_ms: int
) -> DeliveryReport | None:
    """Return the deliveries between two times, by default of the last day, or None if there are none. Raises
    KafkaError.
    """
    from_ms = to_ms - DEFAULT_MS if since_ms is None else since_ms
    partition = TopicPartition(layout.telemetry_topic, partition_of(group_id, layout.request_partitions))
    sums = Sums(group_id, from_ms, to_ms)
    with TopicReader(client_config) as reader:
        if partition not in reader.partitions_of(partition.topic):
            return None
        first = reader.offsets_at([partition], from_ms)[partition]
        if first is None:
            return None
        end = reader.ends([partition])[partition]
        begin = max(first, end - RECORDS_MAX)
        reader.start(at={partition: begin})
        for record in reader.read_to({partition: end}):
            if record.timestamp > to_ms:
                break
            if record.value is not None and is_of_deliveries(record.key, group_id):
                found = decode_deliveries(record.value)
                if found is not None:
                    sums.add(found, record.timestamp)
    return sums.report(is_cut=begin > first)
