"""Topics as the sender of a request sees them in the brokers' metadata."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from kafka_why.contract.messages import ShortStr

PartitionCount = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TopicImage(Struct, frozen=True):
    """A topic in the cluster's metadata: Kafka's topic id, and the number of partitions."""

    id: UUID
    partitions: PartitionCount


TopicImages = dict[ShortStr, TopicImage | None]
"""What the sender of a request knows of topics, by name, or None if no topic has that name."""
