"""RocketMQ's queues, and how clients get their messages."""

from enum import StrEnum
from typing import NamedTuple


class MessageRequestMode(StrEnum):
    """The way in which clients get the messages of queues that the broker assigns."""

    PULL = "PULL"
    POP = "POP"


class MessageQueue(NamedTuple):
    """A queue of a topic on one broker. Queues are numbered from 0; -1 means all queues of a broker."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """Return RocketMQ's own text of a queue: CONSISTENT_HASH hashes it, error texts show it."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"


RETRY_GROUP_TOPIC_PREFIX = "%RETRY%"
"""The beginning of the name of a group's retry topic, to which its clients also subscribe. Source:
MixAll.java.
"""
