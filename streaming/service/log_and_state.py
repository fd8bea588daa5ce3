"""What a coordinator works on: its topics, and the state that it makes of them."""

from dataclasses import dataclass, replace
from typing import Self

from checkpoints.checkpoint import Checkpoint
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from records.topic_sizes import with_topic_sizes


@dataclass(frozen=True, slots=True)
class LogAndState:
    """The topics of `layout` on a cluster, and the checkpoint with the state that is made of them."""

    client_config: ClientConfig
    layout: TopicLayout
    checkpoint: Checkpoint

    def with_topic_sizes(self) -> Self:
        """Return the same with the limits on sizes that the topics have. Raises KafkaError."""
        return replace(self, layout=with_topic_sizes(self.client_config, self.layout))
