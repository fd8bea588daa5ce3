"""The type of a Kafka group of any protocol."""

from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.share_group import ShareGroup

KafkaGroup = ClassicGroup | ConsumerGroup | ShareGroup
