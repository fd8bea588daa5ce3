"""The announcement of a start: an entry on the events topic."""

import time

import msgspec
from kafka.errors import KafkaError

from checkpoints.metadata import Epoch
from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from streaming.service.topics import TopicsError


def announce(client_config: ClientConfig, layout: TopicLayout, epoch: Epoch, owner_epoch: int | None) -> None:
    """Publish the claim and the configuration, from now on in force, on the events topic.

    Raises TopicsError.
    """
    entry = {
        "version": 1,
        "type": "CoordinatorStarted",
        "at_ms": int(time.time() * 1000),
        "from_batch": epoch.from_batch,
        "settings": epoch.settings,
        "skip": epoch.skip,
        "code_version": epoch.code_version,
        "owner_epoch": owner_epoch,
    }
    topic = layout.events_topic
    try:
        producer = kafka_clients.producer(client_config)
        try:
            producer.send(topic, value=msgspec.json.encode(entry)).get(timeout=30)
        finally:
            producer.close(timeout=1)
    except KafkaError as error:
        raise TopicsError(f"the start could not be announced on {topic}: {error}") from error
