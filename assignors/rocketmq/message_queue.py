"""A RocketMQ queue, and the orders in which clients sort queues and client ids before they allocate.

Source: MessageQueue.java; RebalanceImpl.rebalanceByTopic.
"""

from collections.abc import Iterable
from typing import NamedTuple

from assignors.kafka.members import java_order


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker; queues are numbered from 0, -1 stands for all of a broker's."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        """RocketMQ's own text of a queue: CONSISTENT_HASH hashes it, error texts show it."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """By topic, broker name and number; texts as Java's String.compareTo orders them."""
    return sorted(queues, key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id))


def sort_client_ids(client_ids: Iterable[str]) -> list[str]:
    """As Java's String.compareTo orders them, so "CID-10" is before "CID-2"."""
    return sorted(client_ids, key=java_order)
