"""The type of a Kafka group of either protocol."""

from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup

KafkaGroup = ClassicGroup | ConsumerGroup
