"""Records and an ordinary consumer, through a gateway on this machine."""

from contextlib import closing, suppress

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CoordinatorLoadInProgressError
from kafka.structs import OffsetAndMetadata

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from tests.e2e.harness import create_topic, wait_until


def produce(port: int, topic: str, records: int) -> None:
    """Create a topic of two partitions with these records."""
    config = ClientConfig(f"127.0.0.1:{port}")
    create_topic(config, topic, 2, {})
    with closing(kafka_clients.producer(config)) as producer:
        for number in range(records):
            producer.send(topic, str(number).encode(), partition=number % 2).get(timeout=60)


def commit_everything(port: int, topic: str, group_id: str, records: int) -> int:
    """Consume this many records as a member of the group, and commit. Return the sum of committed offsets."""
    found: list[object] = []
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=f"127.0.0.1:{port}",
        group_id=group_id,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    with closing(consumer):

        def consumed() -> bool:
            for batch in consumer.poll(500).values():
                found.extend(batch)
            return len(found) >= records

        wait_until(consumed, f"{records} records")
        consumer.commit()
    return committed(port, topic, group_id)


def committed(port: int, topic: str, group_id: str) -> int:
    """Return the sum of a group's committed offsets.

    Unlike consumers and Kafka's own admin client, kafka-python's gives up after a retriable error.
    """
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    with closing(kafka_clients.admin(ClientConfig(f"127.0.0.1:{port}"))) as admin:

        def fetched() -> bool:
            with suppress(CoordinatorLoadInProgressError):
                offsets.update(admin.list_group_offsets(group_id)[group_id])
                return True
            return False

        wait_until(fetched, "the committed offsets")
    return sum(offset.offset for partition, offset in offsets.items() if partition.topic == topic)
